"""Synergy: CPUs and memory of a node by need instead of by number of devices.

A job's sensitivity to CPUs and memory is profiled; its demand is the least of both at which it is as fast as it gets.
In every round the jobs that the order of a queue puts on the devices are packed by their demands. A job that does not
fit gets its proportional share, and where even that is taken, jobs of the node that have more than theirs give it back:
no job is ever slower than with a proportional share, and no device idles for want of CPUs or memory. What the nodes of a
cluster do not say that they have is not given out.

Fidelity: simplified. Profiles are asked, not measured: that the effect of memory is calculated from the hit rate of the
cache is the profile's affair; the optimal allocation by linear programming, the paper's upper
bound, is left out.

References
----------
J. Mohan, A. Phanishayee, J. Kulkarni, V. Chidambaram. "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters",
OSDI 2022: demands from optimistic profiles, proportional allocation, and TUNE.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation, Placed, Reasons
from trainyard.fleet.errors import require_one_type
from trainyard.fleet.place.keep import keeping
from trainyard.fleet.place.packing import Packing, proportional
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Demand:
    """Devices, CPUs and bytes of memory that a job would have if there were enough, and its speed then."""

    needs: tuple[float, float, float]
    work_per_s: float


Demands = Mapping[int, Demand]
"""Demands by serial number of the job; profiled once."""


@dataclass(frozen=True)
class Synergy:
    """The policy; for rounds of ``round_s``.

    Attributes
    ----------
    order : of the queue: first come first, least remaining time, or least attained service (devices times time).
    allocation : ``tune``, or ``fair``, which gives every job its proportional share.
    saturation : a job is as fast as it gets at this part of its best speed.
    round_s : time between two decisions.
    """

    order: Literal["fifo", "srtf", "las"] = "fifo"
    allocation: Literal["tune", "fair"] = "tune"
    saturation: float = 0.99
    round_s: float = 300.0
    preempts: bool = field(default=True, init=False)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"speed", "length"}) if self.order == "srtf" else frozenset({"speed"})

    @property
    def traits(self) -> Traits:
        """A round is the time between two decisions."""
        return Traits(round_s=self.round_s, places=True)

    def start(self, cluster: Cluster) -> Demands:
        """Nothing is profiled.

        Raises
        ------
        FleetError
            If devices differ.
        """
        require_one_type(cluster, "Synergy")
        return MappingProxyType({})

    def decide(self, snapshot: Snapshot, state: Demands) -> tuple[Allocation, Demands]:
        """Decide a round: the demands of all jobs, the jobs that run, and their packing."""
        serial = snapshot.serial.tolist()
        state = {s: state.get(s) or self._demand(snapshot, i) for i, s in enumerate(serial)}
        demands = [state[s] for s in serial]
        queue = np.lexsort((snapshot.arrival_s, self._urgency(snapshot, demands)))
        runnable = _runnable(queue, snapshot.num_devices, snapshot.cluster.num_devices)
        packing = self.packing(snapshot.cluster)
        for i in self.packing_order(runnable, demands):
            packing.add(i, demands[i].needs)
        return _allocation(snapshot, runnable, packing), state

    def _demand(self, snapshot: Snapshot, number: int) -> Demand:
        if self.allocation == "fair":
            return _proportional_demand(snapshot, number)
        return _best_demand(snapshot, number, self.saturation)

    def _urgency(self, snapshot: Snapshot, demands: list[Demand]) -> Floats:
        """A number of every job by which the queue is sorted, the smallest first."""
        if self.order == "fifo":
            return snapshot.arrival_s
        if self.order == "las":
            return snapshot.attained_device_s
        remaining_s: Floats = snapshot.left / np.array([demand.work_per_s for demand in demands])
        return remaining_s

    def packing(self, cluster: Cluster) -> Packing:
        """Nodes on which nothing lies; each job comes to the one that it leaves least room in."""
        return Packing(cluster)

    def packing_order(self, runnable: Ints, demands: list[Demand]) -> list[int]:
        """Order jobs by what they need, the hardest to place first."""
        jobs: list[int] = runnable.tolist()
        return sorted(jobs, key=lambda i: demands[i].needs, reverse=True)


def _allocation(snapshot: Snapshot, runnable: Ints, packing: Packing) -> Allocation:
    """Return the allocation of a packing; a job that can stays on the devices that it has."""
    jobs = runnable.tolist()
    devices = keeping(snapshot.cluster, [packing.rows[i] for i in jobs], [snapshot.grants[i] for i in jobs])
    _, cpus, memory_bytes = np.array([packing.needs[i] for i in jobs]).reshape(-1, 3).T
    reasons = Reasons(np.setdiff1d(np.arange(snapshot.num_jobs), runnable), _why)
    placed = Placed(runnable, devices, cpus=cpus, memory_bytes=memory_bytes)
    return Allocation(placed, reasons=reasons)


def _speed(snapshot: Snapshot, number: int, cpus: float, memory_bytes: float) -> float:
    """Work per second of a job that has so much with each of its devices."""
    count = int(snapshot.num_devices[number])
    grant = Grant(tuple(range(count)), cpus=cpus * count, memory_bytes=memory_bytes * count)
    return snapshot.speed(number, grant)


def _proportional_demand(snapshot: Snapshot, number: int) -> Demand:
    share, count = proportional(snapshot.cluster), int(snapshot.num_devices[number])
    return Demand(tuple((share * count).tolist()), _speed(snapshot, number, share[1], share[2]))


def _best_demand(snapshot: Snapshot, number: int, saturation: float) -> Demand:
    """The least CPUs at all memory of a node, then the least memory with them, at which a job is as fast as it gets."""
    cluster, count = snapshot.cluster, int(snapshot.num_devices[number])
    share = proportional(cluster)

    def work_per_s(cpus: float, memory_bytes: float) -> float:
        return _speed(snapshot, number, cpus, memory_bytes)

    node = max(cluster.nodes, key=lambda node: node.num_devices)
    neighbours = min(count, node.num_devices)
    most_cpus = max(node.cpus / neighbours, share[1])
    most_bytes = max(node.memory_bytes / neighbours, share[2])
    # Whole CPUs, and thirds of the proportional share of memory: finer than that nothing is given out.
    cpus = [*range(1, int(most_cpus) + 1), most_cpus]
    memory = [k * share[2] / 3 for k in range(1, round(3 * most_bytes / share[2]) + 1)] if share[2] else [0.0]
    enough = saturation * work_per_s(most_cpus, most_bytes)
    best_cpus = cpus[_first(len(cpus), lambda k: work_per_s(cpus[k], most_bytes) >= enough)]
    best_bytes = memory[_first(len(memory), lambda k: work_per_s(best_cpus, memory[k]) >= enough)]
    needs = (float(count), float(best_cpus * count), float(best_bytes * count))
    return Demand(needs, work_per_s(best_cpus, best_bytes))


def _why(job: int) -> str:
    return "jobs that are before it leave fewer devices than it asks for"


def _runnable(queue: Ints, num_devices: Ints, num_free: int) -> Ints:
    """The jobs of a queue for which devices are left."""
    found = []
    for i in queue.tolist():
        if num_devices[i] <= num_free:
            num_free -= int(num_devices[i])
            found.append(i)
    return np.array(found, np.int64)


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first number below ``count`` from which on a condition holds, which it does for the last."""
    return bisect_left(range(count - 1), True, key=holds)

"""Output of Sia's simulator for Gavel, beside ours.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023;
siasosp23/artifacts at aaf7a0d, ``multi_simulator.py --policy gavel --interval 360``. As published that ends with an error
before its first decision, for want of a factor that all predicted speeds are multiplied by; the number is that of a run
with one put in. Ours is the same without any and with the factor by which every application is slower than measured.

Its Gavel is not the one of Gavel's own program: what jobs received is never forgotten, one order goes over all pairs of
job and type, and a job lies on the first devices that are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.known import KnownJob
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.centre import centre
from trainyard.fleet.replicas.restarts import Restarts
from trainyard.fleet.reproduce.programs.whole_seconds import whole_seconds
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.application import Application
from trainyard.fleet.workload.goodput import Batch, divided
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Rate, Spot, by_arrival, spot_of
from trainyard.fleet.workload.readers.adaptdl import StepTimes, read_application, read_step_times
from trainyard.fleet.workload.readers.pollux import read_pollux
from trainyard.hardware.cluster import Cluster
from trainyard.published import Files, PaperTable, Row

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLUSTER = Cluster.of_pools((("aws", 6, 4), ("dgx-ext", 2, 8), ("rtx", 3, 8)))
WORKLOAD = "workloads/philly/workload-1.csv"
_ROUND_S = 360.0
_RESTART_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0}
_SLOWDOWNS = {"cifar10": 1.8, "deepspeech2": 1.2, "bert": 1.2, "yolov3": 1.2, "imagenet": 1.2}
"""Factors by which applications are slower than they were measured."""


@dataclass(frozen=True, eq=False)
class _Measured:
    """An application on one device type; its work is that of a run slowed down."""

    application: Application
    scalability: StepTimes

    def batch(self, size: int, per_node: tuple[int, ...]) -> Batch:
        """Return passes and their size of a batch: a pass is no larger than any that was measured on such nodes."""
        ring = min(per_node[i:] + per_node[:i] for i in range(len(per_node)))
        table, spread = self.application.by_placement.get(ring), self.scalability
        if table is not None:
            largest = int(table[:, 0].max())
        else:
            wider = (spread.num_nodes >= len(per_node)) & (spread.num_replicas >= sum(per_node))
            largest = int(spread.local_batch_size[wider].max())
        limits = self.application.limits._replace(largest_local=largest)
        return divided(size, sum(per_node), limits)

    def step_s(self, batch: Batch, per_node: tuple[int, ...]) -> float:
        """Seconds of a step as it was measured."""
        compute_s, step_s = self.application.step_s(per_node, batch.local)
        return step_s + (batch.num_passes - 1) * compute_s


@dataclass(frozen=True, eq=False)
class Rigid(Adaptive):
    """A job that keeps its devices and its batch size; its speed changes with the noise of its gradients, and epochs take
    whole seconds.

    Attributes
    ----------
    batch_size : as its owner chose it; where it cannot be divided evenly, it is a little larger.
    on : what was measured of it, by device type.
    """

    batch_size: int
    on: dict[str, _Measured]

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        measured = self.on[spot.device_type]
        app, batch = measured.application, measured.batch(self.batch_size, spot.per_node)
        size, step_s = (
            batch.local * batch.num_passes * spot.num_devices,
            measured.step_s(batch, spot.per_node),
        )
        return whole_seconds(app, size, step_s, done, report)

    def steps_per_s(self, spot: Spot) -> float:
        """Return the speed that its scheduler is told."""
        measured = self.on[spot.device_type]
        return 1.0 / measured.step_s(measured.batch(self.batch_size, spot.per_node), spot.per_node)


class _Had(NamedTuple):
    """Device time that jobs received on each type (columns) since they came, and that of all jobs, also ended ones."""

    serial: Ints
    had_s: Floats
    total_s: Floats


@dataclass(frozen=True)
class GavelInSia:
    """Most steps per second of all jobs together, in rounds; jobs are `Rigid`."""

    needs: frozenset[Need] = field(default=frozenset({"speed"}), init=False)
    preempts: bool = field(default=True, init=False)

    def start(self, cluster: Cluster) -> _Had:
        """Nobody was there."""
        kinds = len(cluster.device_types)
        return _Had(np.zeros(0, np.int64), np.zeros((0, kinds)), np.zeros(kinds))

    def decide(self, snapshot: Snapshot, state: _Had) -> tuple[Allocation, _Had]:
        """Fractions of time, of them who runs on which type, and the devices of each."""
        cluster, gang = snapshot.cluster, snapshot.num_devices
        had_s, total_s = _received(snapshot.serial, state)
        rate = np.array([_predicted(job, cluster) for job in snapshot.jobs])
        anything = np.full(len(gang), -np.inf)
        fraction = centre(rate, gang.astype(float), cluster.devices_of_type, reward=rate, need=anything)
        assert fraction is not None, "no time at all for anybody is a solution"
        fraction = fraction.round(5)
        runs, kinds = _chosen(fraction, fraction * total_s / had_s, gang, cluster.devices_of_type)
        devices = _placed(cluster, gang[runs], kinds, [snapshot.grants[i] for i in runs.tolist()])
        had_s[runs, kinds] += _ROUND_S
        total_s += np.bincount(kinds, minlength=len(total_s)) * _ROUND_S
        return Allocation(Placed(runs, devices)), _Had(snapshot.serial, had_s, total_s)


def _received(serial: Ints, state: _Had) -> tuple[Floats, Floats]:
    """Return what the jobs received; a new job is taken to have had half a round on each type."""
    had_s = np.full((len(serial), len(state.total_s)), _ROUND_S / 2)
    _, own, old = np.intersect1d(serial, state.serial, assume_unique=True, return_indices=True)
    had_s[own] = state.had_s[old]
    return had_s, state.total_s + (len(serial) - len(own)) * _ROUND_S / 2


@lru_cache(maxsize=1 << 10)
def _predicted(job: KnownJob, cluster: Cluster) -> tuple[float, ...]:
    """Steps per second by type of device."""
    assert isinstance(job.profile, Rigid)
    spots = (
        spot_of(name, cluster.compact(job.num_devices, kind))
        for kind, name in enumerate(cluster.device_types)
    )
    return tuple(job.profile.steps_per_s(spot) for spot in spots)


def _chosen(fraction: Floats, priority: Floats, gang: Ints, room: Ints) -> tuple[Ints, Ints]:
    """Jobs that run, most urgent first, and their types, by one order of all pairs; of equal ones by type and arrival."""
    left, found = room.copy(), dict[int, int]()
    for place in np.lexsort((-fraction.T.ravel(), -priority.T.ravel())).tolist():
        kind, job = divmod(place, len(gang))
        if job not in found and gang[job] <= left[kind]:
            found[job] = kind
            left[kind] -= gang[job]
    return np.array(list(found), np.int64), np.array(list(found.values()), np.int64)


def _placed(
    cluster: Cluster, gang: Ints, kinds: Ints, grants: Sequence[Grant | None]
) -> list[tuple[int, ...]]:
    """From the largest to the smallest size, jobs keep their devices if nobody took them; others get the first free."""
    type_of = cluster.type_of_node[cluster.node_of]
    free = np.ones(len(type_of), np.bool_)
    found: list[tuple[int, ...]] = [()] * len(gang)
    for size in np.unique(gang)[::-1]:
        jobs = np.flatnonzero(gang == size).tolist()
        for job in jobs:
            grant = grants[job]
            if grant and type_of[grant.devices[0]] == kinds[job] and free[list(grant.devices)].all():
                found[job] = grant.devices
                free[list(grant.devices)] = False
        for job in jobs:
            if not found[job]:
                found[job] = tuple(np.flatnonzero(free & (type_of == kinds[job]))[:size].tolist())
                free[list(found[job])] = False
    return found


def rigid_jobs(folder: Path) -> tuple[Job, ...]:
    """The program's jobs, from its folder."""
    on = {
        name: {kind: _measured(folder / "traces" / name, kind) for kind in CLUSTER.device_types}
        for name in _SLOWDOWNS
    }
    work = {name: next(iter(kinds.values())).application.work for name, kinds in on.items()}
    jobs = read_pollux(folder / WORKLOAD)
    return by_arrival(
        [replace(job, profile=Rigid(job.batch_size, on[job.model]), work=work[job.model]) for job in jobs]
    )


def _measured(folder: Path, device_type: str) -> _Measured:
    app = read_application(folder, device_type=device_type)
    slowed = replace(app, epoch_ends=_SLOWDOWNS[folder.name] * app.epoch_ends)
    return _Measured(slowed, read_step_times(folder / f"scalability-{device_type}.csv"))


def gavel_run(folder: Path) -> FleetRun:
    """The program's jobs under its Gavel."""
    rounds = Restarts(_ROUND_S, by_model=_RESTART_S)
    return simulate_fleet(rigid_jobs(folder), CLUSTER, GavelInSia(), rounds=rounds)


def _rows(folder: Path) -> Iterator[Row]:
    yield Row("160 jobs", 6016.4625, gavel_run(folder).mean_completion_s)


TABLE = PaperTable(
    "The authors' simulator of Sia, SOSP 2023, philly/workload-1 on 24 T4, 16 A100 and 24 2080 Ti, policy gavel",
    "mean completion time, s",
    "simulated, the same jobs, measurements and nodes",
    _rows,
    tolerance=1e-6,
    files=Files(
        ("traces", WORKLOAD),
        "git clone https://github.com/siasosp23/artifacts",
        "artifacts/sia-simulator",
    ),
)

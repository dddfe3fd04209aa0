"""AntMan: guaranteed jobs as if alone, opportunistic jobs on what they leave of the same devices.

References
----------
W. Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning", OSDI 2020. Section 4.1: the global scheduler
gives guaranteed jobs devices within their tenant's quota, in order of arrival, and opportunistic jobs the least loaded
devices below a threshold of utilisation. Section 3.3: a device's local coordinator lets an opportunistic job run only in
the time that the guaranteed job leaves idle, so that the latter is as fast as alone.

Fidelity: simplified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.pairs import check_pairs
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.hardware.cluster import Cluster


@dataclass
class _Device:
    """Jobs on a device while a decision is made."""

    guaranteed: int | None = None
    opportunistic: int | None = None
    busy: float = 0.0


@dataclass(frozen=True)
class AntMan:
    """The policy.

    Attributes
    ----------
    quotas : virtual clusters and how many devices their guaranteed jobs may have at once; those not named, all.
    busiest : a device that a guaranteed job keeps busier than this takes no opportunistic one (the paper's 80 %).
    """

    quotas: tuple[tuple[str, int], ...] = ()
    busiest: float = 0.8
    needs: frozenset[Need] = field(default=frozenset({"guaranteed"}), init=False)
    preempts: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_pairs(
            "quotas of antman", self.quotas, "a number of devices", lambda n: type(n) is int and n >= 0
        )

    @property
    def traits(self) -> Traits:
        """Opportunistic jobs are on devices of guaranteed ones."""
        named = tuple(("virtual_cluster", name) for name, _ in self.quotas)
        return Traits(shares=True, places=True, named=named)

    def start(self, cluster: Cluster) -> None:
        """Nothing is remembered: who runs where stands in the snapshot."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Running jobs stay where they are, except opportunistic ones on devices that became too busy."""
        found, jobs = _Placement(self, snapshot), snapshot.jobs
        # Those that have devices first: nothing that runs is moved for one that waits.
        order = sorted(range(len(jobs)), key=lambda i: not snapshot.is_running[i])
        for i in order:
            if jobs[i].guaranteed:
                found.place_guaranteed(i)
        for i in order:
            if not jobs[i].guaranteed:
                found.place_opportunistic(i)
        return found.allocation(), None


class _Placement:
    """One decision of the global scheduler (section 4.1), job by job."""

    def __init__(self, policy: AntMan, snapshot: Snapshot) -> None:
        self.policy, self.snapshot = policy, snapshot
        self.quotas = dict(policy.quotas)
        self.devices = {device: _Device() for device in np.flatnonzero(snapshot.cluster.is_usable).tolist()}
        self.quota_used: dict[str, int] = {}
        self.placed: dict[int, tuple[int, ...]] = {}
        self.reasons: dict[int, str] = {}
        self.refused: dict[int, str] = {}

    def place_guaranteed(self, i: int) -> None:
        """Within its quota, the devices that it has, else some without a guaranteed job: idle ones before shared ones."""
        job, grant = self.snapshot.jobs[i], self.snapshot.grants[i]
        if not self._is_within_quota(i):
            return
        if grant is None:
            shared = self._devices_of_opportunistic()
            free = [d for d, device in self.devices.items() if device.guaranteed is None]
            found = self._least_loaded(i, {d: float(d in shared) for d in free})
        else:
            found = grant.devices
        if found is None:
            self.reasons[i] = f"asks for {job.num_devices} devices without a guaranteed job"
            return
        self.quota_used[job.virtual_cluster] = self.quota_used.get(job.virtual_cluster, 0) + job.num_devices
        for d in found:
            self.devices[d].guaranteed, self.devices[d].busy = i, job.busy
        self.placed[i] = found

    def _is_within_quota(self, i: int) -> bool:
        """Whether its tenant may have the devices for it now; if not, why."""
        job = self.snapshot.jobs[i]
        wanted, tenant = job.num_devices, job.virtual_cluster
        quota = self.quotas.get(tenant, self.snapshot.cluster.num_devices)
        used = self.quota_used.get(tenant, 0)
        if wanted > self.quotas.get(tenant, wanted):
            self.refused[i] = (
                f"asks for {wanted} devices; guaranteed jobs of virtual cluster {tenant!r} may have {quota} together"
            )
            return False
        if used + wanted > quota:
            self.reasons[i] = (
                f"virtual cluster {tenant!r} has {used} of its {quota} devices in use, and this job asks for {wanted}"
            )
            return False
        return True

    def place_opportunistic(self, i: int) -> None:
        """The least loaded devices below the threshold, at most one opportunistic job on each."""
        grant = self.snapshot.grants[i]
        load = {d: device.busy for d, device in self.devices.items() if self._takes_opportunistic(device)}
        if grant is not None and load.keys() >= set(grant.devices):
            found: tuple[int, ...] | None = grant.devices
        else:
            found = self._least_loaded(i, load)
        if found is None:
            self.reasons[i] = f"no {self.snapshot.jobs[i].num_devices} devices are idle enough"
            return
        for d in found:
            self.devices[d].opportunistic = i
        self.placed[i] = found

    def _takes_opportunistic(self, device: _Device) -> bool:
        return device.opportunistic is None and device.busy <= self.policy.busiest

    def _devices_of_opportunistic(self) -> set[int]:
        """Devices that opportunistic jobs have now."""
        now = zip(self.snapshot.jobs, self.snapshot.grants, strict=True)
        return {d for job, grant in now if grant is not None and not job.guaranteed for d in grant.devices}

    def _least_loaded(self, i: int, load: Mapping[int, float]) -> tuple[int, ...] | None:
        """The least loaded devices of one type that the job can run on; None if there are too few.

        They are on one node if a node has enough, else on as few nodes as may be.

        Parameters
        ----------
        load : of every device that the job may have.
        """
        wanted, cluster = self.snapshot.jobs[i].num_devices, self.snapshot.cluster
        on_node: dict[int, list[int]] = {}
        for device in sorted(load, key=lambda d: (load[d], d)):
            on_node.setdefault(int(cluster.node_of[device]), []).append(device)
        nodes = [
            [on_node[node][:wanted] for node in sorted(on_node) if cluster.type_of_node[node] == kind]
            for kind in self.snapshot.allowed_types(i)
        ]
        choices = [devices for pool in nodes for devices in pool if len(devices) == wanted]
        if not choices:
            fullest_first = [sorted(pool, key=lambda devices: -len(devices)) for pool in nodes]
            spread = [list(chain.from_iterable(pool))[:wanted] for pool in fullest_first]
            choices = [devices for devices in spread if len(devices) == wanted]

        def burden(devices: list[int]) -> tuple[int, float]:
            return len({int(cluster.node_of[d]) for d in devices}), sum(load[d] for d in devices)

        if not choices:
            return None
        best = min(choices, key=burden)
        return tuple(sorted(best))

    def allocation(self) -> Allocation:
        """Return the jobs that run, where, and with which share of their devices."""
        order = sorted(self.placed)
        shares = np.array([self._share(i) for i in order])
        placed = Placed(np.array(order, np.int64), [self.placed[i] for i in order], shares)
        return Allocation(placed, reasons=self.reasons, refused=self.refused)

    def _share(self, i: int) -> float:
        """Section 3.3: a guaranteed job gets the time that it keeps a device busy, an opportunistic one the rest."""
        busy = self.snapshot.jobs[i].busy
        if self.snapshot.jobs[i].guaranteed:
            return busy
        # A gang is as fast as where it gets least.
        return min(busy, *(1.0 - self.devices[d].busy for d in self.placed[i]))

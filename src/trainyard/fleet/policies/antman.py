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

from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.pairs import check_pairs
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits


@dataclass
class _Device:
    """What is on a device while a decision is made."""

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
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_pairs(
            "quotas of antman", self.quotas, "a number of devices", lambda n: type(n) is int and n >= 0
        )

    @property
    def traits(self) -> Traits:
        """Opportunistic jobs are on devices of guaranteed ones."""
        return Traits(shares=True, places=True)

    def start(self, site: Site) -> None:
        """Nothing is remembered: who runs where stands in the snapshot."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Running jobs stay where they are, except opportunistic ones on devices that became too busy."""
        chosen = _Choice(self, snapshot)
        jobs = snapshot.jobs
        guaranteed = [i for i in range(len(jobs)) if jobs[i].guaranteed]
        opportunistic = [i for i in range(len(jobs)) if not jobs[i].guaranteed]
        for order, place in ((guaranteed, chosen.guarantee), (opportunistic, chosen.fit_in)):
            # Those that have devices first: nothing that runs is moved for one that waits.
            for i in sorted(order, key=lambda i: not snapshot.is_running[i]):
                place(i)
        return chosen.allocation(), None


class _Choice:
    """One decision."""

    def __init__(self, policy: AntMan, snapshot: Snapshot) -> None:
        self.policy, self.snapshot = policy, snapshot
        self.quotas = dict(policy.quotas)
        self.devices = {device: _Device() for device in np.flatnonzero(snapshot.site.is_usable).tolist()}
        self.used: dict[str, int] = {}
        self.placed: dict[int, tuple[int, ...]] = {}
        self.reasons: dict[int, str] = {}
        self.refused: dict[int, str] = {}

    def guarantee(self, i: int) -> None:
        """Devices without a guaranteed job: those it has, else idle ones before those that are shared."""
        job, held = self.snapshot.jobs[i], self.snapshot.grants[i]
        used = self.used.get(job.virtual_cluster, 0)
        quota = self.quotas.get(job.virtual_cluster, self.snapshot.site.num_devices)
        if job.num_devices > self.quotas.get(job.virtual_cluster, job.num_devices):
            self.refused[i] = (
                f"asks for {job.num_devices} devices; guaranteed jobs of virtual cluster {job.virtual_cluster!r} may "
                f"have {quota} together"
            )
            return
        if used + job.num_devices > quota:
            whose = f"virtual cluster {job.virtual_cluster!r}"
            self.reasons[i] = (
                f"{whose} has {used} of its {quota} devices in use, and this job asks for {job.num_devices}"
            )
            return
        shared = self._opportunistic_now()
        free = [d for d, found in self.devices.items() if found.guaranteed is None]
        found = self._nearest(i, free, [float(d in shared) for d in free]) if held is None else held.devices
        if found is None:
            self.reasons[i] = f"asks for {job.num_devices} devices without a guaranteed job"
            return
        self.used[job.virtual_cluster] = used + job.num_devices
        for device in found:
            self.devices[device].guaranteed, self.devices[device].busy = i, job.busy
        self.placed[i] = found

    def fit_in(self, i: int) -> None:
        """The least busy devices below the threshold, at most one opportunistic job on each."""
        held = self.snapshot.grants[i]
        free = [d for d in self.devices if self._takes(d)]
        stays = held is not None and set(held.devices) <= set(free)
        found = held.devices if stays else self._nearest(i, free, [self.devices[d].busy for d in free])  # type: ignore[union-attr]
        if found is None:
            self.reasons[i] = f"no {self.snapshot.jobs[i].num_devices} devices are idle enough"
            return
        for device in found:
            self.devices[device].opportunistic = i
        self.placed[i] = found

    def _takes(self, device: int) -> bool:
        found = self.devices[device]
        return found.opportunistic is None and found.busy <= self.policy.busiest

    def _opportunistic_now(self) -> set[int]:
        jobs, grants = self.snapshot.jobs, self.snapshot.grants
        return {
            d
            for j, g in zip(jobs, grants, strict=True)
            if g is not None and not j.guaranteed
            for d in g.devices
        }

    def _nearest(self, i: int, free: list[int], load: list[float]) -> tuple[int, ...] | None:
        """The least loaded devices of one type that the job can run on, on one node if a node has enough, else on as few
        nodes as may be."""
        wanted, site = self.snapshot.jobs[i].num_devices, self.snapshot.site
        by_node: dict[int, list[tuple[float, int]]] = {}
        for device, each in zip(free, load, strict=True):
            by_node.setdefault(int(site.node_of[device]), []).append((each, device))
        best = {node: sorted(devices)[:wanted] for node, devices in by_node.items()}
        pools = [
            [devices for node, devices in best.items() if site.type_of_node[node] == kind]
            for kind in self.snapshot.allowed_types(i)
        ]
        whole = [devices for pool in pools for devices in pool if len(devices) == wanted]
        if whole:
            return _devices(min(whole, key=lambda devices: sum(each for each, _ in devices)))
        fullest = [sorted(pool, key=lambda devices: -len(devices)) for pool in pools]
        spread = [list(chain.from_iterable(pool))[:wanted] for pool in fullest]
        enough = [pairs for pairs in spread if len(pairs) == wanted]
        if not enough:
            return None

        def burden(pairs: list[tuple[float, int]]) -> tuple[int, float]:
            return len({int(site.node_of[device]) for _, device in pairs}), sum(each for each, _ in pairs)

        return _devices(min(enough, key=burden))

    def allocation(self) -> Allocation:
        """Guaranteed jobs get what they keep busy, opportunistic ones the rest."""
        order = sorted(self.placed)
        shares = [self._share(i) for i in order]
        return Allocation(
            Placed(np.array(order, np.int64), [self.placed[i] for i in order], np.array(shares)),
            reasons=self.reasons,
            refused=self.refused,
        )

    def _share(self, i: int) -> float:
        busy = self.snapshot.jobs[i].busy
        if self.snapshot.jobs[i].guaranteed:
            return busy
        # A gang is as fast as where it gets least.
        return min(busy, *(1.0 - self.devices[d].busy for d in self.placed[i]))


def _devices(pairs: list[tuple[float, int]]) -> tuple[int, ...]:
    return tuple(sorted(device for _, device in pairs))

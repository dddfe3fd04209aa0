"""ElasticFlow: jobs with deadlines, on as many devices as it takes; a job that cannot end in time is refused.

The minimum satisfactory share of a job is the least number of devices with which it ends by its deadline. Admission
control: a job is admitted if, with everybody's share reserved in the order of deadlines, all admitted jobs and it end in
time. Elastic allocation: devices that no share reserves now go to the job of the greatest marginal return, which is how
much less devices times time it then takes for each device that it gets. Numbers of devices are powers of two, in blocks
that are halves of halves of a node (buddy allocation) or whole nodes, so that nothing fragments.

Fidelity: simplified. The time that a job loses when its devices change is not planned for: give deadlines some slack
where it matters. Buddies end at the node: jobs of several nodes take any.

References
----------
D. Gu, Y. Zhao, Y. Zhong, Y. Xiong, Z. Han, P. Cheng, F. Yang, G. Huang, X. Jin, X. Liu. "ElasticFlow: An Elastic
Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023. Section 4.1: shares and admission (algorithm 1);
after it elastic allocation (algorithm 2), and buddy placement with migration.

Notes
-----
Jobs without a deadline run on what the others leave; so do admitted jobs that restarts have made late. A job that got
ahead keeps its share where a smaller one, for longer, would make another late: the paper computes all shares anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.place.buddies import block, buddies
from trainyard.fleet.policies.elasticflow.shares import (
    Demands,
    elastic_allocation,
    minimum_satisfactory_shares,
)
from trainyard.fleet.scaling import Scaling, scaling
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.hardware.cluster import Cluster

Ints = NDArray[np.int64]


class Admitted(NamedTuple):
    """What is remembered of an admitted job: how it scales, and the level of its minimum satisfactory share, or -1."""

    scaling: Scaling
    share: int


State = Mapping[int, Admitted]
"""By serial number of the job."""


class _Plan(NamedTuple):
    """Jobs in the order of their deadlines, what they need, and the levels of their minimum satisfactory shares."""

    jobs: list[int]
    demands: Demands
    shares: Ints

    def late(self) -> set[int]:
        """Jobs with a deadline that they cannot meet."""
        missed = (self.shares < 0) & np.isfinite(self.demands.deadline)
        return {job for job, late in zip(self.jobs, missed.tolist(), strict=True) if late}


@dataclass(frozen=True)
class ElasticFlow:
    """The policy; for rounds of ``slot_s``.

    Attributes
    ----------
    slot_s : time between two decisions, and unit of all plans; rounds of another length fit only if a slot is a whole
        number of them, for plans begin and end with a slot.
    """

    slot_s: float = 60.0
    needs: frozenset[Need] = field(default=frozenset({"speed", "length", "deadline"}), init=False)
    preempts: bool = field(default=True, init=False)

    @property
    def traits(self) -> Traits:
        """A round is a slot."""
        return Traits(round_s=self.slot_s, rounds=self.rounds, places=True)

    def rounds(self, given: Rounds | None) -> Rounds | None:
        """Rounds that begin whenever a slot does, as what was promised to jobs is planned.

        Raises
        ------
        FleetError
            If a slot is no whole number of rounds.
        """
        if given is not None and not _is_multiple(self.slot_s, given.round_s):
            raise FleetError(
                f"elasticflow plans in slots of {self.slot_s:g} s, which is no whole number of rounds of "
                f"{given.round_s:g} s; give elasticflow(slot_s={given.round_s:g}), or leave the length of rounds to it"
            )
        return given

    def start(self, cluster: Cluster) -> State:
        """Nobody is admitted.

        Raises
        ------
        FleetError
            If devices are not all alike, or nodes cannot be halved down to one device.
        """
        sizes = set(cluster.devices_per_node.tolist())
        if len(cluster.device_types) > 1 or len(sizes) > 1 or max(sizes).bit_count() != 1:
            raise FleetError(
                f"ElasticFlow places jobs in halves of halves of equal nodes, and cluster {cluster.name!r} has nodes of "
                f"{sorted(sizes)} devices of {', '.join(cluster.device_types)}; give it nodes of one type and one size "
                "that is a power of two"
            )
        return MappingProxyType({})

    def decide(self, snapshot: Snapshot, state: State) -> tuple[Allocation, State]:
        """Admit or refuse who is new, then give everybody a share of the devices."""
        serial = snapshot.serial.tolist()
        known = [state.get(s) or Admitted(scaling(snapshot, i), 0) for i, s in enumerate(serial)]
        able = [i for i in range(len(serial)) if known[i].scaling.num_devices]
        refused = {
            i: "it does not run on these devices"
            for i, job in enumerate(known)
            if not job.scaling.num_devices
        }
        # Nodes that are away come back: they decide when jobs run, and not who is admitted.
        plan = self._plan(snapshot, known, able)
        if plan.late():
            plan, late = self._admit(
                snapshot, known, able, set(np.flatnonzero(snapshot.was_admitted).tolist())
            )
            refused |= late
        if snapshot.cluster.away:
            plan = self._plan(snapshot, known, plan.jobs, snapshot.cluster)
        shares = dict(zip(plan.jobs, plan.shares.tolist(), strict=True))
        after = {serial[i]: Admitted(known[i].scaling, shares[i]) for i in sorted(shares)}
        return self._allocation(snapshot, known, plan, refused), MappingProxyType(after)

    def _admit(
        self, snapshot: Snapshot, known: Sequence[Admitted], jobs: Sequence[int], before: Set[int]
    ) -> tuple[_Plan, dict[int, str]]:
        """Admit jobs one by one, in the order of arrival; who was admitted before stays (algorithm 1)."""
        plan = self._plan(snapshot, known, [i for i in jobs if i in before])
        refused = {}
        for i in (i for i in jobs if i not in before):
            with_it = self._plan(snapshot, known, [*plan.jobs, i])
            late = with_it.late() - plan.late()
            if i in late:
                refused[i] = "it cannot end by its deadline on what the admitted jobs leave"
            elif late:
                refused[i] = f"job {snapshot.job(min(late)).name!r} could no longer end by its deadline"
            else:
                plan = with_it
        return plan, refused

    def _plan(
        self,
        snapshot: Snapshot,
        known: Sequence[Admitted],
        jobs: Sequence[int],
        cluster: Cluster | None = None,
    ) -> _Plan:
        """Satisfactory shares; if with the least some job would be late, with none less than at the last decision.

        A job that got ahead can do with a smaller share for a longer time, in which a later one would want the devices.
        With shares as they were nobody is later than planned. It is a plan for all nodes if no cluster is given.
        """
        order = sorted(jobs, key=lambda i: (snapshot.deadline_s[i], i))
        demands = self._demands(snapshot, known, order)
        total, offset = (cluster or snapshot.cluster.whole).num_devices, self._offset(snapshot)
        plan = _Plan(order, demands, minimum_satisfactory_shares(demands, total, offset))
        if plan.late():
            kept = demands._replace(least=np.array([max(0, known[i].share) for i in order], np.int64))
            other = _Plan(order, kept, minimum_satisfactory_shares(kept, total, offset))
            plan = min(plan, other, key=lambda each: len(each.late()))
        return plan

    def _offset(self, snapshot: Snapshot) -> float:
        return snapshot.now_s / self.slot_s % 1.0

    def _allocation(
        self, snapshot: Snapshot, known: Sequence[Admitted], plan: _Plan, refused: Mapping[int, str]
    ) -> Allocation:
        counts, later = elastic_allocation(plan.demands, snapshot.cluster.num_devices, self._offset(snapshot))
        runs, jobs = counts > 0, np.array(plan.jobs, np.int64)
        blocks = zip(jobs[runs].tolist(), counts[runs].tolist(), strict=True)
        sizes = [max(n for n in known[i].scaling.num_devices if n <= most) for i, most in blocks]
        return Allocation(
            Placed(jobs[runs], buddies(snapshot.cluster, sizes, [snapshot.grants[i] for i in jobs[runs]])),
            reasons=dict.fromkeys(jobs[~runs].tolist(), "its share of the devices begins later"),
            refused=refused,
            ask_again_s=snapshot.now_s + later * self.slot_s,
        )

    def _demands(self, snapshot: Snapshot, known: Sequence[Admitted], jobs: Sequence[int]) -> Demands:
        levels = [known[i].scaling for i in jobs]
        node_size = snapshot.cluster.nodes[0].num_devices
        width = max((len(level.num_devices) for level in levels), default=1)
        num_devices, work = np.zeros((len(jobs), width), np.int64), np.zeros((len(jobs), width))
        for row, level in enumerate(levels):
            # A gang that does not fill its block takes all of it.
            num_devices[row, : len(level.num_devices)] = [block(n, node_size) for n in level.num_devices]
            work[row, : len(level.work_per_s)] = level.work_per_s
        rows = np.array(jobs, np.int64)
        return Demands(
            snapshot.left[rows],
            (snapshot.deadline_s[rows] - snapshot.now_s) / self.slot_s,
            np.zeros(len(jobs), np.int64),
            np.array([len(level.num_devices) for level in levels], np.int64),
            num_devices,
            work * self.slot_s,
        )


def _is_multiple(whole: float, part: float) -> bool:
    times = whole / part
    return math.isfinite(times) and round(times) > 0 and math.isclose(round(times), times)

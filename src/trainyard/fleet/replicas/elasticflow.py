"""ElasticFlow as in the program that its authors published; `trainyard.fleet.policies.elasticflow` is the paper's.

The program (``scheduler.py --schedule=ef-accessctrl``) departs from the paper:

- It admits all jobs that come to one decision together or none of them, and nobody while an admitted job is late.
- A share is found from the deadline backwards: from some moment on one level, and before it the next lower one.
- Spare devices go to jobs that have none now, and then first to the job whose use of devices times time grows most.
- How many devices a job may have stands in a table by model, which admits numbers on which it is slower.
- It decides when a job comes or ends, or a plan changes, but not twice within a slot, and places all jobs anew, large
  ones first and without gaps. On less than 256 devices each then loses 2 s where some job has had just these since the
  last renewal, and else 4 s and 2 s for every doubling; at a renewal, every 60 decisions, that is 27 s more.
- A job ends where its plan says, even with work left. When it ended, and whether that was late, goes by the last plan on
  its share alone; what it has lost since that plan does not count.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023;
pkusys/ElasticFlow at 04a0109.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.errors import FleetError, require_one_type
from trainyard.fleet.periods import Rounds
from trainyard.fleet.replicas.backwards import Plan, Planner, Steps, Wish, reserve
from trainyard.fleet.replicas.planned_ends import PlacedWithEnds, PlannedEnds
from trainyard.fleet.scaling import scaling
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.hardware.cluster import Cluster

_INF = float("inf")
_LEAST_WORK = 1e-9

State = Mapping[int, Mapping[int, float]]
"""Work per second by number of devices of the jobs that were admitted; by serial number, as they were last sorted."""


class _Share(NamedTuple):
    """Devices that a job has now, and what it would be to have the next larger number.

    Attributes
    ----------
    num, plan : devices until plans change, and the plan.
    more, larger : the same of the next larger number; ``more`` is ``num`` if there is none.
    growth : of devices times time, by each device more.
    """

    num: int
    plan: Plan
    more: int
    larger: Plan | None = None
    growth: float = -_INF


@dataclass(frozen=True)
class ElasticFlowProgram:
    """The policy.

    Attributes
    ----------
    slot_s : least time between two decisions, and unit of all plans.
    """

    slot_s: float = 60.0
    needs: frozenset[Need] = field(default=frozenset({"speed", "length", "deadline"}), init=False)
    preempts: bool = field(default=True, init=False)

    def rounds(self, given: Rounds | None) -> Rounds:
        """The program's own.

        Raises
        ------
        FleetError
            If others are given.
        """
        if given is not None and not isinstance(given, PlannedEnds):
            raise FleetError(
                "ElasticFlow's program decides at moments of its own; give it no rounds (round_s)"
            )
        return given or PlannedEnds(self.slot_s)

    @property
    def traits(self) -> Traits:
        """Rounds of its own."""
        return Traits(rounds=self.rounds, places=True)

    def start(self, cluster: Cluster) -> State:
        """Nobody is admitted."""
        require_one_type(cluster, "ElasticFlow's program")
        return MappingProxyType({})

    def decide(self, snapshot: Snapshot, state: State) -> tuple[Allocation, State]:
        """Admit all that came or none of them, plan, give away what is left, and place everybody anew."""
        planner, serials = Planner(snapshot.cluster.num_devices, self.slot_s), snapshot.serial.tolist()
        wishes = [_wish(snapshot, i, state.get(serial)) for i, serial in enumerate(serials)]
        place = {serial: at for at, serial in enumerate(state)}
        order = sorted(range(len(serials)), key=lambda i: place.get(serials[i], len(place)))
        refused = {i: _CANNOT for i in order if not wishes[i].work_per_s}
        order = [i for i in order if i not in refused]
        shares, free = _satisfactory(planner, wishes, order)
        late = any(share.plan.done_s > wishes[i].deadline_s for i, share in shares.items())
        if late and not snapshot.was_admitted[order].all():
            refused |= {
                i: _REFUSED for i in order if not snapshot.was_admitted[i] and wishes[i].deadline_s < _INF
            }
            shares, free = _satisfactory(planner, wishes, [i for i in order if i not in refused])
        done_s = {i: snapshot.now_s + share.plan.done_s for i, share in shares.items()}
        shares = _with_spare(planner, wishes, shares, free)
        shares = dict(sorted(shares.items(), key=lambda each: -each[1].num))
        runs = [i for i, share in shares.items() if share.num]
        ends, usable = (
            accumulate(shares[i].num for i in runs),
            np.flatnonzero(snapshot.cluster.is_usable).tolist(),
        )
        placed = PlacedWithEnds(
            np.array(runs, np.int64),
            [tuple(usable[end - shares[i].num : end]) for i, end in zip(runs, ends, strict=True)],
            until_s=np.array([snapshot.now_s + shares[i].plan.until_s for i in runs]),
        )
        placed.done_s = np.array([done_s[i] for i in runs])
        allocation = Allocation(
            placed,
            reasons={i: _WAITS for i, share in shares.items() if not share.num},
            refused=refused,
            ask_again_s=snapshot.now_s + min((s.plan.changes_s for s in shares.values()), default=_INF),
        )
        return allocation, MappingProxyType({serials[i]: wishes[i].work_per_s for i in shares})


_CANNOT = "it does not run on these devices"
_REFUSED = "with all that came when it did, and what is admitted, some job would end after its deadline"
_WAITS = "its share of the devices begins later"


def _wish(snapshot: Snapshot, number: int, known: Mapping[int, float] | None) -> Wish:
    if known is None:
        scales, kind = scaling(snapshot, number, only_faster=False), snapshot.cluster.device_types[0]
        job = snapshot.job(number)
        most = max(job.least_devices, most_devices(job.model, job.batch_size, kind))
        speeds = zip(scales.num_devices, scales.work_per_s, strict=True)
        known = {count: work_per_s for count, work_per_s in speeds if count <= most}
    # Of a job without work, too, the last second is whole.
    left = max(float(snapshot.left[number]), _LEAST_WORK)
    return Wish(left, float(snapshot.deadline_s[number] - snapshot.now_s), known)


def _satisfactory(
    planner: Planner, wishes: Sequence[Wish], order: Sequence[int]
) -> tuple[dict[int, _Share], Steps]:
    """Return the least share of each job, in the order of deadlines, and the devices that are left free."""
    free: Steps = {0.0: planner.total}
    shares = {}
    for i in sorted(order, key=lambda i: wishes[i].deadline_s):
        plan = planner.plan(wishes[i], free)
        free = reserve(free, plan)
        shares[i] = _Share(plan.uses[0.0], plan, 0)
    return shares, free


def _with_spare(
    planner: Planner, wishes: Sequence[Wish], shares: dict[int, _Share], free: Steps
) -> dict[int, _Share]:
    """Give away what is free now, one number of devices at a time; returns jobs as they were last sorted."""
    room = planner.total - sum(share.num for share in shares.values())
    if not room:
        return shares
    shares = {i: share._replace(more=_more(wishes[i], share.num)) for i, share in shares.items()}
    looked_at = set(shares)
    while True:
        for i in looked_at:
            shares[i] = _looked_at(planner, wishes[i], shares[i], free, room)
        shares = dict(sorted(shares.items(), key=lambda each: -each[1].growth))
        chosen = next((i for i, share in shares.items() if share.larger is not None), None)
        if chosen is None:
            return shares
        share = shares[chosen]
        assert share.larger is not None
        free = reserve(reserve(free, share.plan, -1), share.larger)
        room -= share.more - share.num
        more = _more(wishes[chosen], share.more)
        shares[chosen] = share._replace(num=share.more, plan=share.larger, more=more, larger=None)
        # The program does not look again at those that can have no more.
        looked_at = {i for i, share in shares.items() if share.more > share.num}


def _looked_at(planner: Planner, wish: Wish, share: _Share, free: Steps, room: int) -> _Share:
    """Cost of one more step for a job: a job without devices goes first, one that cannot have it last."""
    step = share.more - share.num
    if not 0 < step <= room:
        return share._replace(larger=None, growth=-_INF)
    larger = planner.plan(wish, reserve(free, share.plan, -1), share.more)
    growth = (larger.device_s - share.plan.device_s) / step
    return share._replace(larger=larger, growth=growth if share.num else _INF)


def _more(wish: Wish, num: int) -> int:
    return next((count for count in wish.work_per_s if count > num), num)


def most_devices(model: str, batch_size: int, device_type: str) -> int:
    """Return the most devices that the program gives a job, from its table; a batch size of 0 is unknown."""
    rules = _MOST_ON_T4 if device_type == "T4" else _MOST
    others = 64 if device_type == "T4" else min(batch_size or 64, 64)
    return rules.get((model, batch_size)) or rules.get((model, 0)) or others


_MOST_ON_T4 = {
    ("bert", 0): 16, ("cifar10", 0): 16, ("deepspeech2", 320): 32, ("yolov3", 0): 4, ("ncf", 0): 1,
}  # fmt: skip
_MOST = {
    ("bert", 0): 16, ("bert", 64): 8, ("gpt2", 128): 16, ("gpt2", 256): 32, ("inception3", 64): 16,
    ("inception3", 128): 32, ("resnet50", 64): 32, ("vgg16", 64): 32,
}  # fmt: skip
"""Most devices by model and batch size; 0 stands for any other batch size."""

"""Plans from the deadline backwards, as the program makes them that the authors of ElasticFlow published.

A job is to begin as late, and on as few devices, as lets it end in time: from some moment on it has its share, and
before that moment the next smaller number of devices. Times are seconds from now. Devices change hands only when a slot
begins; a job's last second is whole.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023;
pkusys/ElasticFlow at 04a0109, ``scheduler.py``, ``ef_sim_allocation``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

Steps = Mapping[float, int]
"""Devices from each moment on, in the order of time."""

_INF = float("inf")


class Wish(NamedTuple):
    """What a job is to get done.

    Attributes
    ----------
    left : work to be done.
    deadline_s : infinite for a job without one.
    work_per_s : by number of devices, ascending.
    """

    left: float
    deadline_s: float
    work_per_s: Mapping[int, float]

    def most(self, room: int) -> int:
        """The largest number of devices that it can use of so many."""
        return max((count for count in self.work_per_s if count <= room), default=0)


class Plan(NamedTuple):
    """When a job has how many devices.

    Attributes
    ----------
    uses : its devices; also at moments at which others' change.
    until_s : when the slot ends in which it ends.
    done_s : when it ends.
    """

    uses: Steps
    until_s: float
    done_s: float

    @property
    def device_s(self) -> float:
        """Devices times time; what it has last counts until others' devices change next."""
        moments = [*self.uses, self.until_s]
        return sum(
            num * (end_s - start_s)
            for num, (start_s, end_s) in zip(self.uses.values(), pairwise(moments), strict=True)
            if num
        )

    @property
    def changes_s(self) -> float:
        """When its devices change for the first time; infinite if never."""
        return next((at_s for at_s in merged(self.uses) if at_s > 0), _INF)


class Planner(NamedTuple):
    """Makes plans on a cluster.

    Attributes
    ----------
    total : its devices.
    slot_s : length of a slot.
    """

    total: int
    slot_s: float

    def plan(self, wish: Wish, free: Steps, first: int = 0) -> Plan:
        """The plan of a job beside those that have devices reserved.

        Parameters
        ----------
        free : devices that are not reserved.
        first : devices that the job has until reservations change next, instead of what it needs.
        """
        due_s = self._slot_end(wish.deadline_s)
        spans = dict(cut(free, due_s)) if due_s >= 0 else dict(free)
        uses, start_s = {0.0: 0}, 0.0
        if first:
            start_s = next((at_s for at_s in free if at_s > 0), max(due_s, self.slot_s))
            done_s = math.ceil(wish.left / wish.work_per_s[first])
            if self._slot_end(done_s) <= start_s and done_s <= wish.deadline_s:
                return Plan({0.0: first}, self._slot_end(done_s), done_s)
            lasts_s = wish.deadline_s if start_s == due_s else start_s
            wish = wish._replace(left=wish.left - lasts_s * wish.work_per_s[first])
            spans[0.0] -= first
            uses = {0.0: first, start_s: 0}
        edges = [at_s for at_s in spans if start_s <= at_s < due_s]
        uses |= dict.fromkeys(edges, 0)
        lower = 0
        for share in (count for count in wish.work_per_s if count <= self.total):
            since_s = _latest(wish, spans, edges, due_s, share)
            if since_s < _INF:
                caps = (share if at_s >= since_s else lower for at_s in edges)
                return self._until_done(wish, spans, zip(edges, caps, strict=True), due_s, uses)
            lower = share
        return self._late(wish, spans, edges, max(due_s, start_s), uses, first)

    def _late(
        self, wish: Wish, spans: Steps, edges: list[float], due_s: float, uses: dict[float, int], first: int
    ) -> Plan:
        """A job that cannot end in time has all that it can use, for as long as it takes."""
        left, most = wish.left, wish.most(self.total)
        for start_s, end_s in pairwise([*edges, due_s]):
            uses[start_s] = wish.most(spans[start_s])
            lasts_s = (wish.deadline_s if end_s == due_s else end_s) - start_s
            left -= lasts_s * wish.work_per_s.get(uses[start_s], 0.0)
        after = [at_s for at_s in cut(spans, due_s) if at_s >= due_s]
        caps = [(at_s, most) for at_s in after[:-1]] + [(after[-1], first or most)]
        return self._until_done(wish._replace(left=left), cut(spans, due_s), caps, _INF, uses)

    def _until_done(
        self,
        wish: Wish,
        spans: Steps,
        caps: Iterable[tuple[float, int]],
        due_s: float,
        uses: dict[float, int],
    ) -> Plan:
        """Go forwards through spans, with at most so many devices in each, until the work is done."""
        left, steps, done_s = wish.left, list(caps), due_s
        for (start_s, cap), end_s in zip(steps, [at_s for at_s, _ in steps[1:]] + [due_s], strict=True):
            uses[start_s] = count = wish.most(min(cap, spans[start_s]))
            if not count:
                continue
            work_per_s = wish.work_per_s[count]
            lasts_s = (min(end_s, wish.deadline_s) if end_s == due_s < _INF else end_s) - start_s
            if lasts_s * work_per_s >= left or end_s == due_s:
                done_s = start_s + math.ceil(left / work_per_s)
                break
            left -= lasts_s * work_per_s
        return Plan(dict(sorted(uses.items())), self._slot_end(done_s), done_s)

    def _slot_end(self, at_s: float) -> float:
        return math.ceil(at_s / self.slot_s) * self.slot_s if at_s < _INF else _INF


def _latest(wish: Wish, spans: Steps, edges: list[float], due_s: float, share: int) -> float:
    """From when on a share, as far as that is free, gets a job done by its deadline; infinite if from never on."""
    done = 0.0
    for start_s, end_s in reversed(list(pairwise([*edges, due_s]))):
        if count := wish.most(min(share, spans[start_s])):
            done += ((wish.deadline_s if end_s == due_s else end_s) - start_s) * wish.work_per_s[count]
            if done >= wish.left:
                return start_s
    return _INF


def cut(steps: Steps, at_s: float) -> Steps:
    """The same steps, with one that begins at a moment."""
    if at_s in steps:
        return steps
    before = max((since_s for since_s in steps if since_s < at_s), default=None)
    return dict(sorted([*steps.items(), (at_s, 0 if before is None else steps[before])]))


def merged(steps: Steps) -> Steps:
    """The same, without steps that change nothing."""
    kept: dict[float, int] = {}
    last = -1
    for at_s, count in steps.items():
        if count != last:
            kept[at_s] = last = count
    return kept


def reserve(free: Steps, plan: Plan, sign: int = 1) -> Steps:
    """What is free beside a plan, too; with sign -1, without it."""
    found, room, used = dict[float, int](), 0, 0
    for at_s in sorted({*free, *plan.uses, plan.until_s} - {_INF}):
        room, used = free.get(at_s, room), plan.uses.get(at_s, used)
        found[at_s] = room - sign * used if at_s < plan.until_s else room
    return merged(found)

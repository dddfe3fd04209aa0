"""Slots in which jobs end as planned, as in the program that the authors of ElasticFlow published.

Something happens when a job comes, when one is planned to end, and when the policy wants to decide; what happens within a
slot of the last decision counts from its end on. At every decision all jobs that run lose time: little where some job has
had just these devices since the last renewal. A job ends where its plan says, even with work left, and else at the
decision at which its work is seen to be done; the end that counts is the one that the plan gave as its own. It has its
devices until it ends here, at a decision: so say spans, device time and use over time, which may go on after the end that
counts, or stop before it.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023;
pkusys/ElasticFlow at 04a0109, ``scheduler.py --schedule=ef-accessctrl --scheme=elastic`` and ``utils.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism import transitions
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.periods import Rounds
from trainyard.fleet.rounds.round_scheduler import RoundScheduler
from trainyard.fleet.snapshot import Floats, Ints

_INF = float("inf")
_LARGE = 256
"""A cluster of so many devices takes longer to start jobs."""


class PlacedWithEnds(Placed):
    """Jobs with their devices, and when each is planned to be done.

    Attributes
    ----------
    done_s : of each.
    """

    done_s: Floats


@dataclass(frozen=True)
class PlannedEnds(Rounds):
    """A decision whenever something happens, but not within ``round_s`` of the last one.

    Attributes
    ----------
    renewed_every : decisions after which all devices are new to all jobs.
    """

    round_s: float = 60.0
    renewed_every: int = 60

    def pause_s(self, num_devices: int, cluster_size: int, known: bool, renews: bool) -> float:
        """Time in which a job does no work after a decision.

        Parameters
        ----------
        cluster_size : devices of the cluster.
        known : whether some job has had just its devices since the last renewal.
        renews : whether this decision is one.
        """
        large = cluster_size >= _LARGE
        least_s = 7.0 if large else 2.0
        if known:
            return least_s
        renewal_s = (47.0 if large else 27.0) if renews else 0.0
        return least_s + renewal_s + 2.0 * (math.log2(num_devices) + 1.0)

    @property
    def only_simulated(self) -> bool:
        """True: jobs end before their work is done."""
        return True

    @property
    def own_clock(self) -> Callable[[Allocator], PlannedScheduler]:
        """Factory of the scheduler that leads a run through these rounds."""
        return partial(PlannedScheduler, self)


class PlannedScheduler(RoundScheduler):
    """The clock of a run in which jobs end as planned: it knows when, and on which devices some job was."""

    def __init__(self, slots: PlannedEnds, allocator: Allocator) -> None:
        super().__init__(slots.round_s, allocator)
        self.slots = slots
        self._last_s, self._num_before = -_INF, -1
        # By row of the jobs that run: when their slot ends, pauses counted, and when they end by their plan.
        self._until_s: dict[int, float] = {}
        self._done_s: dict[int, float] = {}
        # First device and number of all that some job had since the last renewal.
        self._known: set[tuple[int, int]] = set()
        # When the plans let some job's devices change first, if no job's slot ends before.
        self._change_s = _INF

    def next_s(self, now_s: float, event_s: float, arrival_s: float) -> float:
        """When something happens, or the slot ends; the last thing of all does not wait for that."""
        moments = {arrival_s, self._change_s, *self._until_s.values()} - {_INF}
        if not moments:
            return _INF
        if len(moments) == 1 and arrival_s == _INF:
            return min(moments)
        return max(min(moments), self._last_s + self.slots.round_s)

    def close(self, now_s: float) -> None:
        """Write down what jobs did, and end those that are done or were to be."""
        table = self.table
        for row, until_s in list(self._until_s.items()):
            worked_s = max(0.0, min(now_s, self._done_s[row]) - float(table.since_s[row]))
            left = float(table.left[row]) - worked_s * float(table.rate[row])
            transitions.settle(table.data, row, now_s)
            table.left[row] = max(0.0, left)
            if left <= 0 or until_s <= now_s:
                del self._until_s[row]
                table.turn[row] = 0.0  # however it would change its rate before
                self.allocator.finish(row, now_s, self._done_s.pop(row))
        self._last_s, self._change_s = now_s, _INF
        self._num_before += 1
        if not self.table.num_active and self._renews:
            self._known.clear()

    @property
    def _renews(self) -> bool:
        """Whether this decision is a renewal; decisions without jobs count, too."""
        return self._num_before > 0 and self._num_before % self.slots.renewed_every == 0

    def is_due(self, now_s: float, last: bool) -> bool:
        """Always: it is why the slot begins."""
        return True

    def allocation(self, rows: Ints, now_s: float, ask: Callable[[Ints], Allocation] | None) -> Allocation:
        """Return the jobs that run in the slot, and until when."""
        allocation = super().allocation(rows, now_s, ask)
        placed = allocation.given
        if not isinstance(placed, PlacedWithEnds) or placed.until_s is None:
            raise FleetError(
                "jobs can end as planned only under a policy that plans their ends, as ElasticFlowProgram does; give "
                "this one no rounds, or Rounds of a length"
            )
        running = rows[placed.order].tolist()
        self._until_s = dict(zip(running, placed.until_s.tolist(), strict=True))
        self._done_s = dict(zip(running, placed.done_s.tolist(), strict=True))
        ends_s = min(self._until_s.values(), default=_INF)
        self._change_s = allocation.ask_again_s if allocation.ask_again_s < ends_s else _INF
        return allocation._replace(
            given=placed._replace(until_s=None)
        )  # these slots end when they do here, later by the pauses

    def open(self, now_s: float) -> list[int]:
        """All that run lose time."""
        table, slots, renews = self.table, self.slots, self._renews
        for row in self._until_s:
            grant = table.grants[row]
            assert grant is not None
            held = grant.devices[0], len(grant.devices)
            pause_s = slots.pause_s(held[1], self.cluster.num_devices, held in self._known, renews)
            self._known.add(held)
            self.allocator.set_back(row, 0.0, now_s, pause_s)
            self._until_s[row] += pause_s
            table.finish_s[row] = _INF  # it ends when a slot does
        if renews:
            self._known.clear()
        return []

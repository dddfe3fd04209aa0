"""EASY backfilling: a later job may run before the first that waits if it does not delay it.

Jobs start in the order of their arrival. The first that finds no place gets a reservation: the earliest time at which it
will find one, if all that run take as long as their users allowed them. A later job that finds a place now is started if
it is over by then, or leaves the first a place then. Jobs without a limit are taken to run for ever. The first job that
could have none of the nodes of those with a reservation, of other types or of another partition, gets one, too.

It is what Slurm's backfilling does for the first job that waits; Slurm's goes on and makes reservations for others.

References
----------
D. A. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainyard.fleet.known import KnownJob
from trainyard.fleet.place.trial import TrialPlacement
from trainyard.fleet.policy import Reasons, Targets
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Wish

_INF = float("inf")


@dataclass(frozen=True)
class EasyBackfilling:
    """See the module; it takes nothing away from jobs that run, but looks at them."""

    needs: frozenset[Need] = field(default=frozenset({"limit"}), init=False)
    preempts: bool = field(default=True, init=False)
    heeds: frozenset[Wish] = field(default=ORDERED, init=False)

    def start(self, site: Site) -> None:
        """It remembers nothing."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Targets, None]:
        """Those that run, then those that start, in the order of their arrival."""
        running, waiting = np.flatnonzero(snapshot.held > 0), np.flatnonzero(snapshot.held == 0)
        plan = _Plan(snapshot, running)
        starting = [number for number in waiting.tolist() if plan.starts(number)]
        order = np.concatenate((running, np.array(starting, np.int64)))
        return Targets(order, stands=True, reasons=Reasons(np.setdiff1d(waiting, order), plan.why)), state


@dataclass(frozen=True)
class _Waiting:
    """A job that waits: what it is, and the nodes that it could have."""

    job: KnownJob
    allowed: int
    partition: int
    nodes: Ints

    def find(self, trial: TrialPlacement) -> Ints | None:
        return trial.find(self.job, self.allowed, self.partition)


@dataclass(frozen=True)
class _Stay:
    """A job on devices: until when at the latest, and how many of every node."""

    job: KnownJob
    end_s: float
    on: Ints


@dataclass
class _Reservation:
    """For a job that waits: when it will find a place, and all that is free then, with that place."""

    first: _Waiting
    start_s: float
    free: TrialPlacement

    def without(self, on: Ints, job: KnownJob) -> TrialPlacement | None:
        """What is free then if a later job lies there; None if this one has no place beside it."""
        free = self.free.copy()
        free.take(on, job)
        return None if self.first.find(free) is None else free


class _Plan:
    """Who starts now, played through job by job."""

    def __init__(self, snapshot: Snapshot, running: Ints) -> None:
        self.snapshot, self.free = snapshot, snapshot.trial()
        self.reserved: list[_Reservation] = []
        self.start_s: dict[int, float] = {}
        self.stays = [
            _Stay(snapshot.job(number), self._end_s(number), self._on(number)) for number in running.tolist()
        ]

    def _on(self, number: int) -> Ints:
        """How many devices of every node a job has."""
        grant, site = self.snapshot.grants[number], self.snapshot.site
        assert grant is not None, "it runs"
        return np.bincount(site.node_of[list(grant.devices)], minlength=len(site.hosts))

    def _end_s(self, number: int) -> float:
        """When a job is over at the latest, from now on if it waits."""
        limit_s, now_s = self.snapshot.job(number).limit_s, self.snapshot.now_s
        begin_s = float(self.snapshot.first_start_s[number])
        return max(now_s, (now_s if np.isnan(begin_s) else begin_s) + (_INF if limit_s is None else limit_s))

    def _waiting(self, number: int) -> _Waiting:
        snapshot, site = self.snapshot, self.snapshot.site
        allowed, partition = int(snapshot.allowed[number]), int(snapshot.partition[number])
        nodes = ((allowed >> site.type_of_node) & 1) * site.members[partition]
        return _Waiting(snapshot.job(number), allowed, partition, nodes)

    def starts(self, number: int) -> bool:
        """Whether a job that waits is to start now; if not, it may get a reservation."""
        waiting, end_s = self._waiting(number), self._end_s(number)
        before = [each for each in self.reserved if (each.first.nodes & waiting.nodes).any()]
        on = waiting.find(self.free)
        if on is None:
            if not before:
                self._reserve(number, waiting)
            return False
        late = [each for each in before if end_s > each.start_s]
        left = [each.without(on, waiting.job) for each in late]
        if None in left:
            return False
        for each, free in zip(late, left, strict=True):
            assert free is not None
            each.free = free
        self.free.take(on, waiting.job)
        self.stays.append(_Stay(waiting.job, end_s, on))
        return True

    def _reserve(self, number: int, waiting: _Waiting) -> None:
        free, start_s = self.free.copy(), _INF
        for stay in sorted(self.stays, key=lambda stay: stay.end_s):
            free.give(stay.on, stay.job)
            if waiting.find(free) is not None:
                start_s = stay.end_s
                break
        self.start_s[number] = start_s
        self.reserved.append(_Reservation(waiting, start_s, free))

    def why(self, number: int) -> str:
        """Why a job waits."""
        if number not in self.start_s:
            return "it finds no place, or would delay the first job that waits"
        in_s = self.start_s[number] - self.snapshot.now_s
        when = f"in {in_s:.0f} s at the latest" if in_s < _INF else "when jobs without a limit have ended"
        return f"it is the first that finds no place; one is kept for it {when}"

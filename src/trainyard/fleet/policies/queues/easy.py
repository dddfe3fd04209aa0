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

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.known import KnownJob
from trainyard.fleet.place.auxiliary import needs_of
from trainyard.fleet.place.trial import TrialPlacement
from trainyard.fleet.snapshot import Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

_INF = float("inf")


@dataclass(frozen=True)
class EasyBackfilling:
    """See the module; it takes nothing away from jobs that run, but looks at them.

    Attributes
    ----------
    one_queue : whether the first that waits is the only one with a reservation, whichever nodes others could have.
    """

    one_queue: bool = False
    needs: frozenset[Need] = field(default=frozenset({"limit"}), init=False)
    preempts: bool = field(default=True, init=False)

    @property
    def traits(self) -> Traits:
        """The first that waits may hold up others."""
        return Traits(holds_up="all" if self.one_queue else "same nodes", supports=ORDERED)

    def start(self, cluster: Cluster) -> None:
        """Return the state, which is always empty."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Choose the running jobs, then the starting ones in the order of their arrival."""
        backfill = _Backfill(snapshot, self.one_queue)
        starting = [number for number in backfill.candidates() if backfill.starts(number)]
        order = np.concatenate((backfill.running, np.array(starting, np.int64)))
        reasons = Reasons(np.setdiff1d(backfill.waiting, order), backfill.why)
        return Allocation(Queue(order), stands=True, reasons=reasons), state


@dataclass(frozen=True)
class _Waiting:
    """A job that waits: what it is, and the nodes that it could have."""

    job: KnownJob
    allowed: int
    partition: int
    nodes: Ints

    @property
    def asks(self) -> tuple[object, ...]:
        """Jobs for which it is the same find the same places."""
        return self.job.num_devices, self.allowed, self.partition, needs_of(self.job), self.job.gang

    def find(self, trial: TrialPlacement) -> Ints | None:
        return trial.find(self.job, self.allowed, self.partition)


@dataclass
class _Reservation:
    """Reservation of a waiting job: when it will find a place, and all that is free then, with that place."""

    first: _Waiting
    start_s: float
    free: TrialPlacement

    def without(self, on: Ints, job: KnownJob) -> TrialPlacement | None:
        """Return the devices that are free then if a later job has some; None if this job has no place beside it."""
        free = self.free.copy()
        free.take(on, job)
        return None if self.first.find(free) is None else free


class _Backfill:
    """The jobs that start now, played through job by job.

    Attributes
    ----------
    running, waiting : numbers of jobs.
    """

    def __init__(self, snapshot: Snapshot, one_queue: bool) -> None:
        self.running, self.waiting = np.flatnonzero(snapshot.held > 0), np.flatnonzero(snapshot.held == 0)
        self._snapshot, self._free, self._one_queue = snapshot, snapshot.trial(), one_queue
        self._reserved: list[_Reservation] = []
        self._start_s: dict[int, float] = {}
        begin_s = np.where(snapshot.was_started, snapshot.first_start_s, snapshot.now_s)
        # When every job is over at the latest, if it starts now or runs.
        self._end_s = np.maximum(snapshot.now_s, begin_s + snapshot.limit_s)
        # How many devices of every node those have that start.
        self._started: dict[int, Ints] = {}
        # By what jobs ask for: one that is over no earlier than this finds no place. What is free only becomes less.
        self._failed: dict[tuple[object, ...], float] = {}

    def candidates(self) -> list[int]:
        """Jobs that may start or get a reservation: all that fit by number, and the first of each kind that does not."""
        allowed, partition = self._snapshot.allowed[self.waiting], self._snapshot.partition[self.waiting]
        fits = self._snapshot.num_devices[self.waiting] <= self._free.most_free(allowed)
        kinds = np.stack((allowed, partition))[:, ~fits]
        firsts = np.unique(kinds, axis=1, return_index=True)[1]
        fits[np.flatnonzero(~fits)[firsts]] = True
        return [int(number) for number in self.waiting[fits]]

    def _on(self, number: int) -> Ints:
        """Count a job's devices on each node."""
        if number in self._started:
            return self._started[number]
        grant, cluster = self._snapshot.grant(number), self._snapshot.cluster
        assert grant is not None, "it runs"
        return np.bincount(cluster.node_of[list(grant.devices)], minlength=len(cluster.nodes))

    def _waiting(self, number: int) -> _Waiting:
        snapshot, cluster = self._snapshot, self._snapshot.cluster
        allowed, partition = int(snapshot.allowed[number]), int(snapshot.partition[number])
        nodes = ((allowed >> cluster.type_of_node) & 1) * cluster.members[partition]
        return _Waiting(snapshot.job(number), allowed, partition, nodes)

    def starts(self, number: int) -> bool:
        """Whether a job that waits is to start now; if not, it may get a reservation."""
        waiting, end_s = self._waiting(number), float(self._end_s[number])
        failed = self._failed.get(waiting.asks)
        if failed is not None and end_s >= failed:  # of one without a limit, the end is infinite
            return False
        before = [
            each for each in self._reserved if self._one_queue or (each.first.nodes & waiting.nodes).any()
        ]
        on = waiting.find(self._free)
        if on is None:
            self._failed[waiting.asks] = -_INF
            if not before:
                self._reserve(number, waiting)
            return False
        late = [each for each in before if end_s > each.start_s]
        left = [each.without(on, waiting.job) for each in late]
        if None in left:
            self._failed[waiting.asks] = end_s
            return False
        for each, free in zip(late, left, strict=True):
            assert free is not None
            each.free = free
        self._free.take(on, waiting.job)
        self._started[number] = on
        return True

    def _reserve(self, number: int, waiting: _Waiting) -> None:
        free, start_s = self._free.copy(), _INF
        others = np.concatenate((self.running, np.array(list(self._started), np.int64)))
        for other in others[np.argsort(self._end_s[others], kind="stable")].tolist():
            free.give(self._on(other), self._snapshot.job(other))
            if waiting.find(free) is not None:
                start_s = float(self._end_s[other])
                break
        self._start_s[number] = start_s
        self._reserved.append(_Reservation(waiting, start_s, free))

    def why(self, number: int) -> str:
        """Why a job waits."""
        if number not in self._start_s:
            return "it finds no place, or would delay the first job that waits"
        in_s = self._start_s[number] - self._snapshot.now_s
        when = f"in {in_s:.0f} s at the latest" if in_s < _INF else "when jobs without a limit have ended"
        return f"it is the first that finds no place; one is kept for it {when}"

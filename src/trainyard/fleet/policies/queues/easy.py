"""EASY backfilling: a later job may start before the first waiting job if it does not delay that job.

Jobs start in the order of the queue. The first job that does not fit gets a reservation: the earliest time at which it
will fit if all running jobs take their whole time limits. A later job that fits now starts if it ends before the
reservation, or if the reserved job still fits beside it. A job without a time limit counts as endless. Where types of
devices or partitions share no nodes, each such group of nodes has its own first job with a reservation.

Slurm's backfilling does the same for the first waiting job, and goes on to make reservations for others.

References
----------
D. A. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
A. W. Mu'alem and D. G. Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the
IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.fleet.place.trial import ALL, TrialPlacement
from trainyard.fleet.policies.queues.backfill_jobs import QueuedJob, QueuedJobs
from trainyard.fleet.snapshot import Ints

__all__ = ["EasyPlan"]

_INF = float("inf")


@dataclass
class _Reservation:
    """Reservation of a waiting job: when it will fit, and the devices that are free then, its own included."""

    first: QueuedJob
    start_s: float
    free: TrialPlacement
    open_nodes: Ints

    def without(self, on: Ints, other: QueuedJob) -> TrialPlacement | None:
        """Return the devices free at the reservation beside a later job; None if the reserved job would not fit."""
        free, first = self.free.copy(), self.first
        free.take(on, other.job)
        place = free.find(first.job, first.allowed, first.partition, self.open_nodes)
        return None if place is None else free


class EasyPlan:
    """The jobs that start now, tried in the order of the queue.

    Attributes
    ----------
    starting : devices of every node for each job that starts, by number, in the order in which they start.
    """

    def __init__(self, jobs: QueuedJobs, one_queue: bool) -> None:
        self.starting: dict[int, Ints] = {}
        self._jobs, self._free, self._one_queue = jobs, jobs.snapshot.trial(), one_queue
        self._reserved: list[_Reservation] = []
        self._start_s: dict[int, float] = {}
        # By what jobs ask for: a job that ends at this time or later cannot start. Free devices only become fewer.
        self._failed: dict[tuple[object, ...], float] = {}
        for number in self._candidates():
            self._try(jobs.queued(number))

    def _candidates(self) -> list[int]:
        """Return jobs that fit by number, which may start, and the first other of each kind, for a reservation."""
        snapshot, waiting = self._jobs.snapshot, self._jobs.waiting
        allowed, partition = snapshot.allowed[waiting], snapshot.partition[waiting]
        fits = snapshot.num_devices[waiting] <= self._free.most_free(allowed)
        kinds = np.stack((allowed, partition))[:, ~fits]
        firsts = np.unique(kinds, axis=1, return_index=True)[1]
        fits[np.flatnonzero(~fits)[firsts]] = True
        return [int(number) for number in waiting[fits]]

    def _try(self, job: QueuedJob) -> None:
        """Start a waiting job if it may start now, else reserve devices for it if it is the first."""
        end_s, open_nodes = float(self._jobs.end_s[job.number]), self._jobs.open_nodes(job, self._jobs.now_s)
        key = *job.place_key, open_nodes.tobytes()
        failed = self._failed.get(key)
        if failed is not None and end_s >= failed:  # of one without a limit, the end is infinite
            return
        before = [each for each in self._reserved if self._one_queue or (each.first.nodes & job.nodes).any()]
        on = self._free.find(job.job, job.allowed, job.partition, open_nodes)
        if on is None:
            self._failed[key] = -_INF
            if not before:
                self._reserve(job)
            return
        late = [each for each in before if end_s > each.start_s]
        left = [each.without(on, job) for each in late]
        if None in left:
            self._failed[key] = end_s
            return
        for each, free in zip(late, left, strict=True):
            assert free is not None
            each.free = free
        self._free.take(on, job.job)
        self.starting[job.number] = on

    def _reserve(self, first: QueuedJob) -> None:
        """Reserve the earliest time at which the job fits, as running jobs and reservations of nodes end."""
        jobs, free = self._jobs, self._free.copy()
        ending: dict[float, list[int]] = {each.until_s: [] for each in jobs.reservations}
        for number in (*jobs.running.tolist(), *self.starting):
            ending.setdefault(float(jobs.end_s[number]), []).append(number)
        start_s, open_nodes = _INF, ALL
        for moment_s in sorted(ending.keys() - {_INF}):
            for number in ending[moment_s]:
                on = self.starting[number] if number in self.starting else jobs.on_nodes(number)
                free.give(on, jobs.snapshot.job(number))
            open_nodes = jobs.open_nodes(first, moment_s)
            if free.find(first.job, first.allowed, first.partition, open_nodes) is not None:
                start_s = moment_s
                break
        self._start_s[first.number] = start_s
        self._reserved.append(_Reservation(first, start_s, free, open_nodes))

    def why(self, number: int) -> str:
        """Why a job waits."""
        if number not in self._start_s:
            return "no place is free for it, or it would delay the first waiting job"
        in_s = self._start_s[number] - self._jobs.now_s
        when = (
            f"in {in_s:.0f} s at the latest" if in_s < _INF else "when jobs without a time limit have ended"
        )
        return f"it is the first that does not fit; devices are reserved for it: it starts {when}"

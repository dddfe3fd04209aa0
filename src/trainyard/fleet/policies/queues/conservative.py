"""Conservative backfilling: every waiting job has a reservation; a later job may start early if it delays none of them.

In the order of the queue, each job reserves the earliest time and place that the jobs before it leave free, if all jobs
take their whole time limits. Jobs whose reserved time is now start. A job without a time limit counts as endless: it
starts only on devices that nobody has reserved, and a job that waits for its devices has no reservation.

Reservations are made anew at every decision, as in Slurm. A job is never delayed by a job behind it in the queue. It may
start later than it was told if another job ends early and a job before it moves forward.

References
----------
D. G. Feitelson and A. Mu'alem Weil, "Utilization and Predictability in Scheduling the IBM SP2 with Backfilling",
IPPS 1998.
A. W. Mu'alem and D. G. Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the
IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from trainyard.fleet.policies.queues.availability import Availability, Release
from trainyard.fleet.policies.queues.backfill_jobs import QueuedJob, QueuedJobs
from trainyard.fleet.snapshot import Ints

__all__ = ["ConservativePlan"]

_INF = float("inf")


class _Earlier(NamedTuple):
    """The earliest start found for a job: a job that asks for the same, for as long or longer, cannot start earlier."""

    limit_s: float
    start_s: float
    is_now: bool


class ConservativePlan:
    """The jobs that start now, found by planning the queue job by job.

    Attributes
    ----------
    starting : devices of every node for each job that starts, by number, in the order in which they start.
    """

    def __init__(self, jobs: QueuedJobs, max_jobs: int | None) -> None:
        self.starting: dict[int, Ints] = {}
        self._jobs, self._free = jobs, jobs.snapshot.trial()
        self._start_s: dict[int, float] = {}
        self._earlier: dict[tuple[object, ...], _Earlier] = {}
        self._fits_now: dict[tuple[object, ...], bool] = {}
        if self._free.most_free(np.array([-1]))[0] == 0:
            return
        queue = [jobs.queued(int(number)) for number in jobs.waiting[:max_jobs]]
        last = self._last_that_fits(queue)
        for place, job in enumerate(queue):
            # Behind the last job that can start now, reservations change nothing now.
            if place > last:
                break
            if self._plan(job):
                last = self._last_that_fits(queue[: last + 1])

    def _last_that_fits(self, queue: list[QueuedJob]) -> int:
        """Return the position in the queue of the last job that fits into the free devices, or -1."""
        for place in range(len(queue) - 1, -1, -1):
            if self._fits(queue[place]):
                return place
        return -1

    def _fits(self, job: QueuedJob) -> bool:
        fits = job.number not in self.starting and self._fits_now.get(job.place_key)
        if fits is None:
            fits = self._free.find(job.job, job.allowed, job.partition) is not None
            self._fits_now[job.place_key] = fits
        return fits

    @cached_property
    def _over_time(self) -> Availability:
        """Free devices over time, as running and starting jobs end; only computed if a job waits."""
        jobs = self._jobs
        on_of = {number: jobs.on_nodes(number) for number in jobs.running.tolist()} | self.starting
        releases = (
            Release(float(jobs.end_s[number]), on, jobs.snapshot.job(number)) for number, on in on_of.items()
        )
        return Availability(self._free, jobs.now_s, [each.until_s for each in jobs.reservations], releases)

    def _plan(self, job: QueuedJob) -> bool:
        """Reserve the earliest time and place of a job; return whether it starts now."""
        if not self._start_s and self._fits(job):
            on = self._free.find(
                job.job, job.allowed, job.partition, self._jobs.open_nodes(job, self._jobs.now_s)
            )
            if on is not None:  # no job before it waits
                self._start(job, on)
                return True
        earlier = self._earlier.get(job.place_key)
        if earlier is None or earlier.limit_s > job.limit_s:
            earlier = _Earlier(0.0, self._jobs.now_s, self._fits(job))
        found = self._over_time.earliest(job, self._jobs, earlier.start_s, earlier.is_now)
        if found is None:
            self._start_s[job.number] = _INF
            return False
        self._earlier[job.place_key] = _Earlier(job.limit_s, found.start_s, found.is_now)
        self._over_time.occupy(found, job.limit_s, job.job)
        if found.is_now:
            self._start(job, found.on)
        else:
            self._start_s[job.number] = found.start_s
        return found.is_now

    def _start(self, job: QueuedJob, on: Ints) -> None:
        self._free.take(on, job.job)
        self.starting[job.number] = on
        self._fits_now = {asks: fits for asks, fits in self._fits_now.items() if not fits}

    def why(self, number: int) -> str:
        """Return why a job waits."""
        start_s = self._start_s.get(number)
        if start_s is None:
            return "no place is free for it, and jobs before it are waiting"
        if start_s == _INF:
            return "it starts when jobs without a time limit have ended"
        return f"devices are reserved for it: it starts in {start_s - self._jobs.now_s:.0f} s at the latest"

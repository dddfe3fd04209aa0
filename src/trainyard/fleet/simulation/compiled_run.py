"""A run in compiled code: events and decisions of jobs and policies that allow it.

What happens is what `fleet/simulate.py` lets happen, bit for bit, many times as fast. Here the loop is given the jobs
that come, and its notes are taken; where it cannot go on, everything stands as if it had not been there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.fleet.compiled_policy import CompiledPolicy, compiled_policy_of
from trainyard.fleet.known import KnownJob
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.job_table import note_arrival, rows_for
from trainyard.fleet.policy import Policy
from trainyard.fleet.simulation import loop
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.simulation.ends import Ends
from trainyard.fleet.snapshot import Ints
from trainyard.fleet.workload.job import Job, rate_anywhere

_INF = float("inf")
# Jobs that are looked at before they come, and notes that are taken at once.
_NUM_COMING, _NUM_NOTES = 1024, 4096


@dataclass
class Clock:
    """How far a simulation is.

    Attributes
    ----------
    now_s : the last moment.
    wake_s : when the policy wants to decide, if nothing happens before.
    stands : whether its last decision holds for as long as nobody waits.
    free_when_blocked : devices that were free after the last decision, if a job found no place that blocks all later
        ones; else -1.
    num_moments : moments that are over.
    state : of the policy.
    """

    state: Any
    now_s: float = 0.0
    wake_s: float = _INF
    stands: bool = False
    free_when_blocked: int = -1
    num_moments: int = 0


def compiled_run_of(
    policy: Policy, allocator: Allocator, arrivals: Arrivals, ends: Ends
) -> CompiledRun | None:
    """A run of what is there now in compiled code; None where it needs more than compiled code knows of.

    Where nodes or jobs may fail, or decisions are made in rounds, it is not to be asked.
    """
    compiled, books = compiled_policy_of(policy), allocator.books
    if compiled is None or not allocator.is_plain or np.isnan(books.gang_rate[books.active]).any():
        return None
    return CompiledRun(policy, compiled, allocator, arrivals, ends)


class CompiledRun:
    """Takes a simulation over, and gives it back."""

    def __init__(
        self, policy: Policy, compiled: CompiledPolicy, allocator: Allocator, arrivals: Arrivals, ends: Ends
    ) -> None:
        self.policy, self.compiled, self.allocator = policy, compiled, allocator
        self.arrivals, self.ends = arrivals, ends
        self.books, self.notes = allocator.books, allocator.notes
        rows = self.books.active.tolist()
        # By serial number, those that are there or will be.
        self._jobs = {int(self.books.serial[row]): self.books.job(row) for row in rows}
        for row in rows:
            self.books.mark[row] = self._mark(self.books.job(row))
        self._coming = rows_for(0)
        self._num_let_in = 0
        self._ended = np.zeros((loop.NUM_NOTED, _NUM_NOTES))
        self._used = np.zeros((3, 2 * _NUM_NOTES))
        self._moment_s = _INF

    def run(self, clock: Clock, look_every: int) -> int:
        """Go on for as long as possible, or until it is time to look whether anything goes on.

        Returns
        -------
        Why it ended: `loop.COMING` if the next job needs more than compiled code, or there is none; `LOOK`, `STUCK` or
        `EARLY`.
        """
        self._read_ahead()
        while True:
            why = self._run(clock, look_every)
            if why == loop.COMING and not self._read_ahead():
                # The moment may not be over; then it is the next one.
                clock.wake_s = min(clock.wake_s, self._moment_s)
                return why
            if why == loop.ROWS:
                self.books.grow()
            elif why == loop.DEVICES:
                self.books.grants.room(len(self.allocator.free.kind_of), self.books.active)
            elif why not in (loop.COMING, loop.NOTES):
                return why

    def _mark(self, job: Job) -> float:
        mark = self.compiled.mark
        return float(mark(KnownJob(job, self.policy.needs))) if mark is not None else 0.0

    def _read_ahead(self) -> bool:
        """Look at the jobs that come next, if all that were looked at have come; whether there are any."""
        if self._num_let_in < len(self._coming):
            return True
        self._coming, num = rows_for(_NUM_COMING), 0
        while num < _NUM_COMING and (job := self.arrivals.job) is not None:
            if np.isnan(rate_anywhere(job)) or job.gang:
                break
            self._jobs[self.books.num_entered + num] = job
            partition = self.allocator.site.partition_index(job.virtual_cluster)
            note_arrival(self._coming[num], job, self.arrivals.bits, partition, self._mark(job))
            num += 1
            self.arrivals.read_on()
        self._num_let_in, self._coming = 0, self._coming[:num]
        return num > 0

    def _run(self, clock: Clock, look_every: int) -> int:
        """Enter the loop once."""
        books, allocator, free, ends = self.books, self.allocator, self.allocator.free, self.ends
        ends.make_room()
        books.grants.forget_all()
        unused = np.zeros(len(books.jobs), np.int64)
        unused[: len(books.unused)] = books.unused
        tables = loop.Tables(
            books.data, books.rows, unused, books.grants.devices, free.kind_of, free.tables,
            ends.when_s, ends.heap, ends.place, self._coming, self._ended, *self._used,
        )  # fmt: skip
        compiled, costs = self.compiled, allocator.costs
        terms = loop.Terms(
            self.policy.preempts, compiled.backfill, compiled.one_queue, compiled.stands, compiled.blocks, allocator.how,
            allocator.site.devices_of_type, (costs.start_s, costs.restart_s), look_every,
        )  # fmt: skip
        counts, fair = np.array(self._counts(clock), np.int64), allocator.fair
        times = np.array(loop.Times(clock.now_s, self._moment_s, clock.wake_s, fair.counted_s, fair.job_s))
        num_coming, is_last = len(self._coming), self.arrivals.job is None
        why, clock.state = loop.run(
            compiled.decide, compiled.rules, clock.state, terms, tables, counts, times, num_coming, is_last
        )
        self._give_back(clock, unused, loop.Counts(*counts.tolist()), loop.Times(*times.tolist()))
        return int(why)

    def _counts(self, clock: Clock) -> loop.Counts:
        books, allocator, notes = self.books, self.allocator, self.notes
        return loop.Counts(
            active=books.num_active,
            entered=books.num_entered,
            decided=books.num_decided,
            unused=len(books.unused),
            ends=self.ends.size,
            waiting=allocator.num_waiting,
            free=allocator.free.total,
            free_when_blocked=clock.free_when_blocked,
            stands=int(clock.stands),
            decisions=notes.num_decisions,
            moments=clock.num_moments,
            let_in=self._num_let_in,
            written=books.grants.num_written,
            ended=0,
            used=notes.last_use(self._used),
        )

    def _give_back(self, clock: Clock, unused: Ints, counts: loop.Counts, times: loop.Times) -> None:
        """Write down everywhere how things stand."""
        books, allocator, fair = self.books, self.allocator, self.allocator.fair
        books.num_active, books.num_entered, books.num_decided = counts.active, counts.entered, counts.decided
        books.unused = unused[: counts.unused].tolist()
        books.grants.num_written, self.ends.size = counts.written, counts.ends
        allocator.num_waiting, allocator.free.total = counts.waiting, counts.free
        clock.free_when_blocked, clock.stands = counts.free_when_blocked, bool(counts.stands)
        clock.num_moments, self.notes.num_decisions = counts.moments, counts.decisions
        self._num_let_in = counts.let_in
        clock.now_s, self._moment_s, clock.wake_s, fair.counted_s, fair.job_s = times
        self._take_notes(counts.ended, counts.used)
        books.jobs = [None] * len(books.jobs)
        for row in books.active.tolist():
            books.jobs[row] = self._jobs[int(books.serial[row])]

    def _take_notes(self, num_ended: int, num_used: int) -> None:
        """Of jobs that ended, and of devices in use."""
        self.notes.uses(self._used[:, :num_used])
        for note in self._ended[:, :num_ended].T.tolist():
            serial, allowed, *times, job_s = note
            job = self._jobs.pop(int(serial))
            end_s = times[loop.END_S - loop.END_FIRST_START_S]
            self.notes.ended(job, *times, *self.allocator.fair.times_s(job, int(allowed), job_s, end_s))

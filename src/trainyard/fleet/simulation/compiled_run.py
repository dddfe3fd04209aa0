"""A run in compiled code: events and decisions of jobs and policies that allow it.

What happens is what `simulator.py` lets happen, bit for bit, many times as fast. Here the loop is given the jobs that
come, and its notes are taken; where it cannot go on, everything stands as if it had not been there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.compiling import records
from trainyard.engine.agenda import Agenda
from trainyard.fleet.compiled_policy import CompiledPolicy
from trainyard.fleet.jobs.job_table import ArrivalRows, rows_for
from trainyard.fleet.known import KnownJob
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.domains import SchedulingDomain
from trainyard.fleet.policy import Policy
from trainyard.fleet.simulation import loop
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job, rate_anywhere

_INF = float("inf")
# Jobs that are looked at before they come.
_NUM_COMING = 1024


@dataclass
class Clock:
    """How far a simulation is.

    Attributes
    ----------
    now_s : the last moment.
    num_moments : moments that are over.
    """

    now_s: float = 0.0
    num_moments: int = 0


def compiled_run_of(
    policy: Policy, allocator: Allocator, arrivals: Arrivals, ends: Agenda, domain: SchedulingDomain
) -> CompiledRun | None:
    """A run of what is there now in compiled code; None where it needs more than compiled code knows of.

    Where nodes or jobs may fail, decisions are made in rounds, or partitions are scheduled apart, it is not to be asked.
    """
    compiled, table = traits_of(policy).compiled, allocator.table
    if compiled is None or not allocator.is_plain or np.isnan(table.gang_rate[table.active]).any():
        return None
    return CompiledRun(policy, compiled, allocator, arrivals, ends, domain)


class CompiledRun:
    """Takes a simulation over, and gives it back."""

    def __init__(
        self,
        policy: Policy,
        compiled: CompiledPolicy,
        allocator: Allocator,
        arrivals: Arrivals,
        ends: Agenda,
        domain: SchedulingDomain,
    ) -> None:
        self.policy, self.compiled, self.allocator, self.domain = policy, compiled, allocator, domain
        self.arrivals, self.ends = arrivals, ends
        self.table, self.notes = allocator.table, allocator.notes
        rows = self.table.active.tolist()
        # By serial number, those that are there or will be.
        self._jobs = {int(self.table.serial[row]): self.table.job(row) for row in rows}
        for row in rows:
            self.table.mark[row] = self._mark(self.table.job(row))
        self._coming, self._num_came = rows_for(0), 0
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
                self.domain.wake_s = min(self.domain.wake_s, self._moment_s)
                return why
            if why == loop.ROWS:
                self.allocator.grow()
            elif why not in (loop.COMING, loop.NOTES, loop.DEVICES):
                return why

    @property
    def jobs_may_come(self) -> bool:
        """Whether more jobs come."""
        return self._num_came < len(self._coming) or self.arrivals.job is not None

    def _mark(self, job: Job) -> float:
        mark = self.compiled.mark
        return float(mark(KnownJob(job, self.policy.needs))) if mark is not None else 0.0

    def _read_ahead(self) -> bool:
        """Look at the jobs that come next, if all that were looked at have come; whether there are any."""
        if self._num_came < len(self._coming):
            return True
        coming, num = ArrivalRows(_NUM_COMING), 0
        while num < _NUM_COMING and (job := self.arrivals.job) is not None:
            rate = rate_anywhere(job)
            if np.isnan(rate) or job.gang or job.ran_s:
                break
            self._jobs[self.table.num_entered + num] = job
            partition = self.allocator.cluster.partition_index(job.virtual_cluster)
            coming.note(num, job, rate, self.arrivals.bits, partition, self._mark(job))
            num += 1
            self.arrivals.read_on()
        self._num_came, self._coming = 0, coming.rows[:num]
        return num > 0

    def _run(self, clock: Clock, look_every: int) -> int:
        """Enter the loop once."""
        allocator, ends, notes, compiled = self.allocator, self.ends, self.notes, self.compiled
        domain = self.domain
        ends.make_room(len(self.table.data))
        self.table.grants.forget_all()
        times = records(1, loop.CLOCK)
        times[0] = (
            clock.now_s, self._moment_s, domain.wake_s, domain.free_when_blocked, domain.stands, notes.num_decisions,
            clock.num_moments, self._num_came, ends.size,
        )  # fmt: skip
        state = allocator.state(num_given=len(allocator.cluster.node_of))
        tables = loop.Tables(state, ends.when_s, ends.heap, ends.place, self._coming, times)
        queue_rules, is_last = (
            allocator.queue_rules(compiled.backfill, compiled.one_queue),
            self.arrivals.job is None,
        )
        rules = loop.RunRules(queue_rules, compiled.stands, compiled.blocks, look_every, is_last)
        why, domain.state = loop.run(compiled.decide, compiled.options, domain.state, rules, tables)
        (
            clock.now_s, self._moment_s, domain.wake_s, domain.free_when_blocked, domain.stands, notes.num_decisions,
            clock.num_moments, self._num_came, ends.size,
        ) = times[0].tolist()  # fmt: skip
        self._look_at_jobs()
        return int(why)

    def _look_at_jobs(self) -> None:
        """Write down which have ended, and which rows the others have."""
        for note in self.allocator.pending.take_ended():
            self.allocator.pending.write_end(self._jobs.pop(note.serial), note)
        table = self.table
        table.jobs = [None] * len(table.jobs)
        for row in table.active.tolist():
            table.jobs[row] = self._jobs[int(table.serial[row])]

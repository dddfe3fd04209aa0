"""Arrivals and ends of jobs between decisions, in compiled code, for any policy.

Python is called only when the policy decides; arrivals and ends in between update the job table in compiled code. The
results equal those of `simulator.py` bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.compiling import records
from trainyard.engine.agenda import Agenda
from trainyard.fleet.jobs.job_table import ArrivalRows, rows_for
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.domains import SchedulingDomain
from trainyard.fleet.mechanism.transitions import FleetState
from trainyard.fleet.simulation import loop
from trainyard.fleet.simulation.arrivals import Arrivals
from trainyard.fleet.workload.job import Job, rate_anywhere

_INF = float("inf")
# Jobs that are read ahead of their arrival.
_NUM_COMING = 1024


@dataclass
class Clock:
    """Progress of a simulation.

    Attributes
    ----------
    now_s : the last moment.
    num_moments : number of past moments.
    """

    now_s: float = 0.0
    num_moments: int = 0


class CompiledEvents:
    """Lets jobs of a run arrive and end in compiled code, which has the next arrivals in a table.

    Parameters
    ----------
    look_every : moments between two checks that the run makes progress.
    """

    def __init__(
        self,
        allocator: Allocator,
        arrivals: Arrivals,
        ends: Agenda,
        domain: SchedulingDomain,
        look_every: int,
    ) -> None:
        self.allocator, self.table, self.notes = allocator, allocator.table, allocator.notes
        self.arrivals, self.ends, self.domain = arrivals, ends, domain
        self.rules = loop.EventRules(allocator.preempts, look_every)
        self._times = records(1, loop.CLOCK)
        self._moment_s = _INF
        self._jobs: list[Job] = []
        self._coming, self._num_came = rows_for(0), 0
        self._tables: loop.Tables | None = None

    @property
    def jobs_may_come(self) -> bool:
        """Whether more jobs will arrive."""
        return self._num_came < len(self._coming) or self.arrivals.job is not None

    def next(self, clock: Clock) -> int:
        """Advance to the next decision of the policy, or until only Python can continue.

        Returns
        -------
        The reason to stop: `loop.DECIDE`, `COMING` if all jobs have ended, `RATE`, `STUCK` or `LOOK`.
        """
        lease_s = self.allocator.leases.next_s()
        while True:
            tables = self._begin(clock, self.allocator.state())
            why = int(loop.until_decision(self.rules, self.arrivals.job is None, lease_s, tables))
            self._take(clock)
            if why == loop.DECIDE:
                self._moment_s = _INF
            if why == loop.ROWS:
                self.allocator.grow()
            elif why != loop.NOTES and (why != loop.COMING or not self._read_ahead()):
                return why

    def leave(self) -> None:
        """Leave the rest to Python, which continues with a moment that has begun."""
        self.domain.wake_s = min(self.domain.wake_s, self._moment_s)

    def _read_ahead(self) -> bool:
        """Read the next jobs if all that were read have arrived; return whether there are any."""
        if self._num_came < len(self._coming):
            return True
        coming = ArrivalRows(_NUM_COMING)
        self._jobs.clear()
        while len(self._jobs) < _NUM_COMING and (job := self.arrivals.job) is not None:
            rate = rate_anywhere(job)
            if self._is_for_python(job, rate):
                break
            if self.arrivals.is_short_enough():
                self.allocator.feasibility.note(job)
                partition = self.allocator.cluster.partition_index(job.virtual_cluster)
                coming.note(len(self._jobs), job, rate, self.arrivals.bits, partition, self._mark(job))
                self._jobs.append(job)
            self.arrivals.read_on()
        self._num_came, self._coming, self._tables = 0, coming.rows[: len(self._jobs)], None
        return len(self._jobs) > 0

    def _is_for_python(self, job: Job, rate: float) -> bool:
        """Return whether a job must arrive in Python.

        Parameters
        ----------
        rate : its `rate_anywhere`.
        """
        return job.ran_s > 0

    def _mark(self, job: Job) -> float:
        """Return the value that a compiled policy keeps of a job; 0 without one."""
        return 0.0

    def _begin(self, clock: Clock, state: FleetState) -> loop.Tables:
        """Write the progress of the run into the tables of compiled code, and return them."""
        ends, domain = self.ends, self.domain
        ends.make_room(len(self.table.data))
        self._times[0] = (
            clock.now_s, self._moment_s, domain.wake_s, domain.free_when_blocked, domain.stands,
            self.notes.num_decisions, clock.num_moments, self._num_came, ends.size,
        )  # fmt: skip
        if self._tables is None or self._tables.state is not state or self._tables.when_s is not ends.when_s:
            came = np.zeros(len(self._coming), np.int64)
            self._tables = loop.Tables(
                state, ends.when_s, ends.heap, ends.place, self._coming, came, self._times
            )
        return self._tables

    def _take(self, clock: Clock) -> None:
        """Read back the progress of compiled code, ended jobs, and the rows of arrived jobs."""
        domain, first = self.domain, self._num_came
        (
            clock.now_s, self._moment_s, domain.wake_s, domain.free_when_blocked, domain.stands,
            self.notes.num_decisions, clock.num_moments, self._num_came, self.ends.size,
        ) = self._times[0].tolist()  # fmt: skip
        # The serial number of the first job that arrived in this call.
        entered = self.table.num_entered - (self._num_came - first)
        ended = [
            (
                note,
                self._jobs[first + note.serial - entered]
                if note.serial >= entered
                else self.table.job(note.row),
            )
            for note in self.allocator.pending.take_ended()
        ]
        assert self._tables is not None
        for number, row in enumerate(self._tables.came[first : self._num_came].tolist(), first):
            self.table.take_out(row)
            self.table.jobs[row] = self._jobs[number]
        for note, job in ended:
            self.allocator.note_end(job, note)

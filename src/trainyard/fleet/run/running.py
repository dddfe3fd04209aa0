"""The jobs that a backend is to run: started when they may be, asked how far they are, and told to leave."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainyard.fleet.errors import one_line
from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.run.backend import Backend, Progress
from trainyard.fleet.run.departures import Departures
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.fault import is_infrastructure_fault
from trainyard.fleet.run.past import Past
from trainyard.fleet.run.patience import Failures, Patience
from trainyard.fleet.workload.job import Grant, Job

__all__ = ["Running"]


class Running:
    """What a backend has been told to run, or is to be told as soon as that is possible.

    Parameters
    ----------
    tell : hears that a job is to leave before the backend does.

    Attributes
    ----------
    grants : devices of the jobs, by row of the table.
    waiting : rows of those that are not started yet: they are still somewhere else, or it is too early.
    trouble : what all jobs need and is not there now; whoever has read it empties it.
    """

    def __init__(self, backend: Backend, table: JobTable, tell: Callable[[Event], None]) -> None:
        self._engine, self._table, self._tell = backend, table, tell
        self.grants: dict[int, Grant] = {}
        self.waiting: set[int] = set()
        self.departures = Departures(backend, tell)
        self.trouble = ""
        # By name; what ended or failed for good is not here.
        self._failures: dict[str, Failures] = {}

    def start(self, row: int, now_s: float) -> Progress | None:
        """Start a job that has devices, unless it failed just now, or who had them before has not left them yet.

        Returns
        -------
        Its failure, if it cannot be started and that is its own fault.
        """
        job, grant = self._table.job(row), self.grants[row]
        failures = self._failures.get(job.name)
        if failures is not None and now_s < failures.retry_s:
            self.waiting.add(row)
            self.trouble = self.trouble or failures.lack
            return None
        if self.departures.blocks(job.name, grant):
            self.waiting.add(row)
            return None
        try:
            self._engine.start(job, grant)
        except Exception as error:
            if not is_infrastructure_fault(error):
                return self._failed(row, f"it cannot be started: {one_line(error)}")
            # It may have been started in part.
            self.departures.leave(job.name, frozenset(grant.devices))
            self.waiting.add(row)
            self.trouble = one_line(error)
            return None
        self.waiting.discard(row)
        return None

    def take_back(self, job: Job, grant: Grant | None, past: Past) -> Grant | None:
        """Take over a job that a driver before this one had; return the devices on which it goes on, or None.

        Parameters
        ----------
        grant : devices on which it may go on; None if it is to leave those that it has.
        past : where the backend raises an error, nobody gets the devices that the job may have according to this.
        """
        try:
            runs = self._engine.adopt(job, grant or Grant(()))
            goes_on = runs or (grant is not None and self._engine.progress(job.name).ended)
            if not runs:
                self.departures.watch(job.name)
            elif grant is None:
                self.departures.leave(job.name, self._engine.held(job.name))
        except Exception:
            self.departures.reserve(job.name, self._may_have(job.name, past))
            raise
        return grant if goes_on else None

    def _may_have(self, name: str, past: Past) -> frozenset[int] | None:
        """Return the devices on which a job may run; None if any may be among them.

        One that waits may still be leaving its devices, and one that moves may still have those that it had before.
        """
        if past.grant is None:
            return frozenset() if math.isnan(past.first_start_s) else self._engine.held(name)
        return frozenset(past.grant.devices) | (self._engine.held(name) or frozenset())

    def progress(self, row: int) -> Progress | None:
        """How far a job is; None where that cannot be said now."""
        if row in self.waiting:
            return None
        try:
            return self._engine.progress(self._table.job(row).name)
        except Exception as error:
            if is_infrastructure_fault(error):
                self.trouble = one_line(error)
                return None
            return self._failed(row, one_line(error))

    def _failed(self, row: int, why: str) -> Progress:
        """A failure of a job that has done what it had at last."""
        return Progress(int(self._table.job(row).work - float(self._table.left[row])), failure=why)

    def note_failure(self, row: int, progress: Progress, now_s: float, patience: Patience) -> str:
        """Count a failure of a job; why it is given up, "" if it is not."""
        name = self._table.job(row).name
        failures = self._failures.setdefault(name, Failures())
        if not failures.note(progress, now_s, patience):
            return ""
        if progress.repeats:
            return f"job {name!r} failed, and would again: {progress.failure}"
        if progress.lacks:
            lacking_s = now_s - failures.lacking_since_s
            return f"job {name!r} could not go on for {lacking_s:.0f} s: {progress.failure}"
        count = failures.own + failures.kills
        return f"job {name!r} failed {count} times, the last time with: {progress.failure}"

    def forget_failures(self, row: int) -> None:
        """What a job did until now does not count against it, or never will."""
        self._failures.pop(self._table.job(row).name, None)

    def take(self, row: int, what: Happening, now_s: float, why: str = "", *, is_lost: bool = False) -> None:
        """Take a job's devices away, which is told first."""
        self._tell(Event(now_s, self._table.job(row), what, self.grants[row], why))
        self.drop(row, is_lost)

    def drop(self, row: int, is_lost: bool = False) -> Grant | None:
        """Have a job leave its devices, if it was started, without waiting for it; returns what it had."""
        grant = self.grants.pop(row, None)
        if grant is not None and row not in self.waiting:
            self.departures.leave(self._table.job(row).name, frozenset(grant.devices), is_lost)
        self.waiting.discard(row)
        return grant

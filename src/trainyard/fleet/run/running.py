"""Jobs that a backend runs: start them when their devices are free, ask for their progress, have them leave."""

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
    """Jobs that a backend runs, or starts as soon as possible.

    Parameters
    ----------
    tell : gets the event that a job is to leave, before the backend is told.

    Attributes
    ----------
    grants : devices of the jobs, by row of the table.
    waiting : rows of jobs that are not started yet: their devices are not free, or the backend failed just now.
    trouble : something that all jobs need and that is missing now; the reader empties it.
    """

    def __init__(self, backend: Backend, table: JobTable, tell: Callable[[Event], None]) -> None:
        self._engine, self._table, self._tell = backend, table, tell
        self.grants: dict[int, Grant] = {}
        self.waiting: set[int] = set()
        self.departures = Departures(backend, tell)
        self.trouble = ""
        # By name of the job; jobs that ended or failed for good are not here.
        self._failures: dict[str, Failures] = {}

    def start(self, row: int, now_s: float) -> Progress | None:
        """Start a job on its devices, unless the job failed just now or the devices are not free yet.

        Returns
        -------
        The failure of the job, if it cannot be started for a fault of its own.
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
            # The job may have been started in part.
            self.departures.leave(job.name, frozenset(grant.devices))
            self.waiting.add(row)
            self.trouble = one_line(error)
            return None
        self.waiting.discard(row)
        return None

    def take_back(self, job: Job, grant: Grant | None, past: Past) -> Grant | None:
        """Take over a job of an earlier driver; return the devices on which the job goes on, or None.

        Parameters
        ----------
        grant : devices on which the job may go on; None if it is to leave its devices.
        past : history of the job; if the backend raises an error, all devices that the job may have are reserved.
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

        A waiting job may still be leaving its devices, and a moving job may still have its earlier ones.
        """
        if past.grant is None:
            return frozenset() if math.isnan(past.first_start_s) else self._engine.held(name)
        return frozenset(past.grant.devices) | (self._engine.held(name) or frozenset())

    def progress(self, row: int) -> Progress | None:
        """Return the progress of a job; None where it is not known now."""
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
        """Return the failure of a job, with the progress last seen."""
        job = self._table.job(row)
        done = None if job.command is not None else int(job.work - float(self._table.left[row]))
        return Progress(done, failure=why)

    def note_failure(self, row: int, progress: Progress, now_s: float, patience: Patience) -> str:
        """Count a failure of a job; return why the job is given up, "" if it is not."""
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
        """Forget earlier failures of a job."""
        self._failures.pop(self._table.job(row).name, None)

    def revoke(self, row: int, what: Happening, now_s: float, why: str = "") -> None:
        """Take the devices of a job away; the event is told before."""
        self._tell(Event(now_s, self._table.job(row), what, self.grants[row], why))
        self.remove(row)

    def remove(self, row: int) -> Grant | None:
        """Have a job leave its devices, if it was started, without waiting; return the devices."""
        grant = self.grants.pop(row, None)
        if grant is not None and row not in self.waiting:
            self.departures.leave(self._table.job(row).name, frozenset(grant.devices))
        self.waiting.discard(row)
        return grant

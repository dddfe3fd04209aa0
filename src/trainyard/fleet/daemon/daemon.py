"""The daemon itself: takes jobs in, and lets a policy drive a backend in a thread beside the server.

It may be killed at any moment. What it knows is in the store, and the jobs are processes of their own: the next daemon
finds both, adopts the jobs that still run, and starts the others from their checkpoints.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from trainyard.compiling import python_first
from trainyard.fleet.daemon.clock import Clock
from trainyard.fleet.daemon.lookahead import Lookahead
from trainyard.fleet.daemon.permissions import Permissions
from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.store import StateError, Store
from trainyard.fleet.daemon.stored_usage import StoredUsage
from trainyard.fleet.daemon.tables import FINAL, Record, State
from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.run.backend import Backend
from trainyard.fleet.run.backends import check_runnable
from trainyard.fleet.run.decision import look_at
from trainyard.fleet.run.drive import POLL_S, Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.fault import is_infrastructure_fault
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.observed import NoNotes
from trainyard.fleet.run.past import Done, Past
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.scheduler import Scheduler
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.level1 import waiting_at_most
from trainyard.fleet.workload.own import read_form, reread_form
from trainyard.fleet.workload.training_job import on_places
from trainyard.hardware.cluster import Cluster
from trainyard.reading import shown

_PROGRESS_EVERY_S = 1.0
_LONGEST_WAIT_S = 30.0
_SILENT_S = 60.0
_STATE_AGAIN_S = 1.0
_INTAKE_WAIT_S = 60.0
_NO_CODE = Permissions()
_LOG = logging.getLogger(__name__)


class _StopError(Exception):
    """The daemon is to stop while it waits for its state."""


class Daemon:
    """Jobs of several users on one cluster.

    Parameters
    ----------
    folder : of the jobs' folders, as the backend has it.
    clock : seconds since 1970 that pass evenly; by default a `Clock` that begins after all that the store knows of.
    permissions : of users whose jobs bring code; nobody's may by default.
    """

    def __init__(
        self,
        cluster: Cluster,
        scheduler: Scheduler,
        backend: Backend,
        store: Store,
        folder: Path,
        clock: Callable[[], float] | None = None,
        permissions: Permissions = _NO_CODE,
    ) -> None:
        self._permissions = permissions
        self.scheduler, self.store, self.folder = scheduler, store, folder
        self.clock = clock or Clock(store.latest_s())
        self._whole, self._engine = cluster, backend
        self._news, self._stopping = threading.Event(), threading.Event()
        # What is wrong now, what was found to be in this turn, and how many turns failed since one did not.
        self._problem, self._noted, self._num_failures = "", "", 0
        self._alive_s = time.monotonic()
        self._lookahead: Lookahead | None = None
        self._begin_anew()

    @python_first()
    def _begin_anew(self) -> None:
        """Have a driver that knows nothing yet: it restores all jobs from the state, as after a crash."""
        self.driver = Driver(
            self._whole,
            self.scheduler.policy,
            self._engine,
            place=self.scheduler.place,
            rounds=self.scheduler.rounds,
            patience=Patience(lacks_s=math.inf),
            tell=self._write_event,
            cancelled=self._cancelled,
            notes=NoNotes(),
        )
        # Why jobs have failed of which something may run still.
        self._failing: dict[str, str] = {}
        self._progress_s, self._admitted = 0.0, frozenset[str]()
        self._usage = StoredUsage(self.store, self.driver.table)
        self._news.set()

    @property
    def problem(self) -> str:
        """Why nothing is scheduled now, or not all; "" if nothing is wrong."""
        silent_s = time.monotonic() - self._alive_s
        if silent_s > _SILENT_S:
            return f"nothing was scheduled for {silent_s:.0f} s: the scheduler is stuck, or its policy takes long"
        return self._problem

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is now."""
        return self.driver.cluster

    # What users ask for; called from threads of the server, which see and change only the store.

    def submit(self, form: str, user: str) -> Record:
        """Take a job in; once this returns, it will not be lost.

        Parameters
        ----------
        form : a mapping in the own form of workloads, as YAML or JSON.

        Raises
        ------
        FleetError
            If it is no job that can run here.
        UnansweredError
            If that cannot be said now.
        Refusal
            If it names another user, or there was one of its name.
        """
        with waiting_at_most(_INTAKE_WAIT_S):
            job = self._looked_at(form, user)
        self.store.add(job, user, form, self.clock())
        self._news.set()
        return self.job(job.name)

    def _looked_at(self, form: str, user: str) -> Job:
        source = Path("the job")
        self._permissions.check(reread_form(form, source), user)  # before any of its code could run
        job = read_form(form, source, own_files=True)
        if job.arrival_s:
            raise FleetError("a job arrives when it is submitted; leave arrival_s out")
        if job.user not in ("", user):
            raise Refusal(
                403, f"you are {user or 'no user by name'!r} and cannot submit jobs of {job.user!r}"
            )
        check_runnable([job], self.cluster.whole, self.driver.policy, self.driver.backend.limits)
        return job

    def job(self, name: str) -> Record:
        """A job.

        Raises
        ------
        Refusal
            If there is none of this name.
        """
        record = self.store.job(name)
        if record is None:
            raise Refusal(
                404, f"there is no job {shown(name)}; `trainyard fleet status` lists those that there are"
            )
        return record

    def own_job(self, name: str, user: str, is_admin: bool = False) -> Record:
        """A job of a user; an administrator has all.

        Raises
        ------
        Refusal
            If there is none of this name, or it is another user's.
        """
        record = self.job(name)
        if record.owner != user and not is_admin:
            raise Refusal(
                403,
                f"job {name!r} is of user {record.owner!r}; only they and administrators may cancel it or read its log",
            )
        return record

    def cancel(self, name: str, user: str, is_admin: bool = False) -> Record:
        """Stop a job for good, soon after this returns; its checkpoints stay.

        Raises
        ------
        Refusal
            As `own_job`, or if it has ended.
        """
        record = self.own_job(name, user, is_admin)
        if self.store.cancel(name) in FINAL:
            raise Refusal(409, f"job {name!r} is over already: {self.job(name).state}")
        self._news.set()
        return self.job(record.name)

    def directory(self, name: str) -> JobDirectory:
        """The folder of a job."""
        return JobDirectory(self.folder / name)

    # What the daemon does, in a thread of its own.

    def run(self) -> None:
        """Schedule until told to stop, whatever goes wrong: what does is logged, and shown as ``problem``."""
        wait_s = POLL_S
        self._lookahead = Lookahead(self._look_at, self._news.set, self._put_off)
        while not self._stopping.wait(wait_s):
            wait_s = self._turn_safely()
        try:
            self._note_progress(self.clock(), last=True)
        except Exception:
            _LOG.exception("the state could not be written at last")

    def _turn_safely(self) -> float:
        """One turn; how long to wait before the next."""
        self._alive_s, self._noted = time.monotonic(), ""
        try:
            if self._num_failures:
                self._begin_anew()  # what was done in part is set right
            self.turn()
        except _StopError:
            return 0.0
        except Exception as error:
            self._num_failures += 1
            _LOG.exception("nothing can be scheduled")
            self._problem = f"nothing can be scheduled: {one_line(error)}"
            return min(_LONGEST_WAIT_S, 2.0 ** min(10, self._num_failures) / 2.0)
        self._num_failures = 0
        if self.driver.trouble:
            self._note(self.driver.trouble)
        if not self._noted:
            self._problem = ""
        return POLL_S

    def _note(self, problem: str) -> None:
        """Show what is wrong until a turn finds nothing wrong; log it when it is new."""
        if problem != self._problem:
            _LOG.warning(problem)
        self._problem = self._noted = problem

    @python_first()
    def turn(self) -> None:
        """Do what is to be done now."""
        if self._news.is_set():
            self._news.clear()
            self._take_in()
        self._fail_who_left()
        self.driver.step(self.clock())
        self._note_progress(self.clock())

    def stop(self) -> None:
        """Schedule no more; jobs that run go on."""
        self._stopping.set()

    def _take_in(self) -> None:
        """Have the driver do what the store says that users want; of a new daemon, restore what the last one had."""
        try:
            records = self.store.jobs(State.WAITING, State.RUNNING, State.CANCELLING)
            self._usage.restore(self.clock())
        except StateError as error:
            self._later(error)
            return
        known = {*self.driver.names, *self.driver.ending, *self._failing}
        if self._lookahead is not None:
            self._lookahead.keep([record.name for record in records if record.name not in known])
        for record in records:
            if record.name not in known and not self._comes_back(record):
                continue
            if record.state is State.CANCELLING and record.name in self.driver.names:
                self.driver.cancel(record.name, self.clock())

    def _is_looked_at(self, record: Record) -> bool:
        """Whether a job may come in: one that waits first has its speed predicted, while others are scheduled."""
        if self._lookahead is None or record.state is not State.WAITING:
            return True
        return self._lookahead.has_seen(record)

    def _look_at(self, record: Record) -> None:
        """Have the speed of a job predicted, which runs its Python file if it has one."""
        self._permissions.check(record.job, record.owner)
        look_at(self.scheduler.policy, self._whole, self._job_of(record), self.clock())

    def _put_off(self, record: Record, why: str) -> None:
        """Show why a job cannot be looked at now."""
        _LOG.warning("job %s: %s", record.name, why)
        with suppress(StateError):  # it is said again after the next look
            self.store.note_reason(record.name, why)

    def _comes_back(self, record: Record) -> bool:
        """Restore a job that was looked at; whether it is restored.

        A job that was not looked at yet leaves the devices that it may still have. A job that cannot be restored has
        failed, and leaves its devices.
        """
        is_looked_at = self._is_looked_at(record)
        try:
            if is_looked_at:
                self._restore(record)
            elif record.first_start_s is not None and self.driver.has_left(record.name):
                self.driver.clear(self._job_of(record), self._past_of(record))
        except _StopError:
            raise
        except Exception as error:
            if is_infrastructure_fault(error):
                self._later(error)
            else:
                self.driver.expel(record.name)
                self._failing[record.name] = one_line(error)
            return False
        return is_looked_at

    def _fail_who_left(self) -> None:
        """Write down failures of jobs of which nothing is left; until then the next daemon has to know of them."""
        for name in [name for name in self._failing if self.driver.has_left(name)]:
            self._write(partial(self.store.fail, name, self._failing[name], self.clock()))
            del self._failing[name]

    def _cancelled(self) -> Collection[str]:
        """Jobs that their users do not want any more, as far as that is known."""
        try:
            return [record.name for record in self.store.jobs(State.CANCELLING)]
        except StateError:
            return ()

    def _later(self, error: Exception) -> None:
        self._note(one_line(error))
        self._news.set()

    def _restore(self, record: Record) -> None:
        self._permissions.check(record.job, record.owner)  # which may have been taken away since
        job = self._job_of(record)
        self.driver.restore(job, self.clock(), self._past_of(record))
        if record.grant is not None and record.name not in self._running():
            why = "it was no longer running when the daemon started again"
            self._write_event(Event(self.clock(), job, Happening.LEAVES, record.grant, why))

    def _running(self) -> set[str]:
        """Return the names of the jobs that have devices."""
        return {self.driver.table.job(row).name for row in self.driver.running}

    def _job_of(self, record: Record) -> Job:
        return on_places(record.job, self._engine.core_part)

    def _past_of(self, record: Record) -> Past:
        num_devices = 0 if record.grant is None else record.grant.num_devices
        # It may have run while there was no daemon.
        since_s = self.clock() - record.settled_s if num_devices else 0.0
        had_s = record.attained_s + since_s, record.attained_device_s + num_devices * since_s
        first_start_s = math.nan if record.first_start_s is None else record.first_start_s
        admitted = record.admitted or record.first_start_s is not None
        return Past(record.grant, Done(record.done, *had_s, record.measured), first_start_s, admitted)

    def _write_event(self, event: Event) -> None:
        done, key = self.driver.done().get(event.job.name), secrets.token_hex(8)
        self._write(partial(self.store.write_event, event, done, key))

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the store, however long that takes: what is not written must not be done.

        Raises
        ------
        _StopError
            If the daemon is to stop meanwhile.
        """
        while True:
            try:
                return write()
            except StateError as error:
                self._note(one_line(error))
                self._alive_s = time.monotonic()
                if self._stopping.wait(_STATE_AGAIN_S):
                    raise _StopError from error

    def _note_progress(self, now_s: float, last: bool = False) -> None:
        driver, admitted = self.driver, self.driver.admitted()
        # Whom the policy admits is written down at once: it is a promise.
        if now_s < self._progress_s + _PROGRESS_EVERY_S and admitted <= self._admitted and not last:
            return
        running = self._running()
        waiting = {
            name: driver.waiting.get(name, "nothing was decided since it came, or lost its devices")
            for name in driver.names
            if name not in running
        }
        try:
            self.store.note_progress(driver.done(), waiting, admitted, now_s)
            self._usage.note(now_s)
        except StateError as error:
            self._note(one_line(error))
        else:
            self._progress_s, self._admitted = now_s, admitted

"""The folder of a job: what it trains, how far it is, and all that must survive its processes and its scheduler.

========================= =========================================================================================
training.json             what to train, see `Training`
checkpoints/              of `trainyard.job.run.checkpoint.folders`; they say what is done for good
log/metrics.jsonl         a line per step; log/metrics.1.jsonl holds the older ones when there are too many
log/rank-N.log            what each process printed
pause                     while there is such a file, the job leaves its devices after its present step
ticket                    of the last start: processes of an earlier one, or of one that was called off, leave at once
meeting-*                 in which the processes of the last start found each other
heartbeat-N               written again every few seconds as long as the node lives that has rank N as its first
lock-N                    locked as long as any process of the node that has rank N as its first lives; holds the
                          number of their process group
watched                   touched every few seconds by whoever will end the job, if it may not run on without
devices                   numbers of those on which it was started last
failure.txt               why it stopped, when it should not have
killed.txt                the same, where it was stopped from outside
repeats.txt               the same, where that would happen again
========================= =========================================================================================

Backends run jobs of a folder that all their nodes see. Nothing else is kept in memory that would be missed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import IO

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.losses import Losses, entries
from trainyard.fleet.workload.training import Training
from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.processes.logs import end_of, metrics_files
from trainyard.locks import can_share, locked_folder
from trainyard.private import make_private, opener, write_private

_TRIES, _RETRY_S = 10, 0.02
_MEASURED_STEPS = 4
_LAST_BYTES = 16384
_MEETING, _HEARTBEAT = "meeting-", "heartbeat-"
WATCH_S = 60.0
"""So long a watched job runs on when its watcher is gone."""


class JobDirectory:
    """The folder of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.logs, self.pause = path / "checkpoints", path / "log", path / "pause"
        self._training, self._ticket = path / "training.json", path / "ticket"
        self.devices = path / "devices"
        self.failure, self.killing = path / "failure.txt", path / "killed.txt"
        self.repeating = path / "repeats.txt"
        self.watched = path / "watched"

    def set_up(self, training: Training) -> None:
        """Make the folder, or check that it is of the same job.

        Raises
        ------
        FleetError
            If it holds another training.
        """
        if self._training.exists():
            if self.training() != training:
                raise FleetError(
                    f"{self.path} belongs to another training; give the job another name, or take another folder"
                )
            return
        make_private(self.logs)
        # Nodes may do this at the same time.
        partial = self.path / f".training-{socket.gethostname()}-{os.getpid()}.part"
        write_private(partial, json.dumps(training.to_dict(), indent=1))
        partial.replace(self._training)

    def training(self) -> Training:
        """What the job trains."""
        return Training.from_dict(json.loads(self._training.read_text()))

    def allow(self) -> None:
        """The job may run: it is neither asked to leave nor known to have failed."""
        self.pause.unlink(missing_ok=True)
        self.failure.unlink(missing_ok=True)
        self.killing.unlink(missing_ok=True)
        self.repeating.unlink(missing_ok=True)
        for left in (*self.path.glob(f"{_MEETING}*"), *self.path.glob(f"{_HEARTBEAT}*")):
            left.unlink(missing_ok=True)

    def issue(self) -> str:
        """A new ticket, with which alone processes of the job may begin."""
        ticket = secrets.token_hex(8)
        write_private(self._ticket, ticket)
        return ticket

    @staticmethod
    def new_meeting() -> str:
        """Name of a file in which the processes of one start find each other."""
        return f"{_MEETING}{secrets.token_hex(8)}"

    def call_off(self) -> None:
        """Processes that were started and have not begun yet are not to."""
        self._ticket.unlink(missing_ok=True)

    def admits(self, ticket: str) -> bool:
        """Whether a ticket is that of the last start, which was not called off."""
        try:
            return self._ticket.read_text() == ticket
        except FileNotFoundError:
            return False

    def fail(self, reason: str, *, killed: bool = False, repeats: bool = False) -> None:
        """Note why the job stopped; the first reason stays, others follow from it.

        Parameters
        ----------
        killed : whether it was stopped from outside.
        repeats : whether that would happen again however often it is started.
        """
        path = self.killing if killed else self.repeating if repeats else self.failure
        with suppress(FileExistsError), open(path, "x", opener=opener) as file:
            file.write(reason)

    def watch(self) -> None:
        """Say that whoever will end the job is there; a job of which nobody ever said so runs to its end."""
        with suppress(OSError):  # it is said again soon
            self.watched.touch()

    def is_abandoned(self) -> bool:
        """Whether whoever was to end the job is gone."""
        try:
            return time.time() - self.watched.stat().st_mtime > WATCH_S
        except OSError:
            return False

    def beat(self, first_rank: int) -> None:
        """Say that the node lives that has a rank as its first."""
        with suppress(OSError):  # it says so again soon
            # Written over, not anew: that needs no room on a disk that is full.
            handle = opener(str(self.path / f"{_HEARTBEAT}{first_rank}"), os.O_WRONLY | os.O_CREAT)
            try:
                os.pwrite(handle, f"{time.time_ns():020d}".encode(), 0)
            finally:
                os.close(handle)

    def heartbeats(self) -> dict[str, str]:
        """What nodes have written last to say that they live, by their first rank."""
        found = {}
        for file in self.path.glob(f"{_HEARTBEAT}*"):
            with suppress(OSError):
                found[file.name.removeprefix(_HEARTBEAT)] = file.read_text()
        return found

    def progress(self, is_over: bool) -> Progress:
        """How far the job is.

        Parameters
        ----------
        is_over : whether none of its processes is left.
        """
        if not is_over:
            return self._reported()
        if not self._training.exists():
            return Progress(0, failure="it was never started")
        saved = self.saved_steps()
        if saved >= self.training().steps:
            return Progress(saved, ended=True)
        if self.pause.exists():
            return Progress(saved)
        # The others of a job of which one was killed, or ended by itself, fail or are killed.
        for file in (self.repeating, self.killing, self.failure):
            if file.exists():
                return Progress(
                    saved,
                    failure=file.read_text(),
                    killed=file == self.killing,
                    repeats=file == self.repeating,
                )
        return Progress(saved, failure="its processes are gone", killed=True)

    def saved_steps(self) -> int:
        """Steps that are done for good."""
        return max(complete_steps(self.checkpoints), default=0)

    def _reported(self) -> Progress:
        """What the running processes say; all of it is in the last lines."""
        # The newer file may just have been begun.
        lines = list(entries(b"".join(end_of(file, _LAST_BYTES) for file in metrics_files(self.logs))))
        if not lines:
            return Progress(0)
        # Steps on as many processes as now, without the first, which is slower.
        counts = [len(entry["peak_memory_bytes"]) for entry in lines]
        last = [e["seconds"] for e, count in zip(lines, counts, strict=True) if count == counts[-1]]
        step_s = median(last[1:]) if len(last) >= _MEASURED_STEPS else None
        return Progress(lines[-1]["step"] + 1, step_s=step_s)

    def losses(self) -> dict[int, float]:
        """The loss of every step; of a step that was done again, as it was the last time."""
        written = b"".join(file.read_bytes() for file in metrics_files(self.logs))
        return {line["step"]: next(iter(line["losses"].values())) for line in entries(written)}

    def epochs(self) -> Losses:
        """What reads the losses of the job epoch by epoch while it writes them."""
        return Losses(self.logs, self.training().epoch_steps)

    @contextmanager
    def locked(self, first_rank: int) -> Iterator[int]:
        """Hold the job on this node; yields a file descriptor: whoever inherits it holds the job too.

        Raises
        ------
        FleetError
            If processes of the job still run here.
        """
        with open(self.path / f"lock-{first_rank}", "a+", opener=opener) as file:
            num_tries = 0
            while _is_locked(file, fcntl.LOCK_EX):
                # Who shares it looks whether it is locked, and may get no core meanwhile.
                num_tries += not can_share(file.fileno())
                if num_tries > _TRIES:
                    raise FleetError(f"job {self.path.name!r} runs already; stop it first")
                time.sleep(_RETRY_S)
            file.truncate(0)
            file.write(str(os.getpgid(0)))
            file.flush()
            with ExitStack() as held:
                self._share_folder(held)
                yield file.fileno()

    def _share_folder(self, held: ExitStack) -> None:
        """Hold the folder, as processes on other nodes may; who holds it alone only looks, and is waited for."""
        while True:
            try:
                held.enter_context(locked_folder(self.path, fcntl.LOCK_SH))
            except BlockingIOError:
                time.sleep(_RETRY_S)
            else:
                return

    def groups(self) -> list[int]:
        """Process groups of the job that live on this node.

        Raises
        ------
        FleetError
            If the file that says which they are was deleted.
        BackendError
            If one does not say which it is: it gets no core, was stopped when it began, or the disk is full.
        """
        for _ in range(_TRIES):
            found = [group for path in self.path.glob("lock-*") if (group := _holder(path))]
            if found or not self.path.is_dir():
                return found
            try:
                with locked_folder(self.path):
                    return []
            except BlockingIOError:
                time.sleep(_RETRY_S)
        try:
            with locked_folder(self.path, fcntl.LOCK_SH):
                raise FleetError(
                    f"processes of the job in {self.path} live, and the file that says which was deleted; end them"
                )
        except BlockingIOError as error:
            raise BackendError(f"another process looks at {self.path} and does not end that") from error


def _holder(path: Path) -> int:
    """The group that has locked a file; 0 if none has."""
    with path.open() as file:
        for _ in range(_TRIES):
            if not _is_locked(file, fcntl.LOCK_SH):
                return 0
            if text := path.read_text():
                return int(text)
            time.sleep(_RETRY_S)  # who has just locked it writes next who it is
    raise BackendError(f"{path} is locked by a process that has not said yet which it is; it is asked again")


def _is_locked(file: IO[str], how: int) -> bool:
    """Whether others hold a lock on a file; if not, this process does now."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False

"""The folder of a job: its training or command, its progress, and all that must survive its processes and its scheduler.

========================= =========================================================================================
training.json             the training, see `Training`; of a command, command.json instead, see `Command`
output/                   files that a command saves, and its progress; see `trainyard.fleet.progress`
ended-N                   written when a command has returned 0 on the node with rank N as its first; holds the number
                          of ranks of the node, and of the job
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
lacks.txt                 the same, where the disk had no room, or was not there
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, TypeVar

from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.progress import PROGRESS_FILE
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.command_progress import CommandLosses, last_progress_line
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.heartbeat_files import read_heartbeats, write_heartbeat
from trainyard.fleet.run.losses import Losses, entries
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.runnable import Runnable
from trainyard.fleet.workload.training import Training
from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.processes.logs import end_of, metrics_files
from trainyard.locks import can_share, locked_folder
from trainyard.private import make_private, opener, write_private

_T = TypeVar("_T")
_TRIES, _RETRY_S = 10, 0.02
_MEASURED_STEPS = 4
_LAST_BYTES = 16384
_MEETING, _HEARTBEAT, _ENDED = "meeting-", "heartbeat-", "ended-"
_OF_A_START = _MEETING, _HEARTBEAT, _ENDED
_NO_ROOM = "there is no room on the disk, not even to say what failed"


class RunsAlreadyError(FleetError):
    """Processes of the job live."""


class JobDirectory:
    """The folder of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.logs, self.pause = path / "checkpoints", path / "log", path / "pause"
        self._training, self._command = path / "training.json", path / "command.json"
        self.output, self._ticket = path / "output", path / "ticket"
        self.devices = path / "devices"
        self.failure, self.killing = path / "failure.txt", path / "killed.txt"
        self.repeating, self.lacking = path / "repeats.txt", path / "lacks.txt"
        self.watched = path / "watched"

    def set_up(self, runnable: Runnable) -> None:
        """Make the folder, or check that it is of the same job.

        Raises
        ------
        FleetError
            If it holds another training or command.
        """
        if self._is_set_up():
            if self.runnable() != runnable:
                raise FleetError(
                    f"{self.path} belongs to another training or command; give the job another name, or take another "
                    "folder"
                )
            return
        make_private(self.logs)
        is_command = isinstance(runnable, Command)
        if is_command:
            make_private(self.output)
        # Nodes may do this at the same time.
        partial = self.path / f".job-{socket.gethostname()}-{os.getpid()}.part"
        write_private(partial, json.dumps(runnable.to_dict(), indent=1))
        partial.replace(self._command if is_command else self._training)

    def _is_set_up(self) -> bool:
        """Whether the folder says what the job runs."""
        return self._training.exists() or self._command.exists()

    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the folder, by which a replaced folder is noticed; None where there is no folder."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def runnable(self) -> Runnable:
        """Read the training or command that the job runs; errors as of `training`."""
        return self.command() if self._command.exists() else self.training()

    def training(self) -> Training:
        """Read the training that the job runs.

        Raises
        ------
        FleetError
            If the file is damaged.
        """
        return _read(self._training, Training.from_dict)

    def command(self) -> Command:
        """Read the command that the job runs; errors as of `training`."""
        return _read(self._command, Command.from_dict)

    @property
    def progress_file(self) -> Path:
        """File in which a command reports its progress."""
        return self.output / PROGRESS_FILE

    def end(self, first_rank: int, count: int, world: int) -> None:
        """Note that a command has done all of its work on this node.

        Parameters
        ----------
        count, world : ranks of this node, and of the job.
        """
        write_private(self.path / f"{_ENDED}{first_rank}", f"{count} {world}")

    def begin(self, first_rank: int) -> None:
        """Forget an earlier end of a command on this node: a cluster manager may start a job a second time."""
        (self.path / f"{_ENDED}{first_rank}").unlink(missing_ok=True)

    def has_ended(self) -> bool:
        """Whether all work of the job is done: its steps are saved, or its command has returned 0 on all nodes."""
        if not self._command.exists():
            return max(complete_steps(self.checkpoints), default=0) >= self.training().steps
        texts = [file.read_text().split() for file in self.path.glob(f"{_ENDED}*")]
        return bool(texts) and sum(int(count) for count, _ in texts) >= int(texts[0][1])

    def allow(self) -> None:
        """The job may run: it is neither asked to leave nor known to have failed."""
        reasons = (self.pause, self.failure, self.killing, self.repeating, self.lacking)
        for left in (*reasons, *(file for kind in _OF_A_START for file in self.path.glob(f"{kind}*"))):
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
        """Whether a ticket is of the last start, and that start was not called off."""
        try:
            return self._ticket.read_text() == ticket
        except FileNotFoundError:
            return False

    def fail(self, reason: str, *, killed: bool = False, repeats: bool = False, lacks: bool = False) -> None:
        """Note why the job stopped; the first reason stays, others follow from it.

        Where the disk is full, what is noted may be an empty file, which says as much.

        Parameters
        ----------
        killed : whether it was stopped from outside.
        repeats : whether that would happen again however often it is started.
        lacks : whether the disk had no room, or was not there.
        """
        kinds = ((lacks, self.lacking), (killed, self.killing), (repeats, self.repeating))
        path = next((path for holds, path in kinds if holds), self.failure)
        with suppress(OSError), open(path, "x", opener=opener) as file:
            file.write(reason)

    def watch(self) -> None:
        """Say that whoever will end the job is there; a job of which nobody ever said so runs to its end."""
        write_heartbeat(self.watched)

    def watching(self) -> dict[str, str]:
        """Last heartbeat of the scheduler that will end the job; empty if no scheduler ever gave one."""
        return read_heartbeats([self.watched])

    def beat(self, first_rank: int) -> None:
        """Say that the node lives that has a rank as its first."""
        write_heartbeat(self.path / f"{_HEARTBEAT}{first_rank}")

    def heartbeats(self) -> dict[str, str]:
        """Return the last heartbeats of nodes, by their first rank."""
        found = read_heartbeats(self.path.glob(f"{_HEARTBEAT}*"))
        return {name.removeprefix(_HEARTBEAT): beat for name, beat in found.items()}

    def progress(self, is_over: bool) -> Progress:
        """Read the progress of the job.

        Parameters
        ----------
        is_over : whether none of its processes is left.
        """
        if not self._is_set_up():
            return Progress(0, failure="it was never started")
        if not is_over:
            return self._command_progress(self.command()) if self._command.exists() else self._reported()
        saved = self.saved_steps()
        if self.has_ended():
            return Progress(saved, ended=True)
        if self.pause.exists():
            return Progress(saved)
        # The others of a job of which one was killed, or ended by itself, fail or are killed.
        for file in (self.repeating, self.lacking, self.killing, self.failure):
            if file.exists():
                reason = file.read_text(errors="replace")
                return Progress(
                    saved,
                    failure=reason or _NO_ROOM,
                    killed=file == self.killing,
                    repeats=file == self.repeating,
                    lacks=file == self.lacking or not reason,
                )
        return Progress(saved, failure="its processes are gone", killed=True)

    def saved_steps(self) -> int | None:
        """Return the steps that are done for good; of a command the last that it reported, None if it reports none."""
        if self._command.exists():
            return self._command_progress(self.command()).steps
        return max(complete_steps(self.checkpoints), default=0)

    def _command_progress(self, command: Command) -> Progress:
        """Read the progress that a command reports."""
        line = last_progress_line(self.progress_file, command.steps) if command.steps else None
        if line is None:
            return Progress(None)
        return Progress(line.step, step_s=1.0 / line.steps_per_s if line.steps_per_s > 0.0 else None)

    def _reported(self) -> Progress:
        """Read the progress that the running processes write; all of it is in the last lines."""
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

    def epochs(self) -> Losses | CommandLosses:
        """Return a reader of the job's losses, epoch by epoch while the job writes them."""
        runnable = self.runnable()
        if isinstance(runnable, Command):
            return CommandLosses(self.progress_file, runnable.epoch_steps, runnable.steps)
        return Losses(self.logs, runnable.epoch_steps)

    @contextmanager
    def locked(self, first_rank: int) -> Iterator[int]:
        """Hold the job on this node; yields a file descriptor: whoever inherits it holds the job too.

        Raises
        ------
        RunsAlreadyError
            If processes of the job still run here.
        """
        with open(self.path / f"lock-{first_rank}", "a+", opener=opener) as file:
            num_tries = 0
            while _is_locked(file, fcntl.LOCK_EX):
                # A process that shares the lock only reads the holder, and may get no core meanwhile.
                num_tries += not can_share(file.fileno())
                if num_tries > _TRIES:
                    raise RunsAlreadyError(f"job {self.path.name!r} runs already; stop it first")
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

    def holders(self) -> list[int]:
        """Processes of this machine that hold the job, however they were started; never this one."""
        locks, found = [str(path) for path in self.path.resolve().glob("lock-*")], []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is another user's
                if any(_holds(file, locks) for file in (process / "fd").iterdir()):
                    found.append(int(process.name))
        return [pid for pid in found if pid != os.getpid()]


def _holds(file: Path, locks: Sequence[str]) -> bool:
    """Whether an open file of a process is one of some, and is locked by it or by one that it was forked from."""
    with suppress(OSError):
        if os.readlink(file) in locks:
            return " WRITE " in (file.parent.with_name("fdinfo") / file.name).read_text()
    return False


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


def _read(file: Path, from_dict: Callable[[Mapping[str, Any]], _T]) -> _T:
    try:
        return from_dict(json.loads(file.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FleetError(f"{file} is damaged ({one_line(error)}); give the job another name") from error

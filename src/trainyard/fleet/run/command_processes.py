"""Run the processes of a command on one node: start and watch them, ask them to end, and end all that they started.

They find each other by the variables that torchrun sets: ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``LOCAL_WORLD_SIZE``,
``MASTER_ADDR`` and ``MASTER_PORT``. A command that is started once on each node has no rank; it has ``NNODES``,
``GROUP_RANK`` and torchrun's own options (``PET_NNODES`` and so on), so that ``torchrun train.py`` needs no options.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from trainyard.fleet.progress import JOB_DIR
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.command import PER_NODE, Command
from trainyard.hardware.interface import own_address, use_interface
from trainyard.job.run.processes.heartbeat import Silence, beating
from trainyard.job.run.processes.logs import cut, last_lines, rank_log
from trainyard.job.run.processes.rank_processes import how_it_ended
from trainyard.private import write_private
from trainyard.processes import die_with_parent
from trainyard.reading import visible

__all__ = ["run_command"]

_POLL_S, _LOOK_S, _MEETING_S = 0.05, 1.0, 300.0
_LAST_LINES, _LAST_CHARACTERS = 3, 300
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
_MARK = "TRAINYARD_JOB_NODE"
"""Variable of all processes that a command has started on a node; several nodes may be one machine."""
_SHELL_SIGNAL_BASE = 128
"""Exit code of a shell for a program that a signal has ended, less the number of the signal."""


def run_command(directory: JobDirectory, command: Command, ranks: Ranks, lock: int) -> int:
    """Run a command on this node until it has ended, has failed, or is to leave; then end all of its processes.

    Parameters
    ----------
    lock : descriptor by which this process holds the job; the processes of the command hold the job, too.

    Returns
    -------
    0 if nothing failed.
    """
    mark = _mark(directory, ranks)
    _kill_marked(mark)
    directory.begin(ranks.first)
    with _guarded(mark) as guard, _noted_signals() as signals:
        address = _meet(directory, ranks)
        use_interface(ranks.peer)  # inherited by the processes of the command
        running = _Processes(directory, command, ranks, lock, address, guard)
        try:
            with beating(partial(directory.beat, ranks.first), ranks.heartbeat_s):
                return _watch(directory, running, ranks, signals)
        finally:
            # The file of the meeting stays until the next start: another node may read it when this one has ended.
            running.kill()


def _watch(directory: JobDirectory, running: _Processes, ranks: Ranks, signals: list[int]) -> int:
    here, look_s, watcher = directory.identity(), 0.0, Silence[str](ranks.heartbeat_s / 4)
    while True:
        is_to_leave = directory.pause.exists()
        if is_to_leave or signals:
            running.end()
            if not is_to_leave:
                directory.fail("it was told to end", killed=True)
            return 0 if is_to_leave else 1
        codes = running.exit_codes()
        if failed := {rank: code for rank, code in codes.items() if code}:
            rank = min(failed)
            code = failed[rank]
            directory.fail(
                f"its command {how_it_ended(code)}{running.last_words(rank)}", killed=-code in _FROM_OUTSIDE
            )
            return 1
        if all(code == 0 for code in codes.values()):
            directory.end(ranks.first, ranks.count, ranks.world)
            return 0
        if time.monotonic() > look_s:
            look_s = time.monotonic() + _LOOK_S
            running.cut_logs()
            if directory.identity() != here:
                # A scheduler that looks at the new folder may have started the job anew: write nothing there.
                print(f"{directory.path} was deleted or replaced: the job ends here", file=sys.stderr)
                return 1
            if max(watcher.look(directory.watching()).values(), default=0.0) > ranks.heartbeat_s:
                directory.fail("the process that was to end it is gone", killed=True)
                return 1
        time.sleep(_POLL_S)


class _Processes:
    """The processes of a command that this node started."""

    def __init__(
        self,
        directory: JobDirectory,
        command: Command,
        ranks: Ranks,
        lock: int,
        address: tuple[str, str],
        guard: int,
    ) -> None:
        self._grace_s, self._guard = command.grace_s, guard
        is_per_node = command.processes == PER_NODE
        own_ranks = [ranks.first] if is_per_node else range(ranks.first, ranks.first + ranks.count)
        self._logs = {rank: rank_log(directory.logs, rank) for rank in own_ranks}
        self._processes = {}
        for rank in own_ranks:
            variables = os.environ | _common_variables(directory, ranks, address)
            variables |= _launcher_variables(ranks, address) if is_per_node else ranks.environment(rank)
            if is_per_node:
                ranks.use_all_cores()
            else:
                ranks.use_cores(rank)
            self._processes[rank] = _start(command, variables, self._logs[rank], lock)

    def exit_codes(self) -> dict[int, int | None]:
        """Return exit codes by rank: None for a running process, and minus the number of the signal for a killed one."""
        return {rank: _code(process.poll()) for rank, process in self._processes.items()}

    def last_words(self, rank: int) -> str:
        """Return the last lines that a process printed, to append to how it ended."""
        lines = [visible(line.strip()) for line in last_lines(self._logs[rank], _LAST_LINES)]
        text = " / ".join(line for line in lines if line)
        return f"; it printed last: {text[-_LAST_CHARACTERS:]}" if text else ""

    def cut_logs(self) -> None:
        """Keep the logs short."""
        cut(self._logs.values())

    def end(self) -> None:
        """Ask all processes to end by SIGTERM, and wait until none is left, or their time is over."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        until_s = time.monotonic() + self._grace_s
        while self._is_alive() and time.monotonic() < until_s:
            self.exit_codes()
            time.sleep(_POLL_S)

    def _is_alive(self) -> bool:
        """Whether a process still runs that this one started, or that became its child when its parent ended."""
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.pid != self._guard and child.status() != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def kill(self) -> None:
        """Kill all processes at once, and all that they started."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        for process in self._processes.values():
            process.wait()
        self.cut_logs()


def _start(command: Command, environment: Mapping[str, str], log: Path, lock: int) -> subprocess.Popen[bytes]:
    with open(log, "ab") as printed:
        return subprocess.Popen(
            ["/bin/sh", "-c", command.line],
            cwd=command.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a signal reaches all of it, and nothing else
            pass_fds=[lock],
            preexec_fn=partial(die_with_parent, os.getpid()),  # there is no other thread yet
        )


def _common_variables(directory: JobDirectory, ranks: Ranks, address: tuple[str, str]) -> dict[str, str]:
    """Return the variables of all processes of a job on this node."""
    variables = {JOB_DIR: str(directory.output), _MARK: _mark(directory, ranks)}
    variables |= {"MASTER_ADDR": address[0], "MASTER_PORT": address[1]}
    if ranks.threads:
        variables["OMP_NUM_THREADS"] = str(ranks.threads)
    return variables | ranks.visible_devices()


def _launcher_variables(ranks: Ranks, address: tuple[str, str]) -> dict[str, str]:
    """Return the variables of a command that starts the processes of a node itself."""
    counts = {"NNODES": str(ranks.nodes), "NPROC_PER_NODE": str(ranks.count), "NODE_RANK": str(ranks.node)}
    counts |= {"MASTER_ADDR": address[0], "MASTER_PORT": address[1]}
    sizes = {"WORLD_SIZE": str(ranks.world), "LOCAL_WORLD_SIZE": str(ranks.count)}
    own = {"NNODES": str(ranks.nodes), "GROUP_RANK": str(ranks.node)}
    return own | sizes | {f"PET_{name}": value for name, value in counts.items()}


def _code(code: int | None) -> int | None:
    """Return an exit code as `how_it_ended` reads it: a shell hides the signal that has ended its program."""
    hidden = None if code is None else code - _SHELL_SIGNAL_BASE
    return -hidden if hidden in _FROM_OUTSIDE else code


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Note SIGTERM instead of ending: a cluster manager sends it before it takes nodes away."""
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)


def _meet(directory: JobDirectory, ranks: Ranks) -> tuple[str, str]:
    """Return the address and port on which the processes of a job find each other; the first node chooses them.

    Raises
    ------
    BackendError
        If the first node does not write them in time.
    """
    file = directory.path / ranks.meeting
    if ranks.first == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = str(probe.getsockname()[1])
        address = (own_address(ranks.peer) or socket.gethostname()) if ranks.peer else "127.0.0.1"
        partial_file = file.with_name(f"{file.name}.part")
        write_private(partial_file, f"{address} {port}")
        partial_file.replace(file)
        return address, port
    until_s = time.monotonic() + _MEETING_S
    while time.monotonic() < until_s and not directory.pause.exists():
        with suppress(FileNotFoundError):
            address, port = file.read_text().split()
            return address, port
        time.sleep(_POLL_S)
    raise BackendError(f"the first node of the job has not said within {_MEETING_S:g} s where it is")


@contextmanager
def _guarded(mark: str) -> Iterator[int]:
    """Have another process end the command if this one is killed; yield its number. It holds the job, too."""
    heard, held = os.pipe()
    guard = os.fork()
    if not guard:
        try:
            os.close(held)
            os.setsid()
            os.read(heard, 1)  # returns when no process has the other end any more
            _kill_marked(mark)
        finally:
            os._exit(0)
    os.close(heard)
    try:
        yield guard
    finally:
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)
        os.close(held)


def _mark(directory: JobDirectory, ranks: Ranks) -> str:
    return f"{directory.output}:{ranks.first}"


def _kill_marked(mark: str) -> None:
    """Kill all processes with a mark, such as those of an earlier start of a job on this node."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                process.kill()

"""A process that does one piece of work after another for this one, each under limits of CPU and memory."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, TypeVar

import psutil

from trainyard.processes.watch import Overrun, ProcessLimits, kill_tree, watched

__all__ = [
    "CpuLimitError",
    "LimitError",
    "LimitedProcess",
    "MemoryLimitError",
    "ProcessLostError",
    "WorkError",
]

Work = TypeVar("Work")
Result = TypeVar("Result")

_GIB = 1 << 30
_END_S = 5.0
_MOST_CHARS = 4000  # of an error
# How programs end that find no memory, or fall over what they are given.
_FALLS = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)


class LimitError(Exception):
    """A piece of work needs more than it may have."""


class CpuLimitError(LimitError):
    """A piece of work uses more CPU seconds than it may."""


class MemoryLimitError(LimitError):
    """A piece of work needs more memory than it may have, or makes its process fall."""


class ProcessLostError(Exception):
    """The process could not begin, was ended by others, or used no CPU: the same work may succeed later."""


class WorkError(Exception):
    """A piece of work raised an error.

    Parameters
    ----------
    kind : name of the type of the error.
    message : of the error.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind, self.message = kind, message


class LimitedProcess(Generic[Work, Result]):
    """Does work in a process that is started when it is needed, and ended when it passes its limits.

    A piece of work that finds no memory in a process that has done others is tried once more, in a new process.
    So is one whose process was ended by others.

    Parameters
    ----------
    prepare : is called in the process when it begins, and returns the function that does a piece of work. It is pickled.
    limits : on each piece of work.
    prepare_limits : on ``prepare``; by default those of a piece of work.
    context : of multiprocessing, whose processes are started.
    start : starts a process of the context.
    """

    def __init__(
        self,
        prepare: Callable[[], Callable[[Work], Result]],
        limits: ProcessLimits,
        prepare_limits: ProcessLimits | None = None,
        context: Callable[[], Any] = lambda: multiprocessing.get_context("forkserver"),
        start: Callable[[Any], None] = BaseProcess.start,
    ) -> None:
        self._prepare, self.limits, self._prepare_limits = prepare, limits, prepare_limits or limits
        self._context, self._start_process = context, start
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_closed = False

    def __call__(self, work: Work, wait_s: float = -1.0) -> Result:
        """Do a piece of work; those of several threads are done one after the other.

        Parameters
        ----------
        wait_s : for the work of other threads; as long as it takes by default.

        Raises
        ------
        TimeoutError
            If the work of other threads takes longer.
        LimitError
            If it needs more than the limits allow.
        ProcessLostError
            If its process was lost twice.
        WorkError
            If it raises an error.
        """
        if not self._lock.acquire(timeout=wait_s):
            raise TimeoutError
        try:
            return self._done(work)
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start the process and let it prepare, so that the first piece of work does not wait.

        Raises
        ------
        LimitError, ProcessLostError, WorkError
            As a call, of ``prepare``.
        """
        with self._lock:
            self._ready()

    def close(self) -> None:
        """End the process; work that is not done by then fails with `ProcessLostError`."""
        self._is_closed = True
        running = self._running
        if running is not None:
            running.kill()
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        """The process that runs now, if there is one."""
        running = self._running
        return None if running is None else running.process.pid

    def _done(self, work: Work) -> Result:
        is_first = self._running is None or not self._running.num_done
        try:
            return self._attempt(work)
        except ProcessLostError:
            return self._attempt(work)
        except MemoryLimitError:
            if is_first:
                raise
            return self._attempt(work)  # pieces before it took a part of the memory

    def _ready(self) -> _Running:
        if self._is_closed:
            raise ProcessLostError("its process is closed")
        if self._running is not None and self._running.is_alive:
            return self._running
        self._end()
        self._running = running = _Running(self._started())
        if self._is_closed:  # meanwhile, by a thread that may not have seen this process
            running.kill()
        try:
            self._received(running, self._prepare_limits)
        except Exception:
            self._end()
            raise
        return running

    def _started(self) -> tuple[BaseProcess, Connection]:
        context = self._context()
        ours, theirs = context.Pipe()
        arguments = (theirs, self._prepare, self._prepare_limits, self.limits)
        process: BaseProcess = context.Process(target=_serve, args=arguments, daemon=True)
        try:
            with theirs:
                self._start_process(process)
        except (OSError, EOFError) as error:  # such as where the fork server was ended by others
            ours.close()
            raise ProcessLostError(f"its process cannot be started: {error}") from error
        return process, ours

    def _attempt(self, work: Work) -> Result:
        try:
            running = self._ready()
        except (LimitError, WorkError, OSError) as error:  # it says nothing of this piece of work
            raise ProcessLostError(f"its process cannot begin: {error}") from error
        result: Result = self._received(running, self.limits, work)
        running.num_done += 1
        return result

    def _received(self, running: _Running, limits: ProcessLimits, *work: Any) -> Any:
        """Send a piece of work, if one is given, and return what comes."""
        try:
            with running.watched(limits):
                for each in work:
                    running.pipe.send(each)
                kind, value = running.receive()
        except (EOFError, OSError) as error:
            raise self._fault(running, limits) from error
        if kind == _NO_MEMORY:
            self._end()
            raise _no_memory(limits)
        if kind == _RAISED:
            raise WorkError(*value)
        return value

    def _fault(self, running: _Running, limits: ProcessLimits) -> Exception:
        """Why a process gives no answer; it is ended."""
        self._end()
        code, overrun = running.process.exitcode, running.overrun
        if code == -signal.SIGXCPU or (overrun is not None and overrun.kind == "cpu"):
            return CpuLimitError(f"it takes more than {limits.cpu_s:g} CPU seconds")
        if overrun is not None:
            return ProcessLostError(f"its process {overrun}")
        if code is not None and -code in _FALLS:
            return _no_memory(limits, f", or its process falls over it ({signal.Signals(-code).name})")
        return ProcessLostError(f"its process ended with status {code}: this machine may be short of memory")

    def _end(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.pipe.close()
            self._running.process.join(_END_S)  # one that is not known to have ended was killed all the same
            self._running = None


def _no_memory(limits: ProcessLimits, more: str = "") -> MemoryLimitError:
    return MemoryLimitError(f"it takes more than {limits.memory_bytes / _GIB:.3g} GiB of memory{more}")


class _Running:
    """A process that runs."""

    def __init__(self, started: tuple[BaseProcess, Connection]) -> None:
        self.process, self.pipe = started
        # multiprocessing takes it for ended as soon as its fork server has.
        self._known: psutil.Process | None = None
        with suppress(psutil.NoSuchProcess):
            self._known = psutil.Process(self.process.pid)
        self.num_done = 0
        self.overrun: Overrun | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it can do a piece of work."""
        return self.overrun is None and self.process.is_alive()

    def watched(self, limits: ProcessLimits) -> AbstractContextManager[None]:
        """Within it, the process is killed when it passes limits: by a thread, for it may not read what it is sent."""
        assert self.process.pid is not None
        return watched(self.process.pid, limits, self._overran)

    def kill(self) -> None:
        """End the process and all that it has started."""
        if self._known is not None and self._known.is_running():  # else its number may be another's by now
            kill_tree(self._known.pid)

    def receive(self) -> Any:
        """What the process sends next.

        Raises
        ------
        EOFError
            If it ends before that, also where a process that it has started keeps the pipe open.
        """
        if self.pipe not in wait([self.pipe, self.process.sentinel]):
            raise EOFError
        return self.pipe.recv()

    def _overran(self, overrun: Overrun) -> None:
        self.overrun = overrun
        self.kill()


_DONE, _NO_MEMORY, _RAISED = range(3)


def _serve(
    pipe: Connection,
    prepare: Callable[[], Callable[[Any], Any]],
    prepare_limits: ProcessLimits,
    limits: ProcessLimits,
) -> None:
    """Work until the pipe is closed: what the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who began this process ends it
    threading.Thread(target=_end_with_user, daemon=True).start()
    made: list[Callable[[Any], Any]] = []
    _limit_memory(prepare_limits)
    _limit_cpu(prepare_limits)
    if not _answer(pipe, lambda: made.append(prepare())):
        return
    _limit_memory(limits)
    with suppress(EOFError, OSError):
        while True:
            work = pipe.recv()
            _limit_cpu(limits)
            _answer(pipe, partial(made[0], work))


def _end_with_user() -> None:
    """In a thread: end this process when the one that uses it is gone, whatever it does then."""
    if (user := multiprocessing.parent_process()) is not None:
        wait([user.sentinel])
        os._exit(1)


def _limit_memory(limits: ProcessLimits) -> None:
    """Let this process have no more private memory than it has now and its work may take."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limits.memory_bytes if limits.memory_bytes else most
    _set_limit(resource.RLIMIT_DATA, wanted, most)


def _limit_cpu(limits: ProcessLimits) -> None:
    """Have the system end this process at twice its CPU limit, should nobody be there any more who does."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    is_limited = math.isfinite(limits.cpu_s)
    wanted = math.ceil(time.process_time() + 2 * limits.cpu_s) + 1 if is_limited else most
    _set_limit(resource.RLIMIT_CPU, wanted, most)


def _set_limit(kind: int, wanted: int, most: int) -> None:
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(kind, (allowed, most))


def _answer(pipe: Connection, call: Callable[[], Any]) -> bool:
    """Send the result of a call, or why there is none; return whether there is one."""
    try:
        kind, content = _DONE, ForkingPickler.dumps((_DONE, call()))
    except (MemoryError, SystemError):  # the latter where Python itself finds no room
        kind, content = _NO_MEMORY, ForkingPickler.dumps((_NO_MEMORY, None))
    except BaseException as error:  # also panics of libraries in Rust, and a result that cannot be pickled
        told = type(error).__name__[:_MOST_CHARS], _message(error)
        kind, content = _RAISED, ForkingPickler.dumps((_RAISED, told))
    with suppress(OSError):  # who asked is gone
        pipe.send_bytes(content)
    return kind == _DONE


def _message(error: BaseException) -> str:
    """The message of an error, whose class may be unable to make one."""
    try:
        return str(error)[:_MOST_CHARS]
    except BaseException:
        return ""

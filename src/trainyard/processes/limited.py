"""Do work in another process, one piece after another, each under limits on CPU seconds and memory."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import signal
import socket
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

from trainyard.processes.errors import (
    CpuLimitError,
    LimitError,
    MemoryLimitError,
    ProcessLostError,
    WorkError,
)
from trainyard.processes.forking import start_forked
from trainyard.processes.handle import ProcessHandle
from trainyard.processes.watch import ExceededLimit, ProcessLimits, kill_tree, watchdog

__all__ = ["LimitedProcess"]

Work = TypeVar("Work")
Result = TypeVar("Result")

_GIB = 1 << 30
_END_S = 5.0
_MOST_CHARS = 4000  # of an error
# Signals that end a program which gets no memory, or which crashes on its input.
_CRASHES = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)


class LimitedProcess(Generic[Work, Result]):
    """Does work in another process, which is started for the first piece of work, and ended when it passes a limit.

    A piece of work is tried once more, in a new process, if it gets no memory in a process that has done other work, or
    if its process is lost.

    Parameters
    ----------
    prepare : function that a new process calls first; it returns the function that does a piece of work. Must be
        picklable.
    limits : limits of each piece of work.
    prepare_limits : limits of ``prepare``; by default the same.
    context : returns the context of multiprocessing's fork server that makes the process.
    """

    def __init__(
        self,
        prepare: Callable[[], Callable[[Work], Result]],
        limits: ProcessLimits,
        prepare_limits: ProcessLimits | None = None,
        context: Callable[[], Any] = lambda: multiprocessing.get_context("forkserver"),
    ) -> None:
        self._prepare, self.limits, self._prepare_limits = prepare, limits, prepare_limits or limits
        self._context = context
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_closed = False

    def __call__(self, work: Work, wait_s: float = -1.0) -> Result:
        """Do a piece of work. Calls of several threads are done one after the other.

        Parameters
        ----------
        wait_s : longest time to wait for calls of other threads; without limit by default.

        Raises
        ------
        TimeoutError
            If calls of other threads take longer.
        LimitError
            If the work needs more than the limits allow.
        ProcessLostError
            If the process was lost twice.
        WorkError
            If the work raises an error.
        """
        if not self._lock.acquire(timeout=wait_s):
            raise TimeoutError(f"the process is still busy with work of other threads after {wait_s:g} s")
        try:
            return self._do(work)
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start the process and let it prepare, so that the first piece of work does not wait.

        Raises
        ------
        LimitError, ProcessLostError, WorkError
            As a call does, here because of ``prepare``.
        """
        with self._lock:
            self._started()

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
        """Process id of the running process; None if there is none."""
        running = self._running
        return None if running is None else running.process.pid

    def _do(self, work: Work) -> Result:
        is_first = self._running is None or not self._running.num_done
        try:
            return self._attempt(work)
        except ProcessLostError:
            return self._attempt(work)
        except MemoryLimitError:
            if is_first:
                raise
            return self._attempt(work)  # earlier work took a part of the memory

    def _started(self) -> _Running:
        if self._is_closed:
            raise ProcessLostError("lost its process, which is closed")
        if self._running is not None and self._running.is_alive:
            return self._running
        self._end()
        self._running = running = self._new_process()
        if self._is_closed:  # meanwhile, by a thread that may not have seen this process
            running.kill()
        try:
            self._ask(running, self._prepare_limits)
        except Exception:
            self._end()
            raise
        return running

    def _new_process(self) -> _Running:
        try:
            context = self._context()
            ours, theirs = context.Pipe()
            arguments = (theirs, self._prepare, self._prepare_limits, self.limits)
            process: BaseProcess = context.Process(target=_serve, args=arguments, daemon=True)
            try:
                with theirs:
                    start_forked(process)
                return _Running(process, ours)
            except (OSError, EOFError):
                ours.close()
                raise
        except (OSError, EOFError) as error:
            raise ProcessLostError(f"gets no process: {error}") from error

    def _attempt(self, work: Work) -> Result:
        try:
            running = self._started()
        except (LimitError, WorkError) as error:  # it says nothing of this piece of work
            raise ProcessLostError(f"gets no process, because preparing one {error}") from error
        result: Result = self._ask(running, self.limits, work)
        running.num_done += 1
        return result

    def _ask(self, running: _Running, limits: ProcessLimits, *work: Any) -> Any:
        """Send a piece of work, if one is given, and return the result that comes back."""
        try:
            with running.limited(limits):
                for each in work:
                    running.pipe.send(each)
                kind, value = running.receive()
        except (EOFError, OSError) as error:
            raise self._ended(running, limits) from error
        if kind == _NO_MEMORY:
            self._end()
            raise _no_memory(limits)
        if kind == _RAISED:
            raise WorkError(*value)
        return value

    def _ended(self, running: _Running, limits: ProcessLimits) -> Exception:
        """End a process that gave no answer, and return the error that says why."""
        self._end()
        code, exceeded = running.process.exitcode, running.exceeded
        if code == -signal.SIGXCPU or (exceeded is not None and exceeded.kind == "cpu"):
            return CpuLimitError(f"takes more than {limits.cpu_s:g} CPU seconds")
        if exceeded is not None:
            return ProcessLostError(f"lost its process, which {exceeded}")
        if code is not None and -code in _CRASHES:
            return _no_memory(limits, f", or crashes its process ({signal.Signals(-code).name})")
        return ProcessLostError(
            f"lost its process, which ended with status {code}: this machine may be short of memory"
        )

    def _end(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.close()
            self._running.process.join(_END_S)  # killed in any case, also if its end is not seen
            self._running = None


def _no_memory(limits: ProcessLimits, more: str = "") -> MemoryLimitError:
    return MemoryLimitError(f"takes more than {limits.memory_bytes / _GIB:.3g} GiB of memory{more}")


class _Running:
    """A running process and its pipe.

    Raises
    ------
    OSError
        If no file can be opened. The process is killed.
    """

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.num_done = 0
        self.exceeded: ExceededLimit | None = None
        assert process.pid is not None
        try:
            # multiprocessing takes a process for ended as soon as its fork server has ended.
            self._handle = ProcessHandle(process.pid)
            self._socket = socket.socket(fileno=os.dup(pipe.fileno()))
        except OSError:
            kill_tree(process.pid)
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process can do a piece of work."""
        return self.exceeded is None and self.process.is_alive()

    def limited(self, limits: ProcessLimits) -> AbstractContextManager[None]:
        """Kill the process if it passes a limit while the context is open, also while it does not read its pipe."""
        assert self.process.pid is not None
        return watchdog(self.process.pid, limits, self._kill_for)

    def kill(self) -> None:
        """End the process and its children, and whatever waits for their answer."""
        self._handle.kill()
        # A child of a process that has ended may keep the pipe open in the middle of an answer.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the pipe and the process."""
        self.pipe.close()
        self._socket.close()
        self._handle.close()

    def receive(self) -> Any:
        """Return the next object that the process sends.

        Raises
        ------
        EOFError
            If the process ends first, even if a child of it keeps the pipe open.
        """
        if self.pipe not in wait([self.pipe, self.process.sentinel]):
            raise EOFError
        return self.pipe.recv()

    def _kill_for(self, exceeded: ExceededLimit) -> None:
        self.exceeded = exceeded
        self.kill()


_DONE, _NO_MEMORY, _RAISED = range(3)


def _serve(
    pipe: Connection,
    prepare: Callable[[], Callable[[Any], Any]],
    prepare_limits: ProcessLimits,
    limits: ProcessLimits,
) -> None:
    """Run in the process: do work until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process, too; its parent ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _end_with_parent() -> None:
    """Run in a thread: end this process when its parent is gone, whatever this process does."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)


def _limit_memory(limits: ProcessLimits) -> None:
    """Limit private memory to the present amount plus that of a piece of work."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = psutil.Process().memory_info().data + limits.memory_bytes if limits.memory_bytes else most
    _set_limit(resource.RLIMIT_DATA, wanted, most)


def _limit_cpu(limits: ProcessLimits) -> None:
    """Let the system end this process after twice the CPU seconds of a piece of work, should its parent be gone."""
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
    except (MemoryError, SystemError):  # SystemError: Python itself gets no memory
        kind, content = _NO_MEMORY, ForkingPickler.dumps((_NO_MEMORY, None))
    except BaseException as error:  # also panics of libraries in Rust, and a result that cannot be pickled
        told = type(error).__name__[:_MOST_CHARS], _message(error)
        kind, content = _RAISED, ForkingPickler.dumps((_RAISED, told))
    with suppress(OSError):  # the parent is gone
        pipe.send_bytes(content)
    return kind == _DONE


def _message(error: BaseException) -> str:
    """The message of an error, whose class may be unable to make one."""
    try:
        return str(error)[:_MOST_CHARS]
    except BaseException:
        return ""

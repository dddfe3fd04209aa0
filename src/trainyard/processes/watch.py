"""Watch processes: find one that used too many CPU seconds, or no CPU for so long that it will not go on.

CPU seconds are counted, because any process is slow by the clock on a busy machine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

__all__ = [
    "IDLE_S",
    "ExceededLimit",
    "ProcessLimits",
    "ProcessState",
    "ProcessWatch",
    "kill_tree",
    "own_cpu_seconds",
    "process_state",
    "process_tree",
    "tree_cpu_seconds",
    "watch_together",
    "watchdog",
]

IDLE_S = 600.0
"""How long a process may use no CPU, by default."""

_IDLE_CPU_S = 0.05  # what a waiting process uses for timers and heartbeats
_LONGEST_GAP_S = 30.0
_LONGEST_LOOK_S = 0.5
_LOOKS_PER_LIMIT = 10
_STOPPED = frozenset((psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of a process on one piece of work.

    Attributes
    ----------
    cpu_s : most CPU seconds of the process and its children.
    memory_bytes : most private memory that the work may add to the process; 0 for any amount.
    idle_s : longest time by the clock in which the process uses no CPU.
    """

    cpu_s: float
    memory_bytes: int = 0
    idle_s: float = IDLE_S


class ExceededLimit(NamedTuple):
    """A limit that a process has passed.

    Attributes
    ----------
    kind : "cpu" if the process used too many CPU seconds, "idle" if it used no CPU for too long.
    seconds : CPU seconds used, or seconds by the clock without use of CPU.
    """

    kind: Literal["cpu", "idle"]
    seconds: float

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"used {self.seconds:.3g} CPU seconds"
        return f"used no CPU for {self.seconds:.0f} s: it is stopped, or this machine is too busy"


class ProcessWatch:
    """Measures CPU seconds and idle time of a process during one piece of work.

    The time between two looks counts as at most half a minute, and as at most half of ``idle_s``. So a watcher that was
    stopped itself does not take the process for stopped.

    Parameters
    ----------
    pid : id of the process.
    limits : limits of each piece of work.
    cpu : returns the CPU seconds that a process has used since its start; None if they cannot be read now.
    clock : returns the watcher's time, in seconds.
    """

    def __init__(
        self,
        pid: int,
        limits: ProcessLimits,
        cpu: Callable[[int], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid, self.limits = pid, limits
        self._cpu, self._clock = cpu or tree_cpu_seconds, clock
        self.begin()

    def begin(self) -> None:
        """Start to count anew: a piece of work begins, or has made progress."""
        self._begun_cpu_s: float | None
        self._active_cpu_s: float | None
        self._begun_cpu_s = self._active_cpu_s = self._cpu(self.pid)
        self._looked_s, self._idle_s = self._clock(), 0.0

    def look(self) -> ExceededLimit | None:
        """Return the limit that is passed, if any. A look at which nothing can be read changes nothing."""
        now_s, cpu_s = self._clock(), self._cpu(self.pid)
        if cpu_s is None:
            return None
        if self._begun_cpu_s is None or self._active_cpu_s is None:
            self._begun_cpu_s = self._active_cpu_s = cpu_s
        self._idle_s += min(now_s - self._looked_s, _LONGEST_GAP_S, self.limits.idle_s / 2)
        self._looked_s = now_s
        if abs(cpu_s - self._active_cpu_s) > _IDLE_CPU_S:  # fewer seconds than before: a child is gone
            self._active_cpu_s, self._idle_s = cpu_s, 0.0
        if cpu_s - self._begun_cpu_s > self.limits.cpu_s:
            return ExceededLimit("cpu", cpu_s - self._begun_cpu_s)
        if self._idle_s > self.limits.idle_s:
            return ExceededLimit("idle", self._idle_s)
        return None


def watch_together(pids: Sequence[int], limits: ProcessLimits) -> ProcessWatch:
    """Watch processes that work together, where one that waits for another uses no CPU.

    Parameters
    ----------
    limits : ``cpu_s`` limits the average of the processes; ``idle_s`` is time in which none of them uses CPU.
    """
    together = replace(limits, cpu_s=limits.cpu_s * len(pids))

    def cpu_seconds(_: int) -> float | None:
        found = [cpu_s for pid in pids if (cpu_s := tree_cpu_seconds(pid)) is not None]
        return sum(found) if len(found) == len(pids) else None

    return ProcessWatch(pids[0], together, cpu_seconds)


@contextmanager
def watchdog(
    pid: int,
    limits: ProcessLimits,
    on_exceeded: Callable[[ExceededLimit], None],
    cpu: Callable[[int], float | None] | None = None,
) -> Iterator[None]:
    """Watch a process in a thread while the context is open, and call a function once if it passes a limit.

    The thread counts from its first look on, so that short work costs no measurement.

    Parameters
    ----------
    pid, limits, cpu : see `ProcessWatch`.
    on_exceeded : function that is called with the passed limit. It never runs after the context is closed.
    """
    over, deciding = threading.Event(), threading.Lock()
    look_s = min(_LONGEST_LOOK_S, limits.cpu_s / _LOOKS_PER_LIMIT, limits.idle_s / _LOOKS_PER_LIMIT)

    def look() -> None:
        watch = None
        while not over.wait(look_s):
            if watch is None:
                watch = ProcessWatch(pid, limits, cpu)
            elif (exceeded := watch.look()) is not None:
                with deciding:
                    if not over.is_set():
                        on_exceeded(exceeded)
                return

    threading.Thread(target=look, daemon=True, name="limits of a process").start()
    try:
        yield
    finally:
        with deciding:
            over.set()


def tree_cpu_seconds(pid: int) -> float | None:
    """CPU seconds that a process and its children have used.

    Returns
    -------
    0 if there is no such process; None if the system does not tell now, such as where no file can be opened.
    """
    found = 0.0
    try:
        for each in process_tree(pid):
            with suppress(psutil.NoSuchProcess):
                found += sum(each.cpu_times()[:4])  # with the children that it has waited for
    except (psutil.Error, OSError):
        return None
    return found


def kill_tree(pid: int) -> None:
    """Kill a process, and its children as far as the system tells them now."""
    children = list[psutil.Process]()
    with suppress(psutil.Error, OSError):
        children += process_tree(pid)[1:]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        with suppress(psutil.Error, OSError):
            child.kill()


def own_cpu_seconds(pid: int) -> float | None:
    """CPU seconds that a process has used without its children, as `tree_cpu_seconds`."""
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.NoSuchProcess:
        return 0.0
    except (psutil.Error, OSError):
        return None


class ProcessState(NamedTuple):
    """State of a process at one moment, as the system reports it.

    Attributes
    ----------
    cpu_s : CPU seconds that the process has used since its start, without its children.
    is_stopped : whether a signal or a debugger has stopped the process.
    is_runnable : whether the process runs, or waits for a core only.
    """

    cpu_s: float
    is_stopped: bool
    is_runnable: bool


def process_state(pid: int) -> ProcessState:
    """Return the state of a process; a process that does not exist is neither stopped nor runnable."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            is_runnable = status == psutil.STATUS_RUNNING or _has_runnable_thread(pid)
            return ProcessState(sum(process.cpu_times()[:2]), status in _STOPPED, is_runnable)
    except (psutil.Error, OSError):
        return ProcessState(0.0, False, False)


def _has_runnable_thread(pid: int) -> bool:
    with suppress(OSError):  # the process ends, or the system is not Linux
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def process_tree(pid: int) -> Sequence[psutil.Process]:
    """Return a process and its running children of all generations; empty if there is no such process.

    Raises
    ------
    psutil.Error, OSError
        If the system does not tell now.
    """
    try:
        process = psutil.Process(pid)
        return (process, *process.children(recursive=True))
    except psutil.NoSuchProcess:
        return ()

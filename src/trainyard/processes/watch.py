"""Watch: when a process has worked for too long, or used no CPU for so long that it will not go on.

A process of a busy machine works slowly and is not at fault, so that CPU seconds are counted, and not the clock.
"""

from __future__ import annotations

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
    "Activity",
    "Overrun",
    "ProcessLimits",
    "ProcessWatch",
    "activity",
    "cpu_seconds",
    "kill_tree",
    "own_cpu_seconds",
    "process_tree",
    "watch_together",
    "watched",
]

IDLE_S = 600.0
"""How long a process may use no CPU, by default."""

_IDLE_CPU_S = 0.05  # that timers and heartbeats of a process use that waits
_LONGEST_GAP_S = 30.0
_LONGEST_LOOK_S = 0.5
_LOOKS_PER_LIMIT = 10
_STOPPED = frozenset((psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of a process on one piece of work.

    Attributes
    ----------
    cpu_s : CPU seconds, of the process and of all that it starts.
    memory_bytes : private memory that the process may have beside what it has when the work begins; 0 for any amount.
    idle_s : seconds by the clock in which it uses no CPU.
    """

    cpu_s: float
    memory_bytes: int = 0
    idle_s: float = IDLE_S


class Overrun(NamedTuple):
    """A limit that a process has passed.

    Attributes
    ----------
    kind : "cpu" for a process that worked for too long, "idle" for one that used no CPU.
    seconds : CPU seconds that it used, or seconds by the clock without CPU.
    """

    kind: Literal["cpu", "idle"]
    seconds: float

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"used {self.seconds:.3g} CPU seconds"
        return f"used no CPU for {self.seconds:.0f} s: it is stopped, or this machine is too busy"


class ProcessWatch:
    """Counts what a process uses from one piece of work to the next.

    Time in which the watcher itself did not look counts as at most half a minute and half of ``idle_s``, so that a
    watcher that was stopped does not take others for stopped.

    Parameters
    ----------
    pid : of the process.
    limits : on each piece of work.
    cpu : gives the CPU seconds that a process has used since it began.
    clock : of the watcher, in seconds.
    """

    def __init__(
        self,
        pid: int,
        limits: ProcessLimits,
        cpu: Callable[[int], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid, self.limits = pid, limits
        self._cpu, self._clock = cpu or cpu_seconds, clock
        self.begin()

    def begin(self) -> None:
        """Count from now on: a piece of work begins, or has made progress."""
        self._begun_cpu_s = self._active_cpu_s = self._cpu(self.pid)
        self._looked_s, self._idle_s = self._clock(), 0.0

    @property
    def used_cpu_s(self) -> float:
        """CPU seconds since the piece of work began."""
        return self._cpu(self.pid) - self._begun_cpu_s

    def look(self) -> Overrun | None:
        """Return which limit is passed, if one is."""
        now_s, cpu_s = self._clock(), self._cpu(self.pid)
        self._idle_s += min(now_s - self._looked_s, _LONGEST_GAP_S, self.limits.idle_s / 2)
        self._looked_s = now_s
        if abs(cpu_s - self._active_cpu_s) > _IDLE_CPU_S:  # less, where a process that it had started is gone
            self._active_cpu_s, self._idle_s = cpu_s, 0.0
        if cpu_s - self._begun_cpu_s > self.limits.cpu_s:
            return Overrun("cpu", cpu_s - self._begun_cpu_s)
        if self._idle_s > self.limits.idle_s:
            return Overrun("idle", self._idle_s)
        return None


def watch_together(pids: Sequence[int], limits: ProcessLimits) -> ProcessWatch:
    """Watch processes that work together: who waits for another uses no CPU.

    Parameters
    ----------
    limits : ``cpu_s`` of each on average, and ``idle_s`` in which none of them uses any.
    """
    together = replace(limits, cpu_s=limits.cpu_s * len(pids))
    return ProcessWatch(pids[0], together, lambda _: sum(map(cpu_seconds, pids)))


@contextmanager
def watched(
    pid: int,
    limits: ProcessLimits,
    end: Callable[[Overrun], None],
    cpu: Callable[[int], float] | None = None,
) -> Iterator[None]:
    """Within it, a thread looks at a process, and calls a function once when the process passes a limit.

    Nothing is measured of what is soon done: the thread counts from its first look on.

    Parameters
    ----------
    pid, limits, cpu : as of `ProcessWatch`.
    end : is not called, and does not run any more, after the context.
    """
    over, deciding = threading.Event(), threading.Lock()
    look_s = min(_LONGEST_LOOK_S, limits.cpu_s / _LOOKS_PER_LIMIT, limits.idle_s / _LOOKS_PER_LIMIT)

    def look() -> None:
        watch = None
        while not over.wait(look_s):
            if watch is None:
                watch = ProcessWatch(pid, limits, cpu)
            elif (overrun := watch.look()) is not None:
                with deciding:
                    if not over.is_set():
                        end(overrun)
                return

    threading.Thread(target=look, daemon=True, name="limits of a process").start()
    try:
        yield
    finally:
        with deciding:
            over.set()


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process and all that it has started have used; 0 for one that is not there."""
    found = 0.0
    for each in process_tree(pid):
        with suppress(psutil.NoSuchProcess):
            found += sum(each.cpu_times()[:4])  # with those of processes that it has waited for
    return found


def kill_tree(pid: int) -> None:
    """End a process and all that it has started."""
    for each in process_tree(pid):
        with suppress(psutil.NoSuchProcess):
            each.kill()


def own_cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used itself; 0 for one that is not there."""
    with suppress(psutil.NoSuchProcess):
        return sum(psutil.Process(pid).cpu_times()[:2])
    return 0.0


class Activity(NamedTuple):
    """What the system says of a process at one moment.

    Attributes
    ----------
    cpu_s : CPU seconds that it has used itself since it began.
    is_stopped : whether a signal or a debugger has stopped it.
    is_runnable : whether it runs, or waits for nothing but a core.
    """

    cpu_s: float
    is_stopped: bool
    is_runnable: bool


def activity(pid: int) -> Activity:
    """What the system says of a process; one that is not there is neither stopped nor runnable."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            is_runnable = status == psutil.STATUS_RUNNING or _has_runnable_thread(pid)
            return Activity(sum(process.cpu_times()[:2]), status in _STOPPED, is_runnable)
    except psutil.NoSuchProcess:
        return Activity(0.0, False, False)


def _has_runnable_thread(pid: int) -> bool:
    with suppress(OSError):  # it ends, or the system is not Linux
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def process_tree(pid: int) -> Sequence[psutil.Process]:
    """A process and all that it has started and that run now; empty where there is no such process."""
    try:
        process = psutil.Process(pid)
        return (process, *process.children(recursive=True))
    except psutil.NoSuchProcess:
        return ()

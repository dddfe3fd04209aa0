"""Watch: when a process has worked for too long, or used no CPU for so long that it will not go on.

A process of a busy machine works slowly and is not at fault, so that CPU seconds are counted, and not the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import psutil

__all__ = ["IDLE_S", "Overrun", "ProcessLimits", "ProcessWatch", "cpu_seconds", "kill_tree", "process_tree"]

IDLE_S = 600.0
"""How long a process may use no CPU, by default."""

_IDLE_CPU_S = 0.05  # that timers and heartbeats of a process use that waits
_LONGEST_GAP_S = 30.0


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

    Time in which the watcher itself did not look counts as at most half a minute, so that a watcher that was stopped
    does not take others for stopped.

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
        self._idle_s += min(now_s - self._looked_s, _LONGEST_GAP_S)
        self._looked_s = now_s
        if cpu_s - self._active_cpu_s > _IDLE_CPU_S:
            self._active_cpu_s, self._idle_s = cpu_s, 0.0
        if cpu_s - self._begun_cpu_s > self.limits.cpu_s:
            return Overrun("cpu", cpu_s - self._begun_cpu_s)
        if self._idle_s > self.limits.idle_s:
            return Overrun("idle", self._idle_s)
        return None


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


def process_tree(pid: int) -> Sequence[psutil.Process]:
    """A process and all that it has started and that run now; empty where there is no such process."""
    try:
        process = psutil.Process(pid)
        return (process, *process.children(recursive=True))
    except psutil.NoSuchProcess:
        return ()

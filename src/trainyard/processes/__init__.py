"""Processes under limits on CPU seconds and memory; the clock limits only a process that uses no CPU."""

from trainyard.processes.lifetime import die_with, ending_all_below
from trainyard.processes.limited import (
    CpuLimitError,
    LimitedProcess,
    LimitError,
    MemoryLimitError,
    ProcessLostError,
    WorkError,
)
from trainyard.processes.waiting import wait_for_all
from trainyard.processes.watch import (
    IDLE_S,
    Activity,
    Overrun,
    ProcessLimits,
    ProcessWatch,
    activity,
    cpu_seconds,
    kill_tree,
    own_cpu_seconds,
    watch_together,
    watched,
)

__all__ = [
    "IDLE_S",
    "Activity",
    "CpuLimitError",
    "LimitError",
    "LimitedProcess",
    "MemoryLimitError",
    "Overrun",
    "ProcessLimits",
    "ProcessLostError",
    "ProcessWatch",
    "WorkError",
    "activity",
    "cpu_seconds",
    "die_with",
    "ending_all_below",
    "kill_tree",
    "own_cpu_seconds",
    "wait_for_all",
    "watch_together",
    "watched",
]

"""Processes that work under limits: CPU seconds and bytes of the process, and the clock only where it uses no CPU."""

from trainyard.processes.limited import (
    CpuLimitError,
    LimitedProcess,
    LimitError,
    MemoryLimitError,
    ProcessLostError,
    WorkError,
)
from trainyard.processes.watch import Overrun, ProcessLimits, ProcessWatch, cpu_seconds, kill_tree

__all__ = [
    "CpuLimitError",
    "LimitError",
    "LimitedProcess",
    "MemoryLimitError",
    "Overrun",
    "ProcessLimits",
    "ProcessLostError",
    "ProcessWatch",
    "WorkError",
    "cpu_seconds",
    "kill_tree",
]

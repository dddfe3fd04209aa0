"""Processes that work under limits: CPU seconds and memory of the process; the clock only where it uses no CPU."""

from trainyard.processes.errors import (
    CpuLimitError,
    LimitedProcessError,
    LimitError,
    MemoryLimitError,
    ProcessLostError,
    WorkError,
)
from trainyard.processes.forking import fork_server, start_forked
from trainyard.processes.lifetime import die_with_parent, killing_descendants
from trainyard.processes.limited import LimitedProcess
from trainyard.processes.main_module import can_run_again, pickled
from trainyard.processes.waiting import wait_for_all
from trainyard.processes.watch import (
    IDLE_S,
    ExceededLimit,
    ProcessLimits,
    ProcessState,
    ProcessWatch,
    kill_tree,
    own_cpu_seconds,
    process_state,
    tree_cpu_seconds,
    watch_together,
    watchdog,
)

__all__ = [
    "IDLE_S",
    "CpuLimitError",
    "ExceededLimit",
    "LimitError",
    "LimitedProcess",
    "LimitedProcessError",
    "MemoryLimitError",
    "ProcessLimits",
    "ProcessLostError",
    "ProcessState",
    "ProcessWatch",
    "WorkError",
    "can_run_again",
    "die_with_parent",
    "fork_server",
    "kill_tree",
    "killing_descendants",
    "own_cpu_seconds",
    "pickled",
    "process_state",
    "start_forked",
    "tree_cpu_seconds",
    "wait_for_all",
    "watch_together",
    "watchdog",
]

"""Find an engine process that has work and makes no progress."""

from __future__ import annotations

import ctypes
from multiprocessing.context import BaseContext

from trainyard.processes import ExceededLimit, ProcessLimits, ProcessWatch

__all__ = ["STEP_LIMITS", "StepProgress", "StepWatch"]

STEP_LIMITS = ProcessLimits(cpu_s=30.0)
"""Default limits of an engine from one finished step or layer to the next."""


class StepProgress:
    """Counter of an engine's progress, in memory that the engine shares with its watcher.

    Parameters
    ----------
    context : multiprocessing context that starts the process of the engine.
    """

    def __init__(self, context: BaseContext) -> None:
        self._count = context.RawValue(ctypes.c_uint64)

    @property
    def count(self) -> int:
        """Number of finished steps, layers and messages."""
        return int(self._count.value)

    def advance(self) -> None:
        """Count one more. Only the process of the engine may call this."""
        self._count.value += 1


class StepWatch:
    """Watches one process of an engine.

    Parameters
    ----------
    pid : id of the process.
    progress : counter that the process advances.
    limits : limits of the process until the counter advances again.
    """

    def __init__(self, pid: int, progress: StepProgress, limits: ProcessLimits) -> None:
        self._pid, self._progress, self._limits = pid, progress, limits
        self._count = -1
        self._watch: ProcessWatch | None = None

    def look(self, *, has_work: bool) -> ExceededLimit | None:
        """Return the limit that the process has passed without progress, if any. Call this about once a second.

        Parameters
        ----------
        has_work : whether the process is expected to make progress.
        """
        count = self._progress.count
        if not has_work or count != self._count:
            self._count, self._watch = count, None
            return None
        if self._watch is None:  # most steps end before the next look and cost no measurement
            self._watch = ProcessWatch(self._pid, self._limits)
            return None
        return self._watch.look()

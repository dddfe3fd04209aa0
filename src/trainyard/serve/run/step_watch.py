"""Watch of the process of an engine: one that has work and does no step is noticed."""

from __future__ import annotations

import ctypes
from multiprocessing.context import BaseContext

from trainyard.processes import Overrun, ProcessLimits, ProcessWatch

__all__ = ["STEP_LIMITS", "StepProgress", "StepWatch"]

STEP_LIMITS = ProcessLimits(cpu_s=30.0)
"""What an engine may use by default until a step, or a layer of it, is done."""


class StepProgress:
    """Counts what an engine has done, in memory that it shares with the process that watches it.

    Parameters
    ----------
    context : of multiprocessing, whose process gets it.
    """

    def __init__(self, context: BaseContext) -> None:
        self._count = context.RawValue(ctypes.c_uint64)

    @property
    def count(self) -> int:
        """Steps, layers and messages that are done."""
        return int(self._count.value)

    def advance(self) -> None:
        """One more is done; called in the process of the engine only."""
        self._count.value += 1


class StepWatch:
    """Watches one process of an engine.

    Parameters
    ----------
    pid : of the process.
    progress : that the process counts.
    limits : what it may use between two counts.
    """

    def __init__(self, pid: int, progress: StepProgress, limits: ProcessLimits) -> None:
        self._pid, self._progress, self._limits = pid, progress, limits
        self._count = -1
        self._watch: ProcessWatch | None = None

    def look(self, *, has_work: bool) -> Overrun | None:
        """Return which limit the process has passed without progress, if it has one; to be called every second or so.

        Parameters
        ----------
        has_work : whether it is expected to make progress.
        """
        count = self._progress.count
        if not has_work or count != self._count:
            self._count, self._watch = count, None
            return None
        if self._watch is None:  # it is soon over as a rule, so that nothing is measured before
            self._watch = ProcessWatch(self._pid, self._limits)
            return None
        return self._watch.look()

"""Data waits: whether the processes of a run wait for their data, and how long."""

from __future__ import annotations

from trainyard.job.run.config import StepMetrics

__all__ = ["DataWaits"]

_WARM_UP_STEPS = 3  # in which workers start, and memory is touched for the first time
_STEPS = 10
_PART = 0.2  # of a step
_LEAST_S = 1e-3


class DataWaits:
    """Seconds in which the steps of a run waited for data, until they can be judged once."""

    def __init__(self) -> None:
        self._num_steps, self._waits_s, self._steps_s = 0, 0.0, 0.0

    def note(self, step: StepMetrics) -> str:
        """Count a step; after the tenth, return a sentence if reading the data limits the run, else ""."""
        self._num_steps += 1
        if not _WARM_UP_STEPS < self._num_steps <= _WARM_UP_STEPS + _STEPS:
            return ""
        self._waits_s, self._steps_s = self._waits_s + step.data_s, self._steps_s + step.seconds
        waits_s, step_s = self._waits_s / _STEPS, self._steps_s / _STEPS
        if self._num_steps < _WARM_UP_STEPS + _STEPS or waits_s < max(_LEAST_S, _PART * step_s):
            return ""
        return (
            f"the data limits the run: a step waits {waits_s:.3g} s for its batch, of {step_s:.3g} s. Read ahead with "
            "more workers (DataLoader(num_workers=N)), or prepare the data before"
        )

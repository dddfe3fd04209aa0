"""Read the progress that a command reports: see `trainyard.fleet.progress`."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainyard.fleet.run.losses import entries, whole_lines
from trainyard.job.run.processes.logs import end_of

_LAST_BYTES = 4096


class ProgressLine(NamedTuple):
    """A line of a command's progress.

    Attributes
    ----------
    step : steps done.
    steps_per_s, loss : NaN if the line does not say it.
    """

    step: int
    steps_per_s: float
    loss: float


def last_progress_line(file: Path, most_steps: int) -> ProgressLine | None:
    """Read the last line that a command wrote; None if it has written none.

    Parameters
    ----------
    most_steps : all steps of the command; a line with more counts as these.
    """
    lines = progress_lines(end_of(file, _LAST_BYTES), most_steps)
    return lines[-1] if lines else None


class CommandLosses:
    """Mean losses of the epochs of a command; each line of its progress is read once.

    Parameters
    ----------
    file : of the progress; it need not be there yet.
    epoch_steps : steps of an epoch.
    most_steps : as of `last_progress_line`.
    """

    def __init__(self, file: Path, epoch_steps: int, most_steps: int) -> None:
        self._file, self._epoch_steps, self._most_steps = file, epoch_steps, most_steps
        self._offset = 0
        # Loss by step, by epoch.
        self._epochs: dict[int, dict[int, float]] = {}

    def read(self) -> tuple[tuple[float, float], ...]:
        """Return steps done and mean loss of each finished epoch with losses, ascending by steps."""
        with suppress(OSError):
            text = whole_lines(self._file, self._offset)
            self._offset += len(text)
            for line in progress_lines(text, self._most_steps):
                if math.isfinite(line.loss):
                    epoch = max(0, line.step - 1) // self._epoch_steps
                    self._epochs.setdefault(epoch, {})[line.step] = line.loss
        # `fmean` raises an error for huge losses, which a user may write.
        finished = [self._epochs[epoch] for epoch in sorted(self._epochs)[:-1]]
        return tuple((float(max(losses)), sum(losses.values()) / len(losses)) for losses in finished)


def progress_lines(text: bytes, most_steps: int) -> list[ProgressLine]:
    """Read lines of a command's progress; a line without a step is left out, as the command may write anything."""
    lines = []
    for entry in entries(text):
        if isinstance(entry, dict) and math.isfinite(step := _number(entry.get("step"))):
            rate, loss = _number(entry.get("steps_per_s")), _number(entry.get("loss"))
            lines.append(ProgressLine(int(max(0.0, min(step, most_steps))), rate, loss))
    return lines


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    with suppress(OverflowError):
        return float(value) if is_number else math.nan  # type: ignore[arg-type]
    return math.nan

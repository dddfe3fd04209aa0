"""What a command has written of its progress: see `trainyard.fleet.progress`."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainyard.fleet.run.losses import entries
from trainyard.job.run.processes.logs import end_of

_LAST_BYTES, _MOST_BYTES = 4096, 1 << 20


class Told(NamedTuple):
    """A line of a command's progress; what it does not say is NaN."""

    step: int
    steps_per_s: float
    loss: float


def last_told(file: Path, most_steps: int) -> Told | None:
    """The last line that a command wrote; None if it has written none.

    Parameters
    ----------
    most_steps : of the command in all; a line that says more counts as these.
    """
    found = _told(end_of(file, _LAST_BYTES), most_steps)
    return found[-1] if found else None


class ReportedLosses:
    """Mean losses of the epochs of a command, of which each line is read once.

    Parameters
    ----------
    file : of its progress; it need not be there yet.
    epoch_steps : steps of an epoch.
    """

    def __init__(self, file: Path, epoch_steps: int, most_steps: int) -> None:
        self._file, self._epoch_steps, self._most_steps = file, epoch_steps, most_steps
        self._offset = 0
        # By epoch: the last step of it that has a loss, and the losses.
        self._epochs: dict[int, dict[int, float]] = {}

    def read(self) -> tuple[tuple[float, float], ...]:
        """Steps done and mean loss of every epoch that is over, as far as they are written, ascending by steps."""
        for told in _told(self._next_lines(), self._most_steps):
            if math.isfinite(told.loss):
                epoch = max(0, told.step - 1) // self._epoch_steps
                self._epochs.setdefault(epoch, {})[told.step] = told.loss
        over = sorted(self._epochs)[:-1]
        return tuple((float(max(found := self._epochs[e])), sum(found.values()) / len(found)) for e in over)

    def _next_lines(self) -> bytes:
        """Whole lines that were not read yet."""
        with suppress(OSError), self._file.open("rb") as stream:
            stream.seek(self._offset)
            text = stream.read(_MOST_BYTES)
            text = text[: text.rfind(b"\n") + 1]
            self._offset += len(text)
            return text
        return b""


def _told(text: bytes, most_steps: int) -> list[Told]:
    """What lines say; those that say no step are left out, as anybody may write there anything."""
    found = []
    for entry in entries(text):
        if isinstance(entry, dict) and math.isfinite(step := _number(entry.get("step"))):
            rate, loss = _number(entry.get("steps_per_s")), _number(entry.get("loss"))
            found.append(Told(int(max(0.0, min(step, most_steps))), rate, loss))
    return found


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    with suppress(OverflowError):
        return float(value) if is_number else math.nan  # type: ignore[arg-type]
    return math.nan

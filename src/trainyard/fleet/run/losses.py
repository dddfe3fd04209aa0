"""The losses of a job as it writes them: a scheduler looks often, and reads each line of the metrics once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

_MOST_BYTES = 1 << 20  # that are read at once; a long file that was there before is read over several looks


class Losses:
    """Mean losses of the epochs of a job.

    A job that goes back to a checkpoint does the same steps again, with the same losses.

    Parameters
    ----------
    metrics : a file with a line for every step; it need not be there yet.
    epoch_steps : steps of an epoch.
    """

    def __init__(self, metrics: Path, epoch_steps: int) -> None:
        self._metrics, self._epoch_steps = metrics, epoch_steps
        self._offset, self._epoch, self._file = 0, -1, -1
        self._open: list[float] = []
        self._means: dict[float, float] = {}
        self._found: tuple[tuple[float, float], ...] = ()

    def read(self) -> tuple[tuple[float, float], ...]:
        """Steps done and mean loss at the end of every epoch, as far as they are written, ascending by steps."""
        for entry in entries(self._next_lines()):
            step, loss = int(entry["step"]), float(next(iter(entry["losses"].values())))
            if step // self._epoch_steps != self._epoch:
                self._epoch, self._open = step // self._epoch_steps, []
            self._open.append(loss)
            if (step + 1) % self._epoch_steps == 0 and math.isfinite(mean := fmean(self._open)):
                self._means[float(step + 1)] = mean
                self._found = tuple(sorted(self._means.items()))
        return self._found

    def _next_lines(self) -> bytes:
        """Whole lines that were not read yet."""
        try:
            with self._metrics.open("rb") as stream:
                if (file := os.fstat(stream.fileno()).st_ino) != self._file:
                    self._file, self._offset = file, 0  # it was begun anew, because it had grown too large
                stream.seek(self._offset)
                text = stream.read(_MOST_BYTES)
        except FileNotFoundError:
            return b""
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        return text


def entries(text: bytes) -> Iterator[dict[str, Any]]:
    """Whole lines of a file of metrics; one that was cut off is left out."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue

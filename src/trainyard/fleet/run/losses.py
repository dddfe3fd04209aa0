"""The losses of a job as it writes them: a scheduler looks often, and reads each line of the metrics once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from trainyard.job.run.processes.logs import metrics_files

_MOST_BYTES = 1 << 20  # of one read; a long file that was there before takes several


class Losses:
    """Mean losses of the epochs of a job.

    A job that goes back to a checkpoint does the same steps again, with the same losses.

    Parameters
    ----------
    logs : folder of the files of metrics, with a line for every step; they need not be there yet.
    epoch_steps : steps of an epoch.
    """

    def __init__(self, logs: Path, epoch_steps: int) -> None:
        self._logs, self._epoch_steps = logs, epoch_steps
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
        """Whole lines that were not read yet, those of the older file first."""
        with suppress(FileNotFoundError):  # it is renamed in this moment
            files = {file.stat().st_ino: file for file in metrics_files(self._logs)}
            begin = list(files).index(self._file) if self._file in files else 0
            for inode, file in list(files.items())[begin:]:
                if inode != self._file:
                    self._file, self._offset = inode, 0
                if text := whole_lines(file, self._offset):
                    self._offset += len(text)
                    return text
        return b""


def whole_lines(file: Path, offset: int) -> bytes:
    """Read the whole lines of a file from an offset in bytes: a line that is still being written is left for later.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with file.open("rb") as stream:
        stream.seek(offset)
        text = stream.read(_MOST_BYTES)
    return text[: text.rfind(b"\n") + 1]


def entries(text: bytes) -> Iterator[dict[str, Any]]:
    """Whole lines of a file of metrics; one that was cut off is left out."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue

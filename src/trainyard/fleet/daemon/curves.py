"""Loss and speed of a job over its steps, sampled from its files: long jobs cost no more than short ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.command_progress import progress_lines
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.losses import entries
from trainyard.fleet.workload.command import Command
from trainyard.job.run.processes.logs import metrics_files

__all__ = ["CurvePoint", "curve_of"]

_MOST_PARTS, _PART_BYTES, _PART_LINES = 32, 8192, 8


class CurvePoint(NamedTuple):
    """Mean loss and speed over some steps of a job.

    Attributes
    ----------
    step : number of steps done after the last of them.
    loss, steps_per_s : None if the job has reported none.
    """

    step: int
    loss: float | None
    steps_per_s: float | None


def curve_of(directory: JobDirectory) -> list[CurvePoint]:
    """Return at most 32 points of a job, ascending by steps. A step that was repeated counts as the last time.

    At most 32 evenly spread parts of 8 KiB of the job's files are read, and the last 8 lines of each part count.
    """
    points: list[CurvePoint] = []
    with suppress(OSError, FleetError):  # the job never started, is being moved, or its folder is damaged
        for point in _points(directory):
            while points and points[-1].step >= point.step:
                points.pop()
            points.append(point)
    return points


def _points(directory: JobDirectory) -> Iterator[CurvePoint]:
    """Yield points in the order in which the job wrote them."""
    runnable = directory.runnable()
    if not isinstance(runnable, Command):
        for part in _parts(metrics_files(directory.logs)):
            yield from _point_of_steps(part)
    elif runnable.steps:
        for part in _parts([directory.progress_file]):
            lines = progress_lines(part, runnable.steps)[-_PART_LINES:]
            if lines:
                losses, rates = ([getattr(line, name) for line in lines] for name in ("loss", "steps_per_s"))
                yield CurvePoint(lines[-1].step, _mean(losses), _mean(rates))


def _point_of_steps(part: bytes) -> Iterator[CurvePoint]:
    """Yield the point of the last steps in a part of a training's metrics, if it has steps."""
    lines = list(entries(b"\n".join(part.splitlines()[-_PART_LINES:])))
    if lines:
        step_s = fmean(line["seconds"] for line in lines)
        losses = [float(next(iter(line["losses"].values()))) for line in lines]
        yield CurvePoint(lines[-1]["step"] + 1, _mean(losses), 1.0 / step_s if step_s > 0 else None)


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the finite values; None if there are none, or if the mean overflows."""
    known = [value for value in values if math.isfinite(value)]
    mean = sum(known) / len(known) if known else math.nan
    return mean if math.isfinite(mean) else None


def _parts(files: Sequence[Path]) -> Iterator[bytes]:
    """Yield evenly spread parts of files, in whole lines, the newest last."""
    sizes = [file.stat().st_size for file in files]
    if sum(sizes) > _MOST_PARTS * _PART_BYTES:
        for file, size in zip(files, sizes, strict=True):
            yield from _spread_parts(file, size, math.ceil(sum(sizes) / _MOST_PARTS))
        return
    lines = [line for file, size in zip(files, sizes, strict=True) for line in _lines(file, 0, size)]
    count = max(1, math.ceil(len(lines) / _MOST_PARTS))
    for end in sorted(range(len(lines), 0, -count)):
        yield b"\n".join(lines[max(0, end - count) : end]) + b"\n"


def _spread_parts(file: Path, size: int, every: int) -> Iterator[bytes]:
    """Yield parts of a large file, one every ``every`` bytes, counted from the end with the newest steps."""
    for end in sorted(range(size, 0, -every)):
        # The first line may be cut off.
        yield b"\n".join(_lines(file, max(0, end - _PART_BYTES), end)[1:]) + b"\n"


def _lines(file: Path, begin: int, end: int) -> list[bytes]:
    """Return the lines of a part of a file, without a last line that does not end there."""
    with file.open("rb") as stream:
        stream.seek(begin)
        text = stream.read(end - begin)
    return text[: text.rfind(b"\n") + 1].splitlines()

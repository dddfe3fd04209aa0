"""Times at the points of a grid, of which some may be missing, and between these points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid"]

Floats = NDArray[np.float64]


class Grid:
    """A time as a function of sizes: a power law between neighbouring points, and beyond the largest ones.

    Below the smallest size of an axis it is that of the smallest: a kernel takes some time, however little it does.
    Beyond the largest it is never less than there, whatever the last two points say: more work takes no less time.

    Parameters
    ----------
    times : seconds by point; all points have as many sizes, of 0 or more.
    """

    def __init__(self, times: Mapping[tuple[float, ...], float]) -> None:
        points = np.array(list(times), np.float64)
        self.axes: list[list[float]] = [sorted(set(column)) for column in points.T.tolist()]
        self._logs = [np.log2(np.maximum(axis, 0.5)) for axis in self.axes]
        self._values = np.full([len(axis) for axis in self.axes], np.nan)
        for point, seconds in times.items():
            where = tuple(axis.index(size) for axis, size in zip(self.axes, point, strict=True))
            self._values[where] = np.log2(seconds)
        self._fill()

    def __call__(self, *sizes: float) -> float:
        """Seconds at a point."""
        return float(2.0 ** self._at(sizes))

    def along_last(self, *sizes: float) -> Callable[[Floats], Floats]:
        """Seconds as a function of the last size, where all other sizes are these."""
        logs, values = self._logs[-1], self._at(sizes)
        slope = max((values[-1] - values[-2]) / (logs[-1] - logs[-2]), 0.0) if len(logs) > 1 else 0.0

        def seconds(last: Floats) -> Floats:
            wanted = np.log2(np.maximum(last, 0.5))
            beyond = np.maximum(wanted - logs[-1], 0.0) * slope
            found: Floats = 2.0 ** (np.interp(wanted, logs, values) + beyond)
            return found

        return seconds

    def _at(self, sizes: Sequence[float]) -> Floats:
        """Logarithms of the seconds where the first sizes are these."""
        values = self._values
        for axis, size in enumerate(sizes):
            low, part = self._place(axis, size)
            if part is None:
                values = values[0]
                continue
            step = values[low + 1] - values[low]
            values = values[low] + part * (np.maximum(step, 0.0) if part > 1 else step)
            if part > 1:
                values = values + np.minimum(step, 0.0)  # from the last point on
        return values

    def _place(self, axis: int, size: float) -> tuple[int, float | None]:
        """Which two sizes of an axis it lies between, and how far after the first; None where there is one size."""
        logs = self._logs[axis]
        if len(logs) == 1:
            return 0, None
        log = max(float(np.log2(max(size, 0.5))), float(logs[0]))
        low = min(max(bisect_right(self.axes[axis], size) - 1, 0), len(logs) - 2)
        return low, (log - float(logs[low])) / float(logs[low + 1] - logs[low])

    def _fill(self) -> None:
        """Give missing points the mean of what their neighbours along each axis say, then of those next to them.

        Where there is none on one side, the two next to it on the other tell how it goes on, as beyond the largest sizes.
        """
        while np.isnan(self._values).any():
            between = [self._between(axis) for axis in range(self._values.ndim)]
            found = _mean(between)
            if np.isnan(found[np.isnan(self._values)]).all():
                found = _mean([self._next_to(axis) for axis in range(self._values.ndim)])
            missing = np.isnan(self._values)
            self._values[missing] = found[missing]

    def _between(self, axis: int) -> Floats:
        """Values between known ones of the same line along an axis; NaN elsewhere."""
        lines = np.moveaxis(self._values, axis, -1)
        result = np.full_like(lines, np.nan)
        logs = self._logs[axis]
        for where in np.ndindex(lines.shape[:-1]):
            known = ~np.isnan(lines[where])
            if known.sum() > 1:
                result[where] = np.interp(logs, logs[known], lines[where][known], left=np.nan, right=np.nan)
        return np.moveaxis(result, -1, axis)

    def _next_to(self, axis: int) -> Floats:
        """Values of points that are next to known ones along an axis; NaN elsewhere."""
        lines = np.moveaxis(self._values, axis, -1)
        result = np.full_like(lines, np.nan)
        logs = self._logs[axis]
        for where in np.ndindex(lines.shape[:-1]):
            line = lines[where]
            known = np.flatnonzero(~np.isnan(line))
            if not len(known):
                continue
            first, last = known[0], known[-1]
            if first > 0:
                result[where][first - 1] = line[first]
            if last + 1 < len(line):
                before = known[-2] if len(known) > 1 else last
                rise = max(line[last] - line[before], 0.0) / max(logs[last] - logs[before], 1e-9)
                result[where][last + 1] = line[last] + rise * (logs[last + 1] - logs[last])
        return np.moveaxis(result, -1, axis)


def _mean(arrays: Sequence[Floats]) -> Floats:
    """Return the mean of the known values; NaN where none is known."""
    known = np.sum([~np.isnan(each) for each in arrays], axis=0)
    total = np.nansum(arrays, axis=0)
    result: Floats = np.where(known > 0, total / np.maximum(known, 1), np.nan)
    return result


def points_of(rows: Iterable[tuple[tuple[float, ...], float]]) -> dict[tuple[float, ...], float]:
    """Points with their seconds, of those that were measured more than once the least."""
    found: dict[tuple[float, ...], float] = {}
    for point, seconds in rows:
        found[point] = min(seconds, found.get(point, seconds))
    return found

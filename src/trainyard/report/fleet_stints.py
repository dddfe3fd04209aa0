"""Stints of jobs on devices, as columns: for use over time, and for bars that a browser draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun

__all__ = ["DrawnRun", "Stints", "means_over_time", "stints_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Stints:
    """The time that jobs had neighbouring devices; columns are by stint.

    Attributes
    ----------
    job : its number.
    first, count : number of the first device, and how many of the ones from there on the job had.
    size : devices that it had in all, elsewhere, too.
    start_s, end_s : from when until when.
    """

    job: Ints
    first: Ints
    count: Ints
    size: Ints
    start_s: Floats
    end_s: Floats

    def busy(self, edges_s: Floats, row_of_device: Ints) -> Floats:
        """Mean number of devices that are in use, by row and part of the time; a device that jobs share is one.

        Parameters
        ----------
        edges_s : of equal parts of the time.
        row_of_device : to which row every device belongs.
        """
        devices, start_s, end_s = self._in_use()
        rows, ones = row_of_device[devices], np.ones(len(devices))
        num_rows = int(row_of_device.max()) + 1
        times_s, changes = np.concatenate((start_s, end_s)), np.concatenate((ones, -ones))
        return means_over_time(times_s, changes, edges_s, np.concatenate((rows, rows)), num_rows)

    def _in_use(self) -> tuple[Ints, Floats, Floats]:
        """Device, start and end of all times in which a device is in use; those of one device do not overlap."""
        which = np.repeat(np.arange(len(self.job)), self.count)
        devices = np.arange(len(which)) - np.repeat(
            np.cumsum(self.count) - self.count - self.first, self.count
        )
        order = np.lexsort((self.start_s[which], devices))
        which, devices = which[order], devices[order]
        # Every device's time lies after that of the one before, so that one pass goes through all of them.
        after_s = devices * (float(self.end_s.max(initial=0.0)) + 1.0)
        upto_s = np.maximum.accumulate(self.end_s[which] + after_s)
        before_s = np.concatenate(([0.0], upto_s[:-1])) - after_s
        return devices, np.clip(self.start_s[which], before_s, self.end_s[which]), self.end_s[which]


class DrawnRun(NamedTuple):
    """A run on a page, in its colour."""

    run: FleetRun
    stints: Stints
    color: str


def stints_of(run: FleetRun, number: Mapping[str, int]) -> Stints:
    """The stints of a run in the order of their starts; what goes on on the same devices is one.

    Parameters
    ----------
    number : of every job, by name.
    """
    sizes = np.fromiter((len(span.devices) for span in run.spans), np.int64)
    devices = np.fromiter(chain.from_iterable(span.devices for span in run.spans), np.int64)
    span = np.repeat(np.arange(len(sizes)), sizes)
    devices = devices[np.lexsort((devices, span))]
    begins = np.ones(len(devices), np.bool_)
    begins[1:] = (np.diff(devices) != 1) | (np.diff(span) != 0)
    places = np.flatnonzero(begins)
    which = span[places]
    job, start_s, end_s = (
        np.array([number[each.job] for each in run.spans], np.int64),
        np.array([each.start_s for each in run.spans], np.float64),
        np.array([each.end_s for each in run.spans], np.float64),
    )
    counts = np.diff(np.append(places, len(devices)))
    return _joined(Stints(job[which], devices[places], counts, sizes[which], start_s[which], end_s[which]))


def _joined(stints: Stints) -> Stints:
    """Join stints of one job on the same devices if one begins when the other ends."""
    order = np.lexsort((stints.start_s, stints.job, stints.count, stints.first))
    columns = [column[order] for column in (stints.job, stints.first, stints.count, stints.size)]
    start_s, end_s = stints.start_s[order], stints.end_s[order]
    goes_on = np.zeros(len(order), np.bool_)
    goes_on[1:] = np.all([column[1:] == column[:-1] for column in columns], axis=0) & (
        start_s[1:] <= end_s[:-1]
    )
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    by_start = np.argsort(start_s[first], kind="stable")
    job, device, count, size = (column[first][by_start] for column in columns)
    return Stints(job, device, count, size, start_s[first][by_start], end_s[last][by_start])


def means_over_time(
    times_s: Floats, changes: Floats, edges_s: Floats, rows: Ints | None = None, num_rows: int = 1
) -> Floats:
    """Means of what changes by steps, by row and part of the time.

    Parameters
    ----------
    times_s, changes : when it changes and by how much, in any order; it begins with 0.
    edges_s : of equal parts of the time. What changes before the first of them has changed there.
    rows : to which each change belongs; all to the first if None.
    """
    parts = len(edges_s) - 1
    if parts < 1:
        return np.zeros((num_rows, 0))
    places = np.clip((times_s - edges_s[0]) / (edges_s[1] - edges_s[0]), 0.0, parts)
    part = np.floor(places).astype(np.int64)
    share = places - part
    cells = part + (0 if rows is None else rows * (parts + 2))
    size = num_rows * (parts + 2)
    steps = np.bincount(cells, changes * (1.0 - share), size) + np.bincount(cells + 1, changes * share, size)
    found: Floats = np.maximum(np.cumsum(steps.reshape(num_rows, -1), axis=1)[:, :parts], 0.0)
    return found

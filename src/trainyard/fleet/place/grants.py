"""What running jobs have: the devices of all of them in one array, and values of it only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.workload.job import Grant

Ints = NDArray[np.int64]
# How much of the array is there for later changes: the more, the seldomer it is tidied up.
_SPARE = 8


class Laid(NamedTuple):
    """Devices of several jobs.

    Attributes
    ----------
    devices : those of the first job, then those of the second, and so on.
    counts : how many of them each has.
    """

    devices: Ints
    counts: Ints

    def each(self) -> list[tuple[int, ...]]:
        """The devices of each."""
        devices, ends = self.devices.tolist(), self.counts.cumsum().tolist()
        return [tuple(devices[first:end]) for first, end in pairwise((0, *ends))]


def laid(devices: Sequence[Sequence[int]]) -> Laid:
    """The same of the devices of each."""
    counts = np.fromiter(map(len, devices), np.int64, len(devices))
    return Laid(np.fromiter(chain.from_iterable(devices), np.int64), counts)


class Grants:
    """What the job of every row has, None if it waits. A job that is moved a thousand times has a value once it is seen.

    Attributes
    ----------
    held : number of devices of every row.
    first : where the devices of every row begin.
    devices : of all rows, and some that rows had before.
    """

    def __init__(self, held: Ints, first: Ints) -> None:
        self.held, self.first = held, first
        self.devices = np.zeros(0, np.int64)
        self._made: dict[int, Grant] = {}

    def __getitem__(self, row: int) -> Grant | None:
        if not self.held[row]:
            return None
        if row not in self._made:
            first = self.first[row]
            self._made[row] = Grant(tuple(self.devices[first : first + self.held[row]].tolist()))
        return self._made[row]

    def __setitem__(self, row: int, grant: Grant) -> None:
        """The job has more than devices, or something else with them."""
        self._made[row] = grant

    def forget_all(self) -> None:
        """Values are made again when somebody asks."""
        self._made.clear()

    def forget(self, rows: Ints) -> None:
        """Jobs lose what they had, or get something else."""
        if self._made:
            for row in rows.tolist():
                self._made.pop(row, None)

    def devices_of(self, rows: Ints) -> Ints:
        """The devices of jobs, of one after the other."""
        found: Ints = devices_of(rows, self.first, self.held, self.devices)
        return found

    def make_room(self, num_devices: int, rows: Ints) -> int:
        """Throw away what was written down of jobs that have it no more; returns how many devices are left.

        Parameters
        ----------
        num_devices : how many more there will be at most.
        rows : of all jobs.
        """
        kept = self.devices_of(rows)
        self.first[rows] = self.held[rows].cumsum() - self.held[rows]
        self.devices = np.zeros(_SPARE * (len(kept) + num_devices), np.int64)
        self.devices[: len(kept)] = kept
        return len(kept)


@compiled
def devices_of(rows, first, held, devices):  # type: ignore[no-untyped-def]
    num = 0
    for row in rows:
        num += held[row]
    found, num = np.empty(num, np.int64), 0
    for row in rows:
        for device in devices[first[row] : first[row] + held[row]]:
            found[num] = device
            num += 1
    return found

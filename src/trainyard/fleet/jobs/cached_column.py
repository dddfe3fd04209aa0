"""Facts of a job that never change: each is computed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class CachedColumn:
    """One fact of every job, by its row in the job table."""

    def __init__(self) -> None:
        self._serial, self._values = np.zeros(0, np.int64), np.zeros(0)

    def of(self, rows: Ints, serial: Ints, find: Callable[[int], float]) -> Floats:
        """Return the fact of these jobs.

        Parameters
        ----------
        rows : of the jobs.
        serial : serial number of the job in every row of the table; a new job in a row has a new number.
        find : computes the fact of the job in a row.
        """
        if len(self._values) < len(serial):
            more = len(serial) - len(self._values)
            self._serial = np.append(self._serial, np.full(more, -1))
            self._values = np.append(self._values, np.zeros(more))
        for row in rows[self._serial[rows] != serial[rows]].tolist():
            self._serial[row], self._values[row] = serial[row], find(row)
        found: Floats = self._values[rows]
        return found

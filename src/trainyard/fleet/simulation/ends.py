"""When running jobs end: all of them in one agenda, for at every event many may have other ends."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import lean
from trainyard.engine.agenda import drop_first, expect
from trainyard.fleet.mechanism.job_table import Ints, JobTable

_INF = float("inf")


class Ends:
    """Rows of the job table by when their jobs end, or change their rate; of one moment, the lowest row first.

    An end stands as it was when it was last expected; one that is no longer in the job table is dropped when it is due.

    Attributes
    ----------
    when_s, heap, place, size : the agenda; see `engine/agenda.py`.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self.when_s = np.zeros(0)
        self.heap = np.zeros(0, np.int64)
        self.place = np.zeros(0, np.int64)
        self.size = 0

    def expect(self, rows: Ints) -> None:
        """Look up when jobs end now."""
        self.make_room()
        self.size = _expect(self._table.finish_s, self.when_s, self.heap, self.place, self.size, rows)

    def make_room(self) -> None:
        """For as many as the table has rows."""
        more = len(self._table.finish_s) - len(self.when_s)
        if more > 0:
            self.when_s = np.concatenate((self.when_s, np.zeros(more)))
            self.heap = np.concatenate((self.heap, np.full(more, -1)))
            self.place = np.concatenate((self.place, np.full(more, -1)))

    def next_s(self) -> float:
        """When the next job ends; infinite if none does."""
        self.size, next_s = next_end(self._table.finish_s, self.when_s, self.heap, self.place, self.size)
        return float(next_s)

    def pop(self) -> int:
        """Take out the job that `next_s` tells of; returns its row."""
        row = int(self.heap[0])
        self.size = drop_first(self.when_s, self.heap, self.place, self.size)
        return row


@lean
def _expect(finish_s, when_s, heap, place, size, rows):  # type: ignore[no-untyped-def]
    for row in rows:
        size = expect(when_s, heap, place, size, row, finish_s[row])
    return size


@lean
def next_end(finish_s, when_s, heap, place, size):  # type: ignore[no-untyped-def]
    """Drop ends that are no longer in the job table; returns how many there are, and the first; infinite for none."""
    while size:
        row = heap[0]
        if when_s[row] == finish_s[row]:
            return size, when_s[row]
        size = drop_first(when_s, heap, place, size)
    return size, _INF

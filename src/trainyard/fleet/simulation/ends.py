"""When running jobs end: all of them in one agenda, for at every event many may have other ends."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import compiled
from trainyard.engine.agenda import drop_first, expect
from trainyard.fleet.mechanism.books import Books, Ints

_INF = float("inf")
# Rows of the table of places: the heap of the agenda, and where in it every row of the books is.
_HEAP, _PLACE = range(2)


class Ends:
    """Rows of the books by when their jobs end, or change their pace; of one moment, the lowest row first.

    An end stands as it was when it was last expected; one that is no longer on the books is dropped when it is due.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._when_s = np.zeros(0)
        self._places = np.zeros((2, 0), np.int64)
        self._size = 0

    def expect(self, rows: Ints) -> None:
        """Look up when jobs end now."""
        finish_s = self._books.finish_s
        if len(self._when_s) < len(finish_s):
            more = len(finish_s) - len(self._when_s)
            self._when_s = np.concatenate((self._when_s, np.zeros(more)))
            self._places = np.concatenate((self._places, np.full((2, more), -1)), axis=1)
        self._size = _expect(finish_s, self._when_s, self._places, self._size, rows)

    def next_s(self) -> float:
        """When the next job ends; infinite if none does."""
        self._size, next_s = _next(self._books.finish_s, self._when_s, self._places, self._size)
        return float(next_s)

    def pop(self) -> int:
        """Take out the job that `next_s` tells of; returns its row."""
        row = int(self._places[_HEAP, 0])
        self._size = drop_first(self._when_s, self._places[_HEAP], self._places[_PLACE], self._size)
        return row


@compiled
def _expect(finish_s, when_s, places, size, rows):  # type: ignore[no-untyped-def]
    for row in rows:
        size = expect(when_s, places[_HEAP], places[_PLACE], size, row, finish_s[row])
    return size


@compiled
def _next(finish_s, when_s, places, size):  # type: ignore[no-untyped-def]
    while size:
        row = places[_HEAP, 0]
        if when_s[row] == finish_s[row]:
            return size, when_s[row]
        size = drop_first(when_s, places[_HEAP], places[_PLACE], size)
    return size, _INF

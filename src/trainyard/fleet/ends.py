"""When running jobs end: all of them in one heap, in arrays, for at every event many may have other ends."""

from __future__ import annotations

import numpy as np
from numba import njit

from trainyard.fleet.books import Books, Ints

_INF = float("inf")
# Rows of the table of places: the heap, and where in it every row of the books is; -1 for nowhere.
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
        self._size = _drop_first(self._when_s, self._places, self._size)
        return row


@njit(cache=True)
def _expect(finish_s, when_s, places, size, rows):  # type: ignore[no-untyped-def]
    for row in rows:
        when_s[row] = finish_s[row]
        if places[_PLACE, row] < 0:
            places[_HEAP, size], places[_PLACE, row] = row, size
            size += 1
        _rise(when_s, places, places[_PLACE, row])
        _sink(when_s, places, size, places[_PLACE, row])
    return size


@njit(cache=True)
def _next(finish_s, when_s, places, size):  # type: ignore[no-untyped-def]
    while size:
        row = places[_HEAP, 0]
        if when_s[row] == finish_s[row]:
            return size, when_s[row]
        size = _drop_first(when_s, places, size)
    return size, _INF


@njit(cache=True)
def _drop_first(when_s, places, size):  # type: ignore[no-untyped-def]
    heap, place = places[_HEAP], places[_PLACE]
    last = heap[size - 1]
    place[heap[0]] = -1
    if size > 1:
        heap[0], place[last] = last, 0
        _sink(when_s, places, size - 1, 0)
    return size - 1


@njit(cache=True)
def _is_before(when_s, row, other):  # type: ignore[no-untyped-def]
    return when_s[row] < when_s[other] or (when_s[row] == when_s[other] and row < other)


@njit(cache=True)
def _rise(when_s, places, at):  # type: ignore[no-untyped-def]
    heap, place = places[_HEAP], places[_PLACE]
    row = heap[at]
    while at and _is_before(when_s, row, heap[(at - 1) // 2]):
        above = (at - 1) // 2
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at], place[row] = row, at


@njit(cache=True)
def _sink(when_s, places, size, at):  # type: ignore[no-untyped-def]
    heap, place = places[_HEAP], places[_PLACE]
    row = heap[at]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and _is_before(when_s, heap[below + 1], heap[below]):
            below += 1
        if not _is_before(when_s, heap[below], row):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at], place[row] = row, at

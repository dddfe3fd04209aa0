"""An agenda: what is due when, as a binary heap in arrays, of which any item may be moved.

Items are numbers. `due_s` [item] says when each is due, `heap` [place] which item is where, and `place` [item] where it
is; -1 for an item that is not there. Of those due at one moment, the lowest number is first. `size` is their number.
"""

from __future__ import annotations

import numpy as np

from trainyard.compiling import lean
from trainyard.engine.tasks import Floats, Ints

__all__ = ["Agenda", "drop_first", "expect", "next_due"]

_INF = float("inf")


class Agenda:
    """When things end that a table has: a row is due as it was last expected, unless the table says otherwise since.

    Of one moment, the lowest row is first.

    Attributes
    ----------
    when_s, heap, place, size : as in `expect`, of which rows are the items.
    """

    def __init__(self) -> None:
        self.when_s = np.zeros(0)
        self.heap = np.zeros(0, np.int64)
        self.place = np.zeros(0, np.int64)
        self.size = 0

    def expect(self, due_s: Floats, rows: Ints) -> None:
        """Look up when some rows are due now.

        Parameters
        ----------
        due_s
            When every row of the table is due.
        rows
            Of which that may have changed.
        """
        self.make_room(len(due_s))
        self.size = _expect_all(due_s, self.when_s, self.heap, self.place, self.size, rows)

    def make_room(self, num_rows: int) -> None:
        """For as many as the table has rows."""
        more = num_rows - len(self.when_s)
        if more > 0:
            self.when_s = np.concatenate((self.when_s, np.zeros(more)))
            self.heap = np.concatenate((self.heap, np.full(more, -1)))
            self.place = np.concatenate((self.place, np.full(more, -1)))

    def next_s(self, due_s: Floats) -> float:
        """When the first row is due; infinite if none is."""
        self.size, next_s = next_due(due_s, self.when_s, self.heap, self.place, self.size)
        return float(next_s)

    def pop(self) -> int:
        """Take out the row that `next_s` tells of."""
        row = int(self.heap[0])
        self.size = drop_first(self.when_s, self.heap, self.place, self.size)
        return row


@lean
def _expect_all(due_s: Floats, when_s: Floats, heap: Ints, place: Ints, size: int, rows: Ints) -> int:
    for row in rows:
        size = expect(when_s, heap, place, size, row, due_s[row])
    return size


@lean
def next_due(due_s: Floats, when_s: Floats, heap: Ints, place: Ints, size: int) -> tuple[int, float]:
    """Drop rows that the table has at another time; returns how many there are, and when the first is due."""
    while size:
        row = heap[0]
        if when_s[row] == due_s[row]:
            return size, when_s[row]
        size = drop_first(when_s, heap, place, size)
    return size, _INF


@lean
def expect(due_s: Floats, heap: Ints, place: Ints, size: int, item: int, when_s: float) -> int:
    """Put an item in, or move it; returns how many are there then."""
    at, is_earlier = place[item], when_s < due_s[item]
    due_s[item] = when_s
    if at < 0:
        heap[size] = item
        _rise(due_s, heap, place, size)
        return size + 1
    if is_earlier:
        _rise(due_s, heap, place, at)
    else:
        _sink(due_s, heap, place, size, at)
    return size


@lean
def drop_first(due_s: Floats, heap: Ints, place: Ints, size: int) -> int:
    """Take the first item, `heap[0]`, out; returns how many are left."""
    place[heap[0]] = -1
    size -= 1
    if size > 0:
        heap[0] = heap[size]
        _sink(due_s, heap, place, size, 0)
    return size


@lean
def _is_before(due_s: Floats, a: int, b: int) -> bool:
    if due_s[a] != due_s[b]:
        return bool(due_s[a] < due_s[b])
    return a < b


@lean
def _rise(due_s: Floats, heap: Ints, place: Ints, at: int) -> None:
    item = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if not _is_before(due_s, item, heap[parent]):
            break
        heap[at] = heap[parent]
        place[heap[at]] = at
        at = parent
    heap[at] = item
    place[item] = at


@lean
def _sink(due_s: Floats, heap: Ints, place: Ints, size: int, at: int) -> None:
    item = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_before(due_s, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(due_s, heap[child], item):
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = item
    place[item] = at

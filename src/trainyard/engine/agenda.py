"""An agenda: what is due when, as a binary heap in arrays, of which any item may be moved.

Items are numbers. `due_s` [item] says when each is due, `heap` [place] which item is where, and `place` [item] where it
is; -1 for an item that is not there. Of those due at one moment, the lowest number is first. `size` is their number.
"""

from __future__ import annotations

from trainyard.compiling import lean
from trainyard.engine.tasks import Floats, Ints

__all__ = ["drop_first", "expect"]


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

"""An order of many jobs of which few change between decisions: those are taken out and put in again, the rest stays."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import compiled, lean


@compiled
def carried_over(before, columns, serial):  # type: ignore[no-untyped-def]
    """Carry what is known of jobs over to the jobs that are there now, of which the last are new.

    Parameters
    ----------
    before, serial : which jobs were there, and which are; ascending, and of a new one greater than of all others.
    columns : a row for each thing that is known, with a column for every job that was there.

    Returns
    -------
    The same with a column for every job that is there, not filled in for new ones; the number now of every job that was
    there, -1 for those that left; and how many are not new.
    """
    found, renumbered = np.empty((len(columns), len(serial))), np.full(len(before), -1)
    column = known = 0
    while column < len(before) and known < len(serial):
        # As many as follow each other are copied at once.
        size = _num_equal(before[column:], serial[known:])
        for row in range(len(columns)):
            _copy(found[row, known:], columns[row, column:], size)
        numbers = renumbered[column:]
        for i in range(size):
            numbers[i] = known + i
        # After them is one that left.
        column, known = column + size + 1, known + size
    return found, renumbered, known


@lean
def _copy(to, start, size):  # type: ignore[no-untyped-def]
    """The same as an assignment of slices, several times as fast: of these, Numba makes one element after the other."""
    for i in range(size):
        to[i] = start[i]


@lean
def _num_equal(before, serial):  # type: ignore[no-untyped-def]
    """Count the equal entries before the first job that left; after it none is equal, so a binary search finds it."""
    least, most = 0, min(len(before), len(serial))
    while least < most:
        middle = (least + most) // 2
        if before[middle] == serial[middle]:
            least = middle + 1
        else:
            most = middle
    return least


@compiled
def merged_order(order, renumbered, moved, keys):  # type: ignore[no-untyped-def]
    """The order of the jobs that are there now: by their keys, the first one first, and of equal ones by their number.

    Parameters
    ----------
    order : numbers that jobs had before, in their order then.
    renumbered : the number that each of them has now; -1 for those that left.
    moved : numbers of those whose keys changed, or that came.
    keys : a row for each, with a column for every job; no NaN.
    """
    stays = np.ones(keys.shape[1], np.bool_)
    stays[moved] = False
    kept, num = np.empty(len(order), np.int64), 0
    for before in order:
        number = renumbered[before]
        if number >= 0 and stays[number]:
            kept[num] = number
            num += 1
    return _merged(kept[:num], _sorted(moved, keys), keys)


@compiled
def _sorted(numbers, keys):  # type: ignore[no-untyped-def]
    numbers = np.sort(numbers)
    for row in range(len(keys) - 1, -1, -1):
        # Of equal ones those stay first that are first by the rows after it.
        numbers = numbers[np.argsort(keys[row][numbers], kind="mergesort")]
    return numbers


@compiled
def _merged(kept, coming, keys):  # type: ignore[no-untyped-def]
    """Both, which are in order."""
    found = np.empty(len(kept) + len(coming), np.int64)
    first = 0
    for i in range(len(coming)):
        last = _place(kept, first, coming[i], keys)
        _copy(found[first + i :], kept[first:], last - first)
        found[last + i] = coming[i]
        first = last
    _copy(found[first + len(coming) :], kept[first:], len(kept) - first)
    return found


@lean
def _place(kept, first, number, keys):  # type: ignore[no-untyped-def]
    """Count the kept jobs before a job; at least ``first`` of them are."""
    last = len(kept)
    while first < last:
        middle = (first + last) // 2
        if _is_before(kept[middle], number, keys):
            first = middle + 1
        else:
            last = middle
    return first


@lean
def _is_before(one, other, keys):  # type: ignore[no-untyped-def]
    for row in range(len(keys)):
        if keys[row, one] != keys[row, other]:
            return keys[row, one] < keys[row, other]
    return one < other

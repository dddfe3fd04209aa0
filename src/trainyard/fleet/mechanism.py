"""From targets to jobs that run, where some lose what they have: the walk down the order of urgency."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy import int64, zeros
from numpy.typing import NDArray

from trainyard.fleet.books import Books
from trainyard.fleet.place.pools import pool_for
from trainyard.fleet.policy import Targets

Ints = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)


def walk(books: Books, rows: Ints, targets: Targets, room: Ints) -> tuple[Ints, Ints]:
    """Which jobs get devices, or other ones, and which lose theirs.

    Parameters
    ----------
    rows : of the snapshot that the targets are for.
    targets : of a policy that takes devices away, and does not place for itself.
    room : devices of every pool that can be given out.

    Returns
    -------
    Places in ``targets.order`` of the jobs that fit and do not have what they are to have, most urgent first; rows of
    the jobs that run and do not fit.
    """
    counts = _NONE if targets.num_devices is None else np.asarray(targets.num_devices, np.int64)
    kinds = _NONE if targets.device_type is None else np.asarray(targets.device_type, np.int64)
    order = np.asarray(targets.order, np.int64)
    asked, held, held_type = books.num_devices, books.held, books.held_type
    found = np.empty((2, max(len(order), len(rows))), np.int64)
    num_starting, num_stopping = _walk(
        order, rows, counts, kinds, asked, held, held_type, books.allowed, room, targets.backfill, found
    )
    return found[0, :num_starting], found[1, :num_stopping]


@njit(cache=True)
def _walk(order, rows, counts, kinds, asked, held, held_type, allowed, room, backfill, found):  # type: ignore[no-untyped-def]
    left = room.copy()
    total = left.sum()
    runs = zeros(len(rows), int64)
    starting, stopping = found
    num_starting = num_stopping = 0
    for i in range(len(order)):
        if total == 0:
            break
        row = rows[order[i]]
        n = counts[i] if len(counts) else asked[row]
        if n == 0:
            continue
        kind = kinds[i] if len(kinds) else -1
        pool = pool_for(left, n, kind, allowed[row])
        if pool >= 0:
            left[pool] -= n
            total -= n
            runs[order[i]] = 1
            if held[row] != n or (kind >= 0 and held_type[row] != kind):
                starting[num_starting] = i
                num_starting += 1
        elif not backfill:
            break
    for number in range(len(rows)):
        if not runs[number] and held[rows[number]] > 0:
            stopping[num_stopping] = rows[number]
            num_stopping += 1
    return num_starting, num_stopping

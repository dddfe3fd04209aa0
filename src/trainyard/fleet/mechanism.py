"""From targets to jobs that run: the walk down the order of urgency."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy import bool_, int64, zeros
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def chosen(wanted: Ints, kinds: Ints, allowed: Ints, room: Ints, backfill: bool) -> NDArray[np.bool_]:
    """Which jobs fit, taken in order.

    Parameters
    ----------
    wanted : devices of every job, most urgent first; 0 for a job that is to wait.
    kinds : index of the pool that each needs; -1 for the first in which it fits.
    allowed : pools that each can run on, as bits.
    room : devices of every pool that can be given out.
    backfill : whether jobs after one that does not fit are tried.
    """
    found: NDArray[np.bool_] = _chosen(
        wanted.astype(int64), kinds.astype(int64), allowed, room.astype(int64), backfill
    )
    return found


@njit(cache=True)
def _chosen(wanted, kinds, allowed, room, backfill):  # type: ignore[no-untyped-def]
    left = room.copy()
    runs = zeros(len(wanted), bool_)
    total = left.sum()
    for i in range(len(wanted)):
        if total == 0:
            break
        n = wanted[i]
        if n == 0:
            continue
        pool = kinds[i]
        if pool < 0:
            for p in range(len(left)):
                if left[p] >= n and (allowed[i] >> p) & 1:
                    pool = p
                    break
        if pool >= 0 and left[pool] >= n:
            left[pool] -= n
            total -= n
            runs[i] = True
        elif not backfill:
            break
    return runs

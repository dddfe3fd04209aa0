"""Pools: all devices of one type, of which a gang takes its own from one."""

from __future__ import annotations

from trainyard.compiling import lean


@lean
def pool_for(left, wanted, kind, allowed):  # type: ignore[no-untyped-def]
    """The pool of a kind if it has room; of any kind (-1) the first that is allowed and has; -1 for none.

    Parameters
    ----------
    left : devices of every pool.
    allowed : pools in which the gang can run, as bits.
    """
    if kind >= 0:
        return kind if left[kind] >= wanted else -1
    for pool in range(len(left)):
        if left[pool] >= wanted and (allowed >> pool) & 1:
            return pool
    return -1

"""Placement of gangs by affinity: workers on nodes that are used already, devices of a worker near to each other.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020, leaves the
scheduler inside a virtual cluster open; this is the one that comes with the authors' program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled

Ints = NDArray[np.int64]


def nodes_for(
    nodes: tuple[Ints, Ints], priorities: Ints, gang: Sequence[int], bar: int, across: bool
) -> list[int] | None:
    """A node for every worker.

    Parameters
    ----------
    nodes : first place of each, and the one after its last.
    priorities : of the job at every place; less than -1 for none.
    gang : devices of the workers, ascending.
    bar : devices of a job of this priority or a higher one cannot be had.
    across : fill those nodes first of which most is in use; else those of which most is in use at ``bar``, and least
        above it.

    Returns
    -------
    Indices of nodes; None if none were found. Nodes are gone through once, so with nodes or workers of several sizes
    that can happen though there are some.
    """
    found: Ints = _nodes_for(*nodes, priorities, np.array(gang, np.int64), bar, across)
    return found.tolist() if len(found) else None


@compiled
def _nodes_for(first, last, priorities, gang, bar, across):  # type: ignore[no-untyped-def]
    room, rank = last - first, np.zeros(len(first), np.int64)
    for i in range(len(first)):
        for place in range(first[i], last[i]):
            priority = priorities[place]
            if priority >= bar:
                room[i] -= 1
            if (across and priority >= -1) or priority == bar:
                rank[i] -= len(priorities) + 1
            elif priority > bar:
                rank[i] += 1
    order = np.argsort(rank, kind="mergesort")
    found = np.empty(len(gang), np.int64)
    at, left = 0, room[order[0]]
    for worker in range(len(gang)):
        while left < gang[worker]:
            at += 1
            if at == len(order):
                return found[:0]
            left = room[order[at]]
        left -= gang[worker]
        found[worker] = order[at]
    return found


def devices_in(
    node: range, priorities: Ints, count: int, bar: int, taken: set[int], sizes: Sequence[int]
) -> tuple[int, ...]:
    """Places of a worker in its node: all in as small a cell as can be, free ones before others below the bar.

    Parameters
    ----------
    taken : places that others of the gang have.
    sizes : devices of a cell, by level.
    """
    at = priorities[node.start : node.stop].tolist()
    usable = [p for p in node if at[p - node.start] < bar and p not in taken]
    # A free place has the lowest priority of all.
    usable.sort(key=lambda p: at[p - node.start] >= -1)
    for size in sizes:
        if size < count:
            continue
        cells: dict[int, list[int]] = {}
        for place in usable:
            cells.setdefault((place - node.start) // size, []).append(place)
        for places in cells.values():
            if len(places) >= count:
                return tuple(places[:count])
    raise AssertionError("the node was chosen because it has room")

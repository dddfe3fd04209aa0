"""Placement: which free devices a job gets, once it is decided that it runs.

A placement is a function from free devices by node to devices by node. Nodes that are not of the asked type are offered
as having none free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.site import FleetError

Ints = NDArray[np.int64]

Placement = Callable[[Ints, int, Ints], Ints | None]
"""From devices free in every node, devices wanted, and devices of every node in all: how many to take of every node,
or None if there is no place that suits."""


def anywhere(free: Ints, wanted: int, sizes: Ints) -> Ints | None:
    """Whatever is free, in the order of the nodes: devices are alike wherever they are."""
    upto = free.cumsum()
    if not len(upto) or upto[-1] < wanted:
        return None
    # Of every node what is still wanted after the nodes before it.
    return np.minimum(np.maximum(wanted - (upto - free), 0), free)


def consolidated(free: Ints, wanted: int, sizes: Ints) -> Ints | None:
    """On as few nodes as a job of that size can lie on: it waits rather than be spread over more.

    A job that fits in a node gets the node with the fewest devices free that still suffice; a larger one gets whole
    nodes, and what is left of it again the fullest that suffices.
    """
    size = int(sizes.max())
    whole, rest = divmod(wanted, size)
    if whole and np.any(sizes[free > 0] < size):
        return packed(free, wanted, sizes)
    taken = np.zeros_like(free)
    if whole:
        empty = np.nonzero(free == size)[0][:whole]
        if len(empty) < whole:
            return None
        taken[empty] = size
    if rest:
        left = np.where(taken > 0, 0, free)
        suits = np.nonzero(left >= rest)[0]
        if not len(suits):
            return None
        taken[suits[np.argmin(left[suits])]] = rest
    return taken


def packed(free: Ints, wanted: int, sizes: Ints) -> Ints | None:
    """On the nodes with most devices free, but a node that suffices alone is the one with fewest."""
    suits = np.nonzero(free >= wanted)[0]
    taken = np.zeros_like(free)
    if len(suits):
        taken[suits[np.argmin(free[suits])]] = wanted
        return taken
    order = np.argsort(-free, kind="stable")
    found = anywhere(free[order], wanted, sizes[order])
    if found is None:
        return None
    taken[order] = found
    return taken


def spread(free: Ints, wanted: int, sizes: Ints) -> Ints | None:
    """One device after the other from the node that has most free: on as many nodes as there are."""
    left, taken = free.copy(), np.zeros_like(free)
    if int(free.sum()) < wanted:
        return None
    for _ in range(wanted):
        node = int(np.argmax(left))
        left[node] -= 1
        taken[node] += 1
    return taken


PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {"anywhere": anywhere, "consolidated": consolidated, "packed": packed, "spread": spread}
)
"""Placements by name."""


def placement(name: str) -> Placement:
    """A placement by its name.

    Raises
    ------
    FleetError
        If there is none of that name.
    """
    if name not in PLACEMENTS:
        raise FleetError(f"unknown placement {name!r}; the known ones are {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]

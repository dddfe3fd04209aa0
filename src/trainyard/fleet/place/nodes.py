"""Placement: which free devices a job gets, once it is decided that it runs.

A placement goes from free devices by node to devices by node. Nodes that are not of the asked type are offered as having
none free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy import arange, argmax, argsort, empty, int64, where, zeros
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.errors import FleetError
from trainyard.reading import shown

Ints = NDArray[np.int64]

ANYWHERE, CONSOLIDATED, PACKED, SPREAD, EMPTIEST = range(5)

WORKER = 8
"""A placement plus this times a number of devices is that placement of workers of so many devices, each on one node."""

PLACEMENTS: Mapping[str, int] = MappingProxyType(
    {
        "anywhere": ANYWHERE,
        "consolidated": CONSOLIDATED,
        "packed": PACKED,
        "spread": SPREAD,
        "emptiest": EMPTIEST,
    }
)
"""Placements by name."""


def placement(name: str) -> int:
    """A placement by its name.

    Raises
    ------
    FleetError
        If there is none of that name.
    """
    if name not in PLACEMENTS:
        raise FleetError(f"unknown placement {shown(name)}; known: {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]


def of_workers(gangs: Sequence[tuple[int, ...]], hows: Ints, how: int) -> Ints:
    """Placements of jobs of which some are gangs of equal workers.

    Parameters
    ----------
    gangs : devices of the workers of each; empty for one whose devices may lie in any numbers.
    hows, how : placement of each; that of all if the first is empty or says -1.
    """
    sizes = np.array([gang[0] if gang else 0 for gang in gangs], np.int64)
    found: Ints = np.where(hows < 0, how, hows) + WORKER * sizes if len(hows) else how + WORKER * sizes
    return found


def packed(free: Ints, wanted: int) -> Ints | None:
    """Count the devices of each node that the placement ``packed`` takes; None if there are not enough."""
    taken: Ints = _packed(free, wanted)
    return taken if len(taken) else None


@compiled
def nodes_for(how, free, wanted, sizes):  # type: ignore[no-untyped-def]
    """Count the devices to take of each node; an empty array if there is no place.

    Parameters
    ----------
    how : placement.
    free : devices free in every node.
    wanted : devices.
    sizes : devices of every node in all.
    """
    if how == CONSOLIDATED:
        return _consolidated(free, wanted, sizes)
    if how == PACKED:
        return _packed(free, wanted)
    if how == SPREAD:
        return _spread(free, wanted)
    if how == EMPTIEST:
        return _in_order(free, wanted, argsort(-free, kind="mergesort"))
    return _in_order(free, wanted, arange(len(free)))


@compiled
def in_one_rack(how, taken, free, wanted, sizes, racks):  # type: ignore[no-untyped-def]
    """Instead of several nodes, as many or fewer of the rack with fewest devices free, if there is one with room.

    Parameters
    ----------
    taken : of `nodes_for`, which has the other parameters.
    racks : index of the rack of every node.
    """
    if how not in (CONSOLIDATED, PACKED):
        return taken
    num_nodes, fewest = (taken > 0).sum(), free.sum() + 1
    if num_nodes < 2:
        return taken
    for rack in range(racks.max() + 1):
        here = where(racks == rack, free, 0)
        if wanted <= here.sum() < fewest:
            found = nodes_for(how, here, wanted, where(racks == rack, sizes, 0))
            if len(found) and (found > 0).sum() <= num_nodes:
                taken, fewest = found, here.sum()
    return taken


@compiled
def workers_for(how, free, wanted, sizes, racks, has_racks):  # type: ignore[no-untyped-def]
    """The same as `nodes_for`, of a placement of workers, counted in place of devices; in one rack if it can be.

    Parameters
    ----------
    racks : index of the rack of every node; ``has_racks`` if there are several.
    """
    worker = how // WORKER
    if worker:
        if free.max() < worker:
            return empty(0, int64)
        how, free, wanted, sizes = how % WORKER, free // worker, wanted // worker, sizes // worker
    taken = nodes_for(how, free, wanted, sizes)
    if has_racks:
        taken = in_one_rack(how, taken, free, wanted, sizes, racks)
    return taken * worker if worker else taken


@compiled
def _in_order(free, wanted, nodes):  # type: ignore[no-untyped-def]
    """Whatever is free, in the order of the nodes: devices are alike wherever they are."""
    taken = zeros(len(free), int64)
    for node in nodes:
        taken[node] = min(wanted, free[node])
        wanted -= taken[node]
        if wanted == 0:
            return taken
    return empty(0, int64)


@compiled
def _fullest(free, taken, wanted):  # type: ignore[no-untyped-def]
    """The node with fewest devices free that suffices, of those of which none is taken; -1 if there is none."""
    best = -1
    for node in range(len(free)):
        if taken[node] == 0 and free[node] >= wanted and (best < 0 or free[node] < free[best]):
            best = node
            if free[best] == wanted:
                break
    return best


@compiled
def _packed(free, wanted):  # type: ignore[no-untyped-def]
    """On the nodes with most devices free, but a node that suffices alone is the one with fewest."""
    taken = zeros(len(free), int64)
    best = _fullest(free, taken, wanted)
    if best < 0:
        return _in_order(free, wanted, argsort(-free, kind="mergesort"))
    taken[best] = wanted
    return taken


@compiled
def _consolidated(free, wanted, sizes):  # type: ignore[no-untyped-def]
    """On as few nodes as a job of that size can lie on: it waits rather than be spread over more.

    A job that fits in a node gets the node with the fewest devices free that still suffice; a larger one gets whole
    nodes, and what is left of it again the fullest that suffices. Where nodes differ in size, it takes those with most
    devices free, if these are no more than it would take of the largest ones.
    """
    size = sizes.max()
    whole, rest = wanted // size, wanted % size
    taken = zeros(len(free), int64)
    if whole:
        for node in range(len(free)):
            if 0 < sizes[node] < size:
                taken = _packed(free, wanted)
                return taken if (taken > 0).sum() <= _fewest(sizes, wanted) else empty(0, int64)
        for node in range(len(free)):
            if whole and free[node] == size:
                taken[node] = size
                whole -= 1
        if whole:
            return empty(0, int64)
    if rest:
        best = _fullest(free, taken, rest)
        if best < 0:
            return empty(0, int64)
        taken[best] = rest
    return taken


@compiled
def _fewest(sizes, wanted):  # type: ignore[no-untyped-def]
    """On how few nodes so many devices can lie, if all are free."""
    return (_in_order(sizes, wanted, argsort(-sizes, kind="mergesort")) > 0).sum()


@compiled
def _spread(free, wanted):  # type: ignore[no-untyped-def]
    """Take one device after the other from the node with the most free: as many nodes as there are."""
    if free.sum() < wanted:
        return empty(0, int64)
    left, taken = free.copy(), zeros(len(free), int64)
    for _ in range(wanted):
        node = argmax(left)
        left[node] -= 1
        taken[node] += 1
    return taken

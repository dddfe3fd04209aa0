"""Devices of combinations of jobs: those that run together get the same ones, and who can stays where it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.place.free import FreeDevices
from trainyard.hardware.cluster import Cluster

Ints = NDArray[np.int64]


def seats(
    cluster: Cluster, how: int, wanted: Ints, device_type: Ints, had: Sequence[Sequence[tuple[int, ...]]]
) -> list[tuple[int, ...]]:
    """Devices of every combination; none for one that has no place.

    Parameters
    ----------
    how : placement of those that move.
    wanted, device_type : devices of every combination, most urgent first, and the index of their type.
    had : the devices that jobs of every combination have now. Of several that have the same, only one can keep them.
    """
    types, taken = cluster.type_of_node[cluster.node_of], np.zeros(len(cluster.node_of), np.bool_)
    found: list[tuple[int, ...]] = [()] * len(wanted)
    for place, (count, kind) in enumerate(zip(wanted.tolist(), device_type.tolist(), strict=True)):
        for devices in had[place]:
            own = list(devices)
            if len(own) == count and types[own[0]] == kind and not taken[own].any():
                taken[own], found[place] = True, devices
                break
    free = FreeDevices(cluster)
    free.take_these(np.nonzero(taken)[0].tolist())
    moves = [place for place, devices in enumerate(found) if not devices]
    anywhere, as_said = np.full(len(moves), -1), np.zeros(0, np.int64)
    numbers, given = free.place(wanted[moves], device_type[moves], anywhere, as_said, how, goes_on=True)
    for number, devices in zip(numbers.tolist(), given.each(), strict=True):
        found[moves[number]] = devices
    return found

"""Free devices, by node; changed as jobs start and stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy import empty, int64, where

from trainyard.fleet.place.nodes import Ints, nodes_for
from trainyard.fleet.site import Site


class FreeDevices:
    """Which devices nobody has. Of a node the lowest are given first, so that a run repeats.

    Attributes
    ----------
    by_node, by_type, total : numbers of free devices.
    node_of, type_of : node of every device, and index of the type of every node.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.by_node = site.devices_per_node.copy()
        self.by_type = site.devices_of_type.copy()
        self.total = site.num_devices
        self.node_of: list[int] = site.node_of.tolist()
        self.type_of: list[int] = site.type_of_node.tolist()
        self._tenants = np.zeros(site.num_devices, np.int64)
        self._count = (self._tenants, self.by_node, self.by_type, site.node_of, site.type_of_node)

    def place(
        self, wanted: Ints, kinds: Ints, allowed: Ints, hows: Ints, how: int, goes_on: bool
    ) -> list[tuple[int, ...]]:
        """Take devices for jobs, one after the other; none for a job that has no place.

        Parameters
        ----------
        wanted : devices of each, all of one type.
        kinds : index of the type of each, -1 for the first of those that are ``allowed``, as bits; all are if it is
            empty.
        hows : placement of each; if it is empty, all are placed as ``how`` says.
        goes_on : whether jobs after one that has no place are tried.
        """
        site = self.site
        devices, ends = np.empty(sum(wanted.tolist()), np.int64), np.zeros(len(wanted), np.int64)
        nodes = site.first_device, site.devices_per_node
        taken = _place(wanted, kinds, allowed, hows, how, goes_on, nodes, self._count, (devices, ends))
        self.total -= taken
        flat, found, first = devices[:taken].tolist(), [], 0
        for end in ends.tolist():
            found.append(tuple(flat[first:end]))
            first = end
        return found

    def take_these(self, devices: Sequence[int]) -> None:
        """Take the devices named; one that others have already is shared with them."""
        self.total += _change(np.array(devices, np.int64), 1, *self._count)

    def give(self, devices: Sequence[int]) -> None:
        """Jobs leave devices, which are free when the last one does."""
        self.total += _change(np.array(devices, np.int64), -1, *self._count)


@njit(cache=True)
def _change(devices, change, tenants, by_node, by_type, node_of, type_of):  # type: ignore[no-untyped-def]
    """Give devices one tenant more, or less; returns how many are free that were not."""
    total = 0
    for device in devices:
        was_free = tenants[device] == 0
        tenants[device] += change
        freed = int(tenants[device] == 0) - int(was_free)
        node = node_of[device]
        by_node[node] += freed
        by_type[type_of[node]] += freed
        total += freed
    return total


@njit(cache=True)
def _place(wanted, kinds, allowed, hows, how, goes_on, nodes, free, found):  # type: ignore[no-untyped-def]
    first, sizes = nodes
    tenants, by_node, by_type, _, type_of = free
    devices, ends = found
    count = 0
    for i in range(len(wanted)):
        taken = empty(0, int64)
        for kind in range(len(by_type)):
            named = kinds[i] if len(kinds) else -1
            suits = kind == named if named >= 0 else (allowed[i] >> kind) & 1
            if len(taken) == 0 and suits and by_type[kind] >= wanted[i]:
                own = type_of == kind
                taken = nodes_for(
                    hows[i] if len(hows) else how, where(own, by_node, 0), wanted[i], where(own, sizes, 0)
                )
        begun = count
        for node in range(len(taken)):
            device = first[node]
            for _ in range(taken[node]):
                while tenants[device]:
                    device += 1
                tenants[device] = 1
                devices[count] = device
                count += 1
            by_node[node] -= taken[node]
            by_type[type_of[node]] -= taken[node]
        ends[i] = count
        if count == begun and not goes_on:
            ends[i:] = count
            break
    return count

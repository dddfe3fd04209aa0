"""Free devices, by node; changed as jobs start and stop."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy import empty, int64, where
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.place.grants import Laid
from trainyard.fleet.place.nodes import Ints, workers_for
from trainyard.fleet.place.pools import pool_for
from trainyard.fleet.site import Site

Bools = NDArray[np.bool_]

# Rows of the tables of devices and of nodes. A table is one argument, and to hand an argument to a compiled function
# takes as long as its work on a job.
_TENANTS, _NODE = range(2)
_FREE, _SIZE, _FIRST, _TYPE, _RACK = range(5)


class FreeDevices:
    """Which devices nobody has. Of a node the lowest are given first, so that a run repeats.

    Attributes
    ----------
    by_node, by_type, total : numbers of free devices.
    kind_of : index of the type of every device.
    tables : of devices, of nodes and of types, as compiled functions take them.
    """

    def __init__(self, site: Site) -> None:
        sizes = site.devices_per_node
        per_device = np.array((~site.is_usable, site.node_of), np.int64)
        about = sizes, sizes, site.first_device[:-1], site.type_of_node, site.rack_of_node
        per_node = np.array(about, np.int64)
        self.by_node = per_node[_FREE]
        self.by_type = site.devices_of_type.copy()
        self.total = site.num_devices
        self.kind_of: Ints = site.type_of_node[site.node_of]
        self.tables = per_device, per_node, self.by_type

    def place(
        self, wanted: Ints, kinds: Ints, allowed: Ints, hows: Ints, how: int, goes_on: bool
    ) -> tuple[Ints, list[tuple[int, ...]]]:
        """Take devices for jobs, one after the other; those that have no place get none.

        One that finds enough devices, but not where it can lie, keeps as many from those after it.

        Parameters
        ----------
        wanted : devices of each, all of one type; one that wants 0 gets none.
        kinds : index of the type of each, -1 for the first of those that are ``allowed``, as bits; all are if it is
            empty.
        hows : placement of each; if it is empty, all are placed as ``how`` says.
        goes_on : whether jobs after one that has no place are tried.

        Returns
        -------
        Numbers of those that got devices, and the devices of each.
        """
        numbers, given = self.lay(wanted, kinds, allowed, hows, how, goes_on)
        return numbers, given.each()

    def lay(
        self, wanted: Ints, kinds: Ints, allowed: Ints, hows: Ints, how: int, goes_on: bool
    ) -> tuple[Ints, Laid]:
        """The same as `place`, in arrays."""
        numbers, *given = place_jobs(wanted, kinds, allowed, hows, how, goes_on, *self.tables)
        laid = Laid(*given)
        self.total -= len(laid.devices)
        return numbers, laid

    def offering(self, room: Ints, sizes: Ints, left: Ints) -> FreeDevices:
        """The same devices as a job sees them that cannot use all.

        Parameters
        ----------
        room : devices of every node that it can use now; ``sizes`` if nobody else were there.
        left : devices of every type that it may take.
        """
        seen = copy(self)
        per_device, per_node, _ = (table.copy() for table in self.tables)
        np.minimum(per_node[_FREE], room, out=per_node[_FREE])
        np.minimum(per_node[_SIZE], sizes, out=per_node[_SIZE])
        seen.by_node = per_node[_FREE]
        seen.by_type = np.minimum(
            left, np.bincount(per_node[_TYPE], seen.by_node, len(left)).astype(np.int64)
        )
        seen.total = int(seen.by_type.sum())
        seen.tables = per_device, per_node, seen.by_type
        return seen

    def taken(self) -> Bools:
        """Whether somebody has each device; so have all devices of nodes that cannot be used."""
        found: Bools = self.tables[0][_TENANTS] > 0
        return found

    def take_these(self, devices: Sequence[int] | Ints) -> None:
        """Take the devices named; one that others have already is shared with them."""
        self.total += change_tenants(np.asarray(devices, np.int64), 1, *self.tables)


@compiled
def change_tenants(devices, change, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Give devices one tenant more, or less; returns how many are free that were not: those that the last one leaves."""
    total = 0
    for device in devices:
        was_free = per_device[_TENANTS, device] == 0
        per_device[_TENANTS, device] += change
        freed = int(per_device[_TENANTS, device] == 0) - int(was_free)
        node = per_device[_NODE, device]
        per_node[_FREE, node] += freed
        by_type[per_node[_TYPE, node]] += freed
        total += freed
    return total


@compiled
def place_jobs(wanted, kinds, allowed, hows, how, goes_on, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Take devices of nodes for jobs; returns the numbers of those that got any, the devices, and how many each has."""
    type_of, has_racks = per_node[_TYPE], per_node[_RACK].max() > 0
    left, total = by_type.copy(), by_type.sum()
    numbers, counts, devices = empty(len(wanted), int64), empty(len(wanted), int64), empty(total, int64)
    placed = count = 0
    for i in range(len(wanted)):
        if total == 0:
            break
        named = kinds[i] if len(kinds) else -1
        pool = pool_for(left, wanted[i], named, allowed[i]) if wanted[i] else -1
        taken = empty(0, int64)
        if pool >= 0:
            total -= wanted[i]
            for kind in range(len(by_type)):
                suits = kind == named if named >= 0 else (allowed[i] >> kind) & 1
                if len(taken) == 0 and suits and left[kind] >= wanted[i]:
                    free, sizes = per_node[_FREE], per_node[_SIZE]
                    if len(by_type) > 1:
                        own = type_of == kind
                        free, sizes = where(own, free, 0), where(own, sizes, 0)
                    own_how = hows[i] if len(hows) else how
                    taken = workers_for(own_how, free, wanted[i], sizes, per_node[_RACK], has_racks)
                    if len(taken):
                        pool = kind
            left[pool] -= wanted[i]
        if len(taken):
            _take(taken, wanted[i], devices[count:], per_device, per_node, by_type)
            count += wanted[i]
            numbers[placed], counts[placed] = i, wanted[i]
            placed += 1
        elif wanted[i] and not goes_on:
            break
    return numbers[:placed], devices[:count], counts[:placed]


@compiled
def _take(taken, wanted, devices, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Take so many devices of every node, ``wanted`` in all, and write down which."""
    tenants, count = per_device[_TENANTS], 0
    for node in range(len(taken)):
        if taken[node] == 0:
            continue
        device = per_node[_FIRST, node]
        for _ in range(taken[node]):
            while tenants[device]:
                device += 1
            tenants[device] = 1
            devices[count] = device
            count += 1
        per_node[_FREE, node] -= taken[node]
        by_type[per_node[_TYPE, node]] -= taken[node]
        if count == wanted:
            break

"""Free devices, by node; changed as jobs start and stop."""

from __future__ import annotations

import heapq

import numpy as np

from trainyard.fleet.place.nodes import Ints, Placement
from trainyard.fleet.site import Site


class FreeDevices:
    """Which devices nobody has. Of a node the lowest are given first, so that a run repeats.

    Attributes
    ----------
    by_node, by_type, total : numbers of free devices.
    node_of : node of every device.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.by_node = site.devices_per_node.copy()
        self.by_type = site.devices_of_type.copy()
        self.total = site.num_devices
        self.node_of: list[int] = site.node_of.tolist()
        self._devices = [
            list(range(first, last))
            for first, last in zip(site.first_device, site.first_device[1:], strict=False)
        ]
        self._type_of: list[int] = site.type_of_node.tolist()
        # By type: 1 at its nodes and 0 elsewhere, and the devices that they have.
        self._own = [(site.type_of_node == kind).astype(np.int64) for kind in range(len(self.by_type))]
        self._sizes = [site.devices_per_node * own for own in self._own]
        self._tenants = [0] * site.num_devices

    def find(self, wanted: int, device_type: int, how: Placement, allowed: int = -1) -> Ints | None:
        """How many devices to take of every node, all of one type; None if there is no place.

        Parameters
        ----------
        device_type : index of the type; -1 for the first of those that are ``allowed``, as bits.
        """
        if len(self.by_type) == 1:
            enough = self.total >= wanted
            return how(self.by_node, wanted, self.site.devices_per_node) if enough else None
        for kind in range(len(self.by_type)) if device_type < 0 else (device_type,):
            if self.by_type[kind] < wanted or (device_type < 0 and not (allowed >> kind) & 1):
                continue
            found = how(self.by_node * self._own[kind], wanted, self._sizes[kind])
            if found is not None:
                return found
        return None

    def take(self, counts: Ints) -> tuple[int, ...]:
        """Take so many of every node; returns the devices, ascending."""
        taken: list[int] = []
        for node in counts.nonzero()[0].tolist():
            count = int(counts[node])
            taken += [heapq.heappop(self._devices[node]) for _ in range(count)]
            self._count(node, -count)
        for device in taken:
            self._tenants[device] = 1
        return tuple(sorted(taken))

    def take_these(self, devices: tuple[int, ...]) -> None:
        """Take the devices named; one that others have already is shared with them."""
        for device in devices:
            self._tenants[device] += 1
            if self._tenants[device] == 1:
                node = self.node_of[device]
                self._devices[node].remove(device)
                heapq.heapify(self._devices[node])
                self._count(node, -1)

    def give(self, devices: tuple[int, ...]) -> None:
        """A job leaves devices, which are free when the last one does."""
        for device in devices:
            self._tenants[device] -= 1
            if not self._tenants[device]:
                node = self.node_of[device]
                heapq.heappush(self._devices[node], device)
                self._count(node, 1)

    def _count(self, node: int, change: int) -> None:
        self.by_node[node] += change
        self.by_type[self._type_of[node]] += change
        self.total += change

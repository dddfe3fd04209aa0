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
    by_node, by_type : numbers of free devices.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.by_node = site.devices_per_node.copy()
        self.by_type = site.devices_of_type.copy()
        self._devices = [
            list(range(first, last))
            for first, last in zip(site.first_device, site.first_device[1:], strict=False)
        ]
        self._node_of = site.node_of.tolist()
        self._type_of = site.type_of_node.tolist()

    @property
    def total(self) -> int:
        return int(self.by_type.sum())

    def find(self, wanted: int, device_type: int, how: Placement) -> Ints | None:
        """How many devices to take of every node, all of one type; None if there is no place."""
        if len(self.by_type) == 1:
            return (
                how(self.by_node, wanted, self.site.devices_per_node) if self.by_type[0] >= wanted else None
            )
        for kind in range(len(self.by_type)) if device_type < 0 else (device_type,):
            if self.by_type[kind] < wanted:
                continue
            own = self.site.type_of_node == kind
            sizes = np.where(own, self.site.devices_per_node, 0)
            found = how(np.where(own, self.by_node, 0), wanted, sizes)
            if found is not None:
                return found
        return None

    def take(self, counts: Ints) -> tuple[int, ...]:
        """Take so many of every node; returns the devices, ascending."""
        taken: list[int] = []
        for node in np.nonzero(counts)[0].tolist():
            for _ in range(int(counts[node])):
                taken.append(heapq.heappop(self._devices[node]))
            self.by_node[node] -= counts[node]
            self.by_type[self._type_of[node]] -= counts[node]
        return tuple(sorted(taken))

    def take_these(self, devices: tuple[int, ...]) -> None:
        """Take the devices named, which are free."""
        for device in devices:
            node = self._node_of[device]
            self._devices[node].remove(device)
            heapq.heapify(self._devices[node])
            self.by_node[node] -= 1
            self.by_type[self._type_of[node]] -= 1

    def give(self, devices: tuple[int, ...]) -> None:
        """Devices that their job has left."""
        for device in devices:
            node = self._node_of[device]
            heapq.heappush(self._devices[node], device)
            self.by_node[node] += 1
            self.by_type[self._type_of[node]] += 1

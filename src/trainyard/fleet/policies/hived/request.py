"""Requests of jobs for cells, and where they fit.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020; the order in which places are
tried is that of the authors' program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from trainyard.fleet.known import KnownJob
from trainyard.fleet.place.affinity import devices_in, nodes_for
from trainyard.fleet.policies.hived.bindings import FREE, OPPORTUNISTIC
from trainyard.fleet.policies.hived.virtual import Ints, Layout, Nodes, VirtualCell

HIGHEST = 1000
"""Priorities of guaranteed jobs are from 0 to this."""


class Request(NamedTuple):
    """Request of a job, as far as it decides where the job can be.

    Attributes
    ----------
    owner : name of the virtual cluster.
    pinned : name of a pinned cell of it; empty for its other cells.
    device_types : that will do; any if empty.
    gang : devices of the workers, ascending; empty for as few workers as nodes suffice.
    priority : `OPPORTUNISTIC`, or that among guaranteed jobs.
    """

    owner: str
    pinned: str
    device_types: tuple[str, ...]
    num_devices: int
    gang: tuple[int, ...]
    priority: int

    @classmethod
    def of(cls, job: KnownJob, layout: Layout) -> Request:
        """Return the request of a job; without virtual clusters, its owner does not matter."""
        owner = "" if layout.virtual_clusters == ("",) else job.virtual_cluster
        gang = tuple(sorted(job.gang))
        priority = job.priority if job.guaranteed else OPPORTUNISTIC
        return cls(owner, job.pinned_cell, job.device_types, job.num_devices, gang, priority)

    @property
    def is_guaranteed(self) -> bool:
        return self.priority > OPPORTUNISTIC

    @property
    def part(self) -> tuple[str, str]:
        """Which virtual cells it is about."""
        return self.owner, self.pinned

    @property
    def cells(self) -> str:
        """Say what the request asks for."""
        if self.gang:
            return f"cells for workers of {'+'.join(map(str, self.gang))} devices"
        return f"{self.num_devices}-device cell"

    def fit(self, layout: Layout, priorities: Ints) -> list[int] | None:
        """Virtual places, or places for an opportunistic job, in the first chain with room.

        Devices of jobs of lower priority are used only where the free ones do not suffice.

        Parameters
        ----------
        priorities : of the job at every virtual place, or place.
        """
        for c, nodes in self._spots(layout).items():
            chain = layout.chains[c]
            gang = self.gang or _workers(self.num_devices, chain.node_size)
            for bar in (OPPORTUNISTIC, self.priority)[: 1 + self.is_guaranteed]:
                found = nodes_for((nodes.first, nodes.last), priorities, gang, bar, across=self.is_guaranteed)
                if found is None:
                    continue
                places: list[int] = []
                for count, node in zip(gang, found, strict=True):
                    where = range(int(nodes.first[node]), int(nodes.last[node]))
                    places += devices_in(where, priorities, count, bar, set(places), chain.sizes)
                return places
        return None

    def can_use(self, cell: VirtualCell, layout: Layout) -> bool:
        """Whether a virtual cell is for such a job: of its virtual cluster, and with room for each of its workers."""
        chain = layout.chains[cell.chain]
        widest = max(self.gang or _workers(self.num_devices, chain.node_size))
        return (cell.owner, cell.pinned) == self.part and chain.sizes[cell.level] >= widest

    def _spots(self, layout: Layout) -> Mapping[int, Nodes]:
        """Nodes that can do, by chain."""
        spots = layout.guaranteed_nodes(self.owner, self.pinned) if self.is_guaranteed else layout.all_nodes
        kinds = self.device_types
        return {c: nodes for c, nodes in spots.items() if not kinds or layout.chains[c].names[0] in kinds}

    def impossible(self, layout: Layout) -> str:
        """Why it can never be met; empty if it can."""
        return self._malformed(layout) or self._too_large(layout)

    def _malformed(self, layout: Layout) -> str:
        pinned = [v.pinned for v in layout.virtual_cells if v.owner == self.owner and v.pinned]
        if self.owner not in layout.virtual_clusters:
            return (
                f"there is no virtual cluster {self.owner!r}; there are {', '.join(layout.virtual_clusters)}"
            )
        if not OPPORTUNISTIC <= self.priority <= HIGHEST:
            return f"priority {self.priority} is not from 0 to {HIGHEST}"
        if self.gang and (self.gang[0] < 1 or sum(self.gang) != self.num_devices):
            workers = "+".join(map(str, self.gang))
            return f"workers of {workers} devices are not {self.num_devices} devices together"
        if self.pinned and not self.is_guaranteed:
            return f"an opportunistic job cannot ask for pinned cell {self.pinned!r}; it runs where devices are idle"
        if self.pinned and self.pinned not in pinned:
            known = ", ".join(pinned) or "none"
            return f"virtual cluster {self.owner!r} has no pinned cell {self.pinned!r}; it has {known}"
        return ""

    def _too_large(self, layout: Layout) -> str:
        whose = f"virtual cluster {self.owner!r}" if self.is_guaranteed else "the cluster"
        if not self._spots(layout):
            return f"{whose} has no cells of {' or '.join(self.device_types) or 'any type'}"
        size = layout.first_virtual[-1] if self.is_guaranteed else layout.first_place[-1]
        if self.fit(layout, np.full(size, FREE)) is None:
            return f"{whose} has no {self.cells}, even when nobody else is there"
        return ""


def _workers(num_devices: int, node_size: int) -> tuple[int, ...]:
    """Return the sizes of as few workers as nodes suffice, ascending."""
    whole, rest = divmod(num_devices, node_size)
    return ((rest,) if rest else ()) + (node_size,) * whole

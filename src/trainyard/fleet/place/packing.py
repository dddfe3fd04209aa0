"""Packing jobs into nodes by devices, CPUs and memory at once; who has more than a proportional share may have to give.

References
----------
J. Mohan, A. Phanishayee, J. Kulkarni, V. Chidambaram. "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters",
OSDI 2022: TUNE.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def proportional(cluster: Cluster) -> Floats:
    """Devices (1), CPUs and bytes of one device's share, which every node has for each of its devices."""
    nodes = [node for node in cluster.nodes if node.num_devices]
    cpus = min(node.cpus / node.num_devices for node in nodes)
    return np.array([1.0, cpus, min(node.memory_bytes / node.num_devices for node in nodes)])


class Packing:
    """Jobs on nodes, while a decision is made.

    Attributes
    ----------
    rows : devices of each node that every job has.
    needs : devices, CPUs and bytes that every job has in all, the same for each of its devices.
    """

    def __init__(self, cluster: Cluster) -> None:
        size = np.array([(node.num_devices, node.cpus, node.memory_bytes) for node in cluster.nodes], float)
        size[list(cluster.away)] = 0.0
        self.free, self.full = size.copy(), np.maximum(size.max(0), 1.0)
        self.share = proportional(cluster)
        self.rows: dict[int, dict[int, int]] = {}
        self.needs: dict[int, Floats] = {}

    def add(self, job: int, needs: tuple[float, float, float]) -> None:
        """Place a job: as it would like, or with its proportional share, or with that taken back from others."""
        wanted = np.array(needs)
        row = self._find(wanted)
        if row is None and _exceeds(wanted, self.share * wanted[0]).any():
            wanted = self.share * wanted[0]
            row = self._find(wanted)
        if row is None:
            self._make_room(wanted)
            row = self._find(wanted)
        assert row is not None, (
            "every free device has its proportional share, once no neighbour has more than its own"
        )
        self.rows[job], self.needs[job] = row, wanted
        self._take(job, 1.0)

    def _take(self, job: int, times: float) -> None:
        needs, row = self.needs[job], self.rows[job]
        for node, count in row.items():
            self.free[node] -= times * needs * (count / needs[0])

    def _find(self, wanted: Floats) -> dict[int, int] | None:
        """Devices of each node for a job: of one node if it has room, else of as few as may be."""
        count = int(wanted[0])
        asked = wanted > 0
        room = np.floor((self.free[:, asked] / (wanted[asked] / count)).min(1) + 1e-9).astype(np.int64)
        if room.sum() < count:
            return None
        return self.of_nodes(room, count)

    def of_nodes(self, room: Ints, count: int) -> dict[int, int] | None:
        """Devices of nodes, of which so many suit a job: where least room is left, in parts of a node."""
        left = (self.free / self.full).sum(1)
        largest_first = np.lexsort((left, -room)).tolist()
        rest = count
        for k, node in enumerate(largest_first):
            suits = [n for n in largest_first[k:] if room[n] >= rest]
            if suits:
                return filled([*largest_first[:k], min(suits, key=lambda n: (left[n], n))], room, count)
            rest -= int(room[node])
        return None

    def _make_room(self, wanted: Floats) -> None:
        """Take back what jobs have beyond their share, on the nodes whose devices a job is to have."""
        for node, count in self.by_devices(int(wanted[0])).items():
            here = [job for job, row in self.rows.items() if node in row]
            here.sort(key=lambda job: (len(self.rows[job]), *(-self.needs[job][1:] / self.needs[job][0])))
            for job in here:
                lacks = _exceeds(wanted * (count / wanted[0]), self.free[node])
                share = self.share * self.needs[job][0]
                excess = _exceeds(self.needs[job], share)
                if not lacks.any():
                    break
                if self.gives(excess, lacks):
                    self._take(job, -1.0)
                    self.needs[job] = share
                    self._take(job, 1.0)

    def gives(self, excess: Bools, lacks: Bools) -> bool:
        """Whether a job gives back what it has beyond its share, of what others lack."""
        return bool((excess & lacks).any())

    def by_devices(self, count: int) -> dict[int, int]:
        """Devices of each node for a job, whatever CPUs and memory are left there."""
        room = self.devices_free
        suits = np.nonzero(room >= count)[0]
        if len(suits):
            return {int(suits[np.argmin(room[suits])]): count}
        return filled(np.argsort(-room, kind="stable").tolist(), room, count)

    @property
    def devices_free(self) -> Ints:
        """Free devices of each node."""
        found: Ints = np.rint(self.free[:, 0]).astype(np.int64)
        return found


def filled(nodes: Iterable[int], room: Ints, count: int) -> dict[int, int]:
    """So many devices of nodes, taken in their order."""
    row: dict[int, int] = {}
    for node in nodes:
        taken = min(count, int(room[node]))
        if taken:
            row[node] = taken
            count -= taken
    return row


def _exceeds(wanted: Floats, limit: Floats) -> Bools:
    return wanted > limit * (1 + 1e-9) + 1e-9

"""Placement of blocks: part of one node, or whole nodes; jobs stay where they are if that leaves room for the rest.

References
----------
S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.fleet.place.keep import keeping
from trainyard.fleet.place.nodes import Ints, packed
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster


def blocks(
    cluster: Cluster, device_type: Ints, num_devices: Ints, grants: Sequence[Grant | None]
) -> list[tuple[int, ...]]:
    """The devices of jobs on as few nodes as can hold them, large jobs first; a job moves only to make room.

    If nodes have a power of two of devices, and jobs a power of two or whole nodes, there is always such a place. Other
    jobs may come to lie on more nodes.

    Parameters
    ----------
    device_type, num_devices : of every job; no more of a type than there are.
    grants : what every job has now.
    """
    free = cluster.devices_per_node.copy()
    own = [
        _own(cluster, grant, int(kind), int(count))
        for grant, kind, count in zip(grants, device_type, num_devices, strict=True)
    ]
    held = np.zeros_like(free)
    for row in own:
        for node, count in row.items():
            held[node] += count
    found: list[dict[int, int]] = [{}] * len(own)
    on_type = [cluster.type_of_node == kind for kind in range(len(cluster.device_types))]
    stays = np.array([not row for row in own], np.bool_)
    for job in np.lexsort((stays, -num_devices)).tolist():
        row, wanted = own[job], int(num_devices[job])
        for node, count in row.items():
            held[node] -= count
        if not row or any(free[node] < count for node, count in row.items()):
            row = _place(free, held, np.where(on_type[device_type[job]], cluster.devices_per_node, 0), wanted)
        for node, count in row.items():
            free[node] -= count
        found[job] = row
    return keeping(cluster, found, grants)


def _own(cluster: Cluster, grant: Grant | None, device_type: int, num_devices: int) -> dict[int, int]:
    """Devices of each node that a job keeps; none if it is to have others."""
    if grant is None or grant.num_devices != num_devices:
        return {}
    nodes, counts = np.unique(cluster.node_of[list(grant.devices)], return_counts=True)
    if np.any(cluster.type_of_node[nodes] != device_type):
        return {}
    return dict(zip(nodes.tolist(), counts.tolist(), strict=True))


def _place(free: Ints, held: Ints, sizes: Ints, wanted: int) -> dict[int, int]:
    """Choose devices that no other job has to leave, unless that takes more nodes."""
    usable = np.where(sizes > 0, free, 0)
    found = packed(usable, wanted)
    assert found is not None, "there are no more devices than the jobs were given"
    beside = packed(np.maximum(usable - held, 0), wanted)
    if beside is not None and np.count_nonzero(beside) <= np.count_nonzero(found):
        found = beside
    elif np.count_nonzero(found) == 1:
        # One node will do: the one on which fewest have to move.
        crowd = np.where(usable >= wanted, held, np.iinfo(np.int64).max)
        found = np.zeros_like(found)
        found[np.argmin(crowd)] = wanted
    return {int(node): int(found[node]) for node in np.flatnonzero(found)}

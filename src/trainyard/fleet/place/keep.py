"""From devices of every node to the very devices: a job keeps those that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster


def keeping(
    cluster: Cluster, counts: Sequence[Mapping[int, int]], grants: Sequence[Grant | None]
) -> list[tuple[int, ...]]:
    """The devices of jobs, so that one that stays on a node in the same number does not move there.

    Parameters
    ----------
    counts : devices of each node that every job gets; together no more than there are.
    grants : what every job has now.
    """
    first, node_of = cluster.first_device.tolist(), cluster.node_of.tolist()
    free = cluster.is_usable.copy()
    kept: list[dict[int, list[int]]] = []
    for row, grant in zip(counts, grants, strict=True):
        own: dict[int, list[int]] = {node: [] for node in row}
        for device in grant.devices if grant else ():
            node = node_of[device]
            if len(own.get(node, ())) < row.get(node, 0):
                own[node].append(device)
                free[device] = False
        kept.append(own)
    found = []
    for row, own in zip(counts, kept, strict=True):
        devices: list[int] = []
        for node, count in row.items():
            others = (
                np.nonzero(free[first[node] : first[node + 1]])[0][: count - len(own[node])] + first[node]
            )
            free[others] = False
            devices += own[node] + others.tolist()
        found.append(tuple(sorted(devices)))
    return found

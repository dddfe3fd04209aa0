"""Buddy placement: blocks of devices that are halves of halves of a node, or whole nodes.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023, section
4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster


def block(count: int, node_size: int) -> int:
    """Devices of the smallest block that has so many; nodes have a power of two."""
    if count > node_size:
        return -(-count // node_size) * node_size
    return 1 << (count - 1).bit_length()


def buddies(cluster: Cluster, counts: Sequence[int], grants: Sequence[Grant | None]) -> list[tuple[int, ...]]:
    """Blocks of devices that begin at multiples of their size, large ones first; a job keeps its block if it can.

    Jobs that are in the way of a larger one move. As larger blocks are placed before, what is free always holds a block.

    Parameters
    ----------
    cluster : of nodes of one size, a power of two.
    counts : devices of every job; their blocks together no more than there are.
    grants : what every job has now.
    """
    node_size = cluster.nodes[0].num_devices
    sizes = [block(count, node_size) for count in counts]
    own = [_parts(grant, size, node_size) for grant, size in zip(grants, sizes, strict=True)]
    free, held = cluster.is_usable.copy(), np.zeros(len(cluster.is_usable), np.int64)
    for parts, size in zip(own, sizes, strict=True):
        held.reshape(-1, min(size, node_size))[parts] = 1
    found: dict[int, tuple[int, ...]] = {}
    for job in sorted(range(len(counts)), key=lambda job: (-sizes[job], not own[job])):
        part_size = min(sizes[job], node_size)
        whole, parts = free.reshape(-1, part_size).min(1), own[job]
        if not parts or not whole[parts].all():
            # Where fewest smaller jobs have to move.
            disturbed = np.where(whole, held.reshape(-1, part_size).sum(1), part_size + 1)
            parts = sorted(disturbed.argsort(kind="stable")[: sizes[job] // part_size].tolist())
            assert whole[parts].all(), "blocks placed in the order of their size leave no gaps"
        free.reshape(-1, part_size)[parts] = False
        devices = [device for part in parts for device in range(part * part_size, (part + 1) * part_size)]
        found[job] = tuple(devices[: counts[job]])
    return [found[job] for job in range(len(counts))]


def _parts(grant: Grant | None, size: int, node_size: int) -> list[int]:
    """Numbers of the blocks, or whole nodes, that a job of this size has already; none if it has others."""
    if grant is None or block(grant.num_devices, node_size) != size:
        return []
    part_size = min(size, node_size)
    parts = sorted({device // part_size for device in grant.devices})
    return parts if len(parts) * part_size == size else []

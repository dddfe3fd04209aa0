"""The positions of a group's ranks: an order that follows the nodes, and rings that follow the wires."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.topology import NodeTopology

__all__ = ["Layout", "Ring", "group_layout", "pack_rings"]

Ring = tuple[tuple[int, ...], float]
"""Positions in the order of the ring, and the share of the data that travels on it."""

_SEARCH_STEPS = 20_000  # enough for every ring of 8 devices; more would show in planning time
_MAX_RINGS = 16


@dataclass(frozen=True)
class Layout:
    """Shape of a group, in positions: ranks sorted by node, the root's node first and the root first in it.

    Parameters
    ----------
    node_sizes
        Ranks of the group in each node.
    local_rings
        Rings over the ranks of one node, the same in all nodes; for nodes of different sizes there is none.
    """

    node_sizes: tuple[int, ...]
    local_rings: tuple[Ring, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return sum(self.node_sizes)

    @property
    def is_even(self) -> bool:
        """True if every node has the same number of ranks."""
        return len(set(self.node_sizes)) == 1

    def rings(self) -> tuple[Ring, ...]:
        """Rings over the whole group; together they use all links that the group has.

        Inside one node these are its own. Over several, one for each rank of a node: the same local order
        entered at a different rank, so that every ring leaves a node through another NIC.

        Returns
        -------
        tuple of Ring
            Shares add up to one.
        """
        return _group_rings(self)


@lru_cache(maxsize=4096)
def _group_rings(layout: Layout) -> tuple[Ring, ...]:
    if not layout.is_even:
        return ((tuple(range(layout.num_ranks)), 1.0),)
    if len(layout.node_sizes) == 1:
        return layout.local_rings
    order = layout.local_rings[0][0]
    size = len(order)
    rings = []
    for start in range(size):
        local = order[start:] + order[:start]
        whole = tuple(node * size + place for node in range(len(layout.node_sizes)) for place in local)
        rings.append((whole, 1.0 / size))
    return tuple(rings)


def group_layout(cluster: Cluster, ranks: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], Layout]:
    """Order of a group's ranks by place, and its shape.

    Parameters
    ----------
    cluster
        The cluster.
    ranks
        The group; the first is the root.

    Returns
    -------
    order : ndarray
        Rank at each position.
    layout : Layout
        The shape.
    """
    table = cluster.routes
    given = np.array(ranks, dtype=np.int64)
    nodes = table.node_of[given]
    places = table.local_of[given]
    by_place = np.lexsort((places, given != given[0], nodes, nodes != nodes[0]))
    order, nodes, places = given[by_place], nodes[by_place], places[by_place]
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    sizes = tuple(np.diff(starts, append=len(order)).tolist())
    if len(set(sizes)) > 1:
        return order, Layout(sizes, ())
    size = sizes[0]
    first = tuple(places[:size].tolist())
    topology = cluster.topologies[int(nodes[0])]
    if topology.direct_bandwidth and not _same_everywhere(
        cluster, nodes[starts], places.reshape(-1, size), topology
    ):
        return order, Layout(sizes, ((tuple(range(size)), 1.0),))
    return order, Layout(sizes, pack_rings(topology, first))


def _same_everywhere(
    cluster: Cluster, nodes: npt.NDArray[np.int64], places: npt.NDArray[np.int64], topology: NodeTopology
) -> bool:
    return bool((places == places[0]).all()) and all(cluster.topologies[node] == topology for node in nodes)


@lru_cache(maxsize=4096)
def pack_rings(topology: NodeTopology, places: tuple[int, ...]) -> tuple[Ring, ...]:
    """Rings over some devices of a node that together use its direct links.

    The widest ring is taken first, its bandwidth taken off the links, and again while there is one. On a
    DGX-1V that gives the six rings of eight GPUs that NCCL builds. Behind a switch any order is as good: one
    ring.

    Parameters
    ----------
    topology
        The node.
    places
        Devices of the node.

    Returns
    -------
    tuple of Ring
        Over positions in `places`; shares are proportional to the bandwidths and add up to one.
    """
    natural: tuple[Ring, ...] = ((tuple(range(len(places))), 1.0),)
    if len(places) < 2:
        return natural
    index = {place: position for position, place in enumerate(places)}
    free = {
        (index[a], index[b]): bandwidth
        for (a, b), bandwidth in topology.direct_bandwidth.items()
        if a in index and b in index
    }
    rings: list[tuple[tuple[int, ...], float]] = []
    while len(rings) < _MAX_RINGS:
        ring = _widest_ring(free, len(places))
        if ring is None:
            break
        hops = list(zip(ring, ring[1:] + ring[:1], strict=True))
        width = min(free[hop] for hop in hops)
        rings.append((ring, width))
        for hop in hops:
            free[hop] -= width
    total = sum(width for _, width in rings)
    if rings:
        return tuple((ring, width / total) for ring, width in rings)
    order = natural[0][0]
    # No ring of direct links, so some hops relay; the wires of a mesh work both ways, so two rings.
    return ((order, 0.5), (order[::-1], 0.5)) if free else natural


def _widest_ring(free: dict[tuple[int, int], float], size: int) -> tuple[int, ...] | None:
    """Ring through all positions whose narrowest link is as wide as possible, or None."""
    for width in sorted({bandwidth for bandwidth in free.values() if bandwidth > 0}, reverse=True):
        neighbors: list[list[int]] = [[] for _ in range(size)]
        for (a, b), bandwidth in sorted(free.items()):
            if bandwidth >= width:
                neighbors[a].append(b)
        ring = _hamiltonian(neighbors, size)
        if ring is not None:
            return ring
    return None


def _hamiltonian(neighbors: list[list[int]], size: int) -> tuple[int, ...] | None:
    """A cycle through all positions by depth-first search with a limit on steps, or None."""
    path, used, steps = [0], {0}, 0
    choices = [iter(neighbors[0])]
    while choices and steps < _SEARCH_STEPS:
        steps += 1
        following = next((vertex for vertex in choices[-1] if vertex not in used), None)
        if following is None:
            choices.pop()
            used.discard(path.pop())
            continue
        path.append(following)
        used.add(following)
        if len(path) == size and 0 in neighbors[following]:
            return tuple(path)
        choices.append(iter(neighbors[following]))
    return None

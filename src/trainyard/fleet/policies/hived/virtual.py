"""Virtual clusters: whose cells of which type are guaranteed, on a cluster that is seen as cells.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020, section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.cells import Cell, Chain, Free, shortage, take
from trainyard.hardware.cluster import Cluster

Ints = NDArray[np.int64]

Quotas = tuple[tuple[str, int, int], ...]
"""Name of a virtual cluster, devices of a cell, number of such cells."""


@dataclass(frozen=True)
class VirtualCell:
    """A cell that a virtual cluster is guaranteed, wherever it lies.

    Attributes
    ----------
    owner : name of the virtual cluster.
    chain : index of the chain that it comes from.
    level : of the cell.
    pinned : name of a reserved cell; empty for any cell of the level.
    at : index of the reserved cell among those of its level.
    """

    owner: str
    chain: int
    level: int
    pinned: str = ""
    at: int = -1


@dataclass(frozen=True, eq=False)
class Nodes:
    """Ranges of places for the workers of a request, each on one node."""

    first: Ints
    last: Ints


@dataclass(frozen=True, eq=False)
class Layout:
    """A cluster as cells, and what of it is guaranteed to whom.

    The places of all devices are numbered through the chains, and the virtual places of guaranteed devices through the
    virtual cells.

    Attributes
    ----------
    cluster : the cluster.
    chains : with all its devices; in this order they are tried.
    virtual_clusters : names; one may have no cells, and run opportunistic jobs only.
    virtual_cells : of all of them.
    node_names : of the nodes of the cluster, as errors and reports call them.
    """

    cluster: Cluster
    chains: tuple[Chain, ...]
    virtual_clusters: tuple[str, ...]
    virtual_cells: tuple[VirtualCell, ...]
    node_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, (chain, free) in enumerate(zip(self.chains, self.free, strict=True)):
            mine = [v for v in self.virtual_cells if v.chain == number and not v.pinned]
            counts = Counter(v.level for v in mine)
            missing = shortage(chain, free, [counts[level] for level in range(len(chain.sizes))])
            if missing is not None:
                level, left = missing
                raise FleetError(
                    f"virtual clusters have {counts[level]} cells of type {chain.names[level]}; beside pinned and larger "
                    f"ones {chain.names[-1]} has room for {left}. Give them fewer, or add physical cells"
                )

    @classmethod
    def of_cluster(cls, cluster: Cluster, quotas: Quotas = ()) -> Layout:
        """Nodes and what halving makes of them; without quotas all nodes are one virtual cluster's, named "".

        Raises
        ------
        FleetError
            If a quota names a size that no cell has, or there are too few cells.
        """
        nodes: dict[tuple[str, int], list[int]] = {}
        for number, node in enumerate(cluster.nodes):
            if node.num_devices:
                nodes.setdefault((node.device_type, node.num_devices), []).append(number)
        chains = []
        for (kind, size), members in nodes.items():
            sizes = [size]
            while sizes[0] % 2 == 0:
                sizes.insert(0, sizes[0] // 2)
            sizes = sizes if sizes[0] == 1 else [1, *sizes]
            names = (kind, *(f"{kind}-{each}" for each in sizes[1:]))
            first = cluster.first_device.tolist()
            devices = tuple(d for node in members for d in range(first[node], first[node + 1]))
            chains.append(Chain(names, tuple(sizes), len(sizes) - 1, devices))
        cells = [cell for quota in quotas for cell in _cells_of(quota, chains)]
        if not quotas:
            cells = [
                VirtualCell("", c, chain.top) for c, chain in enumerate(chains) for _ in chain.all_free[-1]
            ]
        owners = tuple(dict.fromkeys(name for name, _, _ in quotas)) or ("",)
        return cls(cluster, tuple(chains), owners, tuple(cells))

    @cached_property
    def first_place(self) -> tuple[int, ...]:
        """First place of every chain, and the number of places."""
        return _starts([len(chain.devices) for chain in self.chains])

    @cached_property
    def first_virtual(self) -> tuple[int, ...]:
        """First virtual place of every virtual cell, and their number."""
        return _starts([self.chains[v.chain].sizes[v.level] for v in self.virtual_cells])

    @cached_property
    def owner_of(self) -> Ints:
        """Virtual cell of every virtual place."""
        return np.repeat(np.arange(len(self.virtual_cells)), np.diff(self.first_virtual))

    @cached_property
    def virtual_node(self) -> Ints:
        """For each virtual place, the first place of its node, or of its cell if the cell is smaller than a node."""
        sizes = [
            min(self.chains[v.chain].node_size, self.chains[v.chain].sizes[v.level])
            for v in self.virtual_cells
        ]
        size, first = (np.array(each, np.int64)[self.owner_of] for each in (sizes, self.first_virtual[:-1]))
        places = np.arange(self.first_virtual[-1])
        nodes: Ints = places - (places - first) % size
        return nodes

    @cached_property
    def device_at(self) -> Ints:
        """Device of every place."""
        return np.array([d for chain in self.chains for d in chain.devices], np.int64)

    @cached_property
    def free(self) -> tuple[Free, ...]:
        """Cells that virtual clusters can be given, by chain: all but pinned cells."""
        free = [chain.all_free for chain in self.chains]
        for cell in self.virtual_cells:
            if cell.pinned:
                left = take(self.chains[cell.chain], free[cell.chain], Cell(cell.level, cell.at))
                if left is None:
                    raise FleetError(
                        f"pinned cell {cell.pinned!r} of virtual cluster {cell.owner!r} overlaps another pinned cell; "
                        "give each pinned cell to one virtual cluster, once"
                    )
                free[cell.chain] = left
        return tuple(free)

    def guaranteed_nodes(self, owner: str, pinned: str) -> dict[int, Nodes]:
        """Return by chain the nodes in the cells of a virtual cluster, in virtual places; whole nodes first."""
        return self._guaranteed.get((owner, pinned), {})

    @cached_property
    def _guaranteed(self) -> dict[tuple[str, str], dict[int, Nodes]]:
        ranges: dict[tuple[str, str], dict[int, list[range]]] = {}
        # Large cells are divided into nodes, parts of a node come after them.
        order = sorted(range(len(self.virtual_cells)), key=lambda i: self._below_node(self.virtual_cells[i]))
        for i in order:
            cell = self.virtual_cells[i]
            chain = self.chains[cell.chain]
            size = min(chain.node_size, chain.sizes[cell.level])
            found = ranges.setdefault((cell.owner, cell.pinned), {}).setdefault(cell.chain, [])
            found += [
                range(at, at + size) for at in range(self.first_virtual[i], self.first_virtual[i + 1], size)
            ]
        return {key: {c: _nodes(by_chain[c]) for c in sorted(by_chain)} for key, by_chain in ranges.items()}

    def _below_node(self, cell: VirtualCell) -> int:
        return max(0, self.chains[cell.chain].node_level - cell.level)

    @cached_property
    def all_nodes(self) -> dict[int, Nodes]:
        """Return by chain all its nodes, in places."""
        found = {}
        for c, chain in enumerate(self.chains):
            starts = range(self.first_place[c], self.first_place[c + 1], chain.node_size)
            found[c] = _nodes([range(at, at + chain.node_size) for at in starts])
        return found


def _cells_of(quota: tuple[str, int, int], chains: Sequence[Chain]) -> list[VirtualCell]:
    owner, size, count = quota
    for c, chain in enumerate(chains):
        if size in chain.sizes:
            return [VirtualCell(owner, c, chain.sizes.index(size))] * count
    known = sorted({each for chain in chains for each in chain.sizes})
    raise FleetError(
        f"virtual cluster {owner!r} has cells of {size} devices; there are cells of {', '.join(map(str, known))}"
    )


def _starts(sizes: Sequence[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(np.array(sizes, np.int64)).tolist())


def _nodes(ranges: Sequence[range]) -> Nodes:
    return Nodes(np.array([r.start for r in ranges], np.int64), np.array([r.stop for r in ranges], np.int64))

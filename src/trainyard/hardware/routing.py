"""Routes of many pairs of ranks at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.hardware.fabric import Fabric
from trainyard.hardware.topology import Link, NodeTopology

__all__ = ["RouteTable"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RouteTable:
    """Routes from structure: one small table for each kind of node, shifted to where the node's links start.

    Parameters
    ----------
    no_link
        Index that pads routes; its latency is zero and its bandwidth infinite.
    latency_s, bandwidth_bytes_per_s
        Of every link and of `no_link`, shape ``(num_links + 1,)``.
    node_of, local_of
        Node of each rank and place in it, shape ``(num_devices,)``.
    """

    no_link: int
    latency_s: Floats
    bandwidth_bytes_per_s: Floats
    node_of: Ints
    local_of: Ints
    _kind_of: Ints  # by node
    _offset_of: Ints  # first link of each node
    _inside: Ints  # (kind, place, place, hop), -1 pads
    _egress: Ints  # (kind, place, hop)
    _ingress: Ints  # (kind, place, hop)
    _fabric: Fabric
    _fabric_offset: int

    @classmethod
    def of(cls, topologies: Sequence[NodeTopology], fabric: Fabric, links: Sequence[Link]) -> RouteTable:
        """Tabulate.

        Parameters
        ----------
        topologies
            Of each node.
        fabric
            What joins them.
        links
            All links, nodes first.

        Returns
        -------
        RouteTable
            The routes.
        """
        kinds = list(dict.fromkeys(topologies))
        index = {topology: i for i, topology in enumerate(kinds)}
        sizes = np.array([topology.num_devices for topology in topologies], dtype=np.int64)
        counts = np.array([len(topology.links) for topology in topologies], dtype=np.int64)
        tables = [_tabulate(topology, len(topologies) > 1) for topology in kinds]
        return cls(
            no_link=len(links),
            latency_s=np.array([link.latency_s for link in links] + [0.0]),
            bandwidth_bytes_per_s=np.array([link.bandwidth_bytes_per_s for link in links] + [np.inf]),
            node_of=np.repeat(np.arange(len(sizes)), sizes),
            local_of=np.concatenate([np.arange(size) for size in sizes]),
            _kind_of=np.array([index[topology] for topology in topologies], dtype=np.int64),
            _offset_of=np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64),
            _inside=_stack([table[0] for table in tables]),
            _egress=_stack([table[1] for table in tables]),
            _ingress=_stack([table[2] for table in tables]),
            _fabric=fabric,
            _fabric_offset=int(counts.sum()),
        )

    def of_pairs(self, sources: Ints, targets: Ints) -> Ints:
        """Routes of many pairs.

        Parameters
        ----------
        sources, targets
            Ranks, shape ``(num_pairs,)``.

        Returns
        -------
        ndarray
            Links of each, shape ``(num_pairs, longest)``, padded with `no_link`.
        """
        source_node, target_node = self.node_of[sources], self.node_of[targets]
        source_place, target_place = self.local_of[sources], self.local_of[targets]
        same = source_node == target_node
        source_kind = self._kind_of[source_node]
        if same.all():
            inside = self._inside[source_kind, source_place, target_place]
            return self._shift(inside, self._offset_of[source_node])
        across = self._across(source_node, target_node)
        between = np.concatenate([self.out_of(sources), across, self.into(targets)], axis=1)
        if not same.any():
            return between
        inside = self._shift(
            self._inside[source_kind, source_place, target_place], self._offset_of[source_node]
        )
        width = max(inside.shape[1], between.shape[1])
        return np.where(same[:, None], self._pad(inside, width), self._pad(between, width))

    def out_of(self, ranks: Ints) -> Ints:
        """Links from each rank out of its node, shape ``(num_ranks, longest)``, padded with `no_link`."""
        nodes = self.node_of[ranks]
        return self._shift(self._egress[self._kind_of[nodes], self.local_of[ranks]], self._offset_of[nodes])

    def into(self, ranks: Ints) -> Ints:
        """Links from outside its node to each rank, shape ``(num_ranks, longest)``, padded with `no_link`."""
        nodes = self.node_of[ranks]
        return self._shift(self._ingress[self._kind_of[nodes], self.local_of[ranks]], self._offset_of[nodes])

    def _shift(self, rows: Ints, offsets: Ints) -> Ints:
        return np.where(rows < 0, self.no_link, rows + offsets[:, None])

    def _pad(self, rows: Ints, width: int) -> Ints:
        missing = width - rows.shape[1]
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=self.no_link) if missing else rows

    def _across(self, source_node: Ints, target_node: Ints) -> Ints:
        """Fabric links of many pairs of nodes; each distinct pair is looked up once."""
        if not self._fabric.edges:
            return np.empty((len(source_node), 0), dtype=np.int64)
        keys = source_node * len(self._kind_of) + target_node
        distinct, where = np.unique(keys, return_inverse=True)
        routes = [self._fabric.route(*divmod(int(key), len(self._kind_of))) for key in distinct]
        rows = np.full((len(routes), max(map(len, routes), default=0)), self.no_link, dtype=np.int64)
        for row, route in zip(rows, routes, strict=True):
            row[: len(route)] = np.array(route, dtype=np.int64) + self._fabric_offset
        return rows[where]


def _tabulate(topology: NodeTopology, needs_network: bool) -> tuple[Ints, Ints, Ints]:
    """Routes inside one kind of node, out of it, and into it."""
    places = range(topology.num_devices)
    inside = _rows([topology.local_route(i, j) for i in places for j in places])
    shape = (topology.num_devices, topology.num_devices, inside.shape[1])
    out = _rows([topology.egress(i) if needs_network else () for i in places])
    into = _rows([topology.ingress(i) if needs_network else () for i in places])
    return inside.reshape(shape), out, into


def _rows(routes: Sequence[tuple[int, ...]]) -> Ints:
    rows = np.full((len(routes), max(map(len, routes), default=0)), -1, dtype=np.int64)
    for row, route in zip(rows, routes, strict=True):
        row[: len(route)] = route
    return rows


def _stack(tables: Sequence[Ints]) -> Ints:
    """Tables of different kinds of nodes in one array, padded with -1."""
    shape = tuple(np.max([table.shape for table in tables], axis=0))
    stacked = np.full((len(tables), *shape), -1, dtype=np.int64)
    for layer, table in zip(stacked, tables, strict=True):
        layer[tuple(slice(0, size) for size in table.shape)] = table
    return stacked

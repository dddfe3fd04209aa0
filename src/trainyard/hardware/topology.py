"""The inside of one node: its devices, switches and NICs as a small directed graph."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainyard.hardware.errors import HardwareError
from trainyard.reading import Section, raised_as, shown
from trainyard.reading.limits import MOST_DEVICES

__all__ = ["MAX_NODE_DEVICES", "NETWORK", "Edge", "Link", "NodeTopology", "edges_from"]

NETWORK = "network"
"""Vertex of every node graph that stands for everything outside the node."""

MAX_NODE_DEVICES = 256
"""Routes inside a node are tabulated; a larger machine is several nodes."""

_ROUTE_PROBE_BYTES = 2**20  # routes are the fastest ones for a message of this size


@dataclass(frozen=True)
class Link:
    """One direction of a wire, shared by everything that crosses it.

    Parameters
    ----------
    name
        Name, unique in its node.
    bandwidth_bytes_per_s
        Reached bandwidth, after protocol overhead.
    latency_s
        Seconds from the first byte sent to the first byte received.
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s <= 0 or self.latency_s < 0:
            raise HardwareError(
                f"link {self.name!r} has bandwidth {self.bandwidth_bytes_per_s} B/s and latency "
                f"{self.latency_s} s; "
                "allowed: bandwidth more than zero, latency zero or more"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Link:
        """Read the plain form; numbers may be strings, as YAML reads ``1e9``."""
        given = Section.of(values, "a description of hardware")
        given.refuse_unknown(("name", "bandwidth_bytes_per_s", "latency_s"))
        return cls(
            given.text("name"), given.positive("bandwidth_bytes_per_s"), given.number("latency_s", 0.0)
        )


@dataclass(frozen=True)
class Edge:
    """A directed edge of a node graph that crosses one link; several edges may cross the same link.

    Parameters
    ----------
    source, target
        Vertices: ``"gpu0"``, ``"gpu1"``, ... for the devices, `NETWORK` for the outside, any other name for a
        switch.
    link
        Index into the links, or -1 for a step that nothing bounds.
    """

    source: str
    target: str
    link: int


def edges_from(given: Section) -> tuple[Edge, ...]:
    """Read the plain form of a graph's edges: under ``edges``, lists of source, target and link."""
    edges = []
    for edge in given.items_of("edges"):
        if not (
            isinstance(edge, (list, tuple))
            and len(edge) == 3
            and isinstance(edge[0], str)
            and isinstance(edge[1], str)
            and type(edge[2]) is int
        ):
            raise given.error(
                "edges", f"a list of [source, target, index of a link], and one is {shown(edge)}"
            )
        edges.append(Edge(*edge))
    return tuple(edges)


@dataclass(frozen=True)
class NodeTopology:
    """Devices, switches and NICs of one node.

    Parameters
    ----------
    name
        What it is, e.g. ``"NVSwitch"``.
    num_devices
        Number of devices; their vertices are ``gpu0`` ... ``gpu{n-1}``.
    links
        Links inside the node and of its NICs.
    edges
        The graph over them.

    Raises
    ------
    HardwareError
        If there are no devices or too many, an edge names a link that is not there, or a device cannot be
        reached.
    """

    name: str
    num_devices: int
    links: tuple[Link, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.num_devices <= MAX_NODE_DEVICES:
            raise HardwareError(
                f"node {self.name!r} has {self.num_devices} devices; allowed: 1 to {MAX_NODE_DEVICES}; "
                "write a larger "
                "machine as several nodes, e.g. 4x64xTPUv3"
            )
        for edge in self.edges:
            if not -1 <= edge.link < len(self.links):
                raise HardwareError(
                    f"edge {edge.source}->{edge.target} of node {self.name!r} crosses link {edge.link}; "
                    f"allowed: 0 to {len(self.links) - 1}, or -1 for none"
                )

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.num_devices, self.links, self.edges))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Hashes of strings differ between processes, so the cached one must not travel.
        return (type(self), (self.name, self.num_devices, self.links, self.edges))

    @cached_property
    def _neighbors(self) -> dict[str, list[tuple[str, int, float]]]:
        neighbors: dict[str, list[tuple[str, int, float]]] = {}
        for edge in self.edges:
            seconds = 0.0
            if edge.link >= 0:
                link = self.links[edge.link]
                seconds = link.latency_s + _ROUTE_PROBE_BYTES / link.bandwidth_bytes_per_s
            neighbors.setdefault(edge.source, []).append((edge.target, edge.link, seconds))
        return neighbors

    def _routes_from(self, source: str) -> dict[str, tuple[int, ...]]:
        """Fastest routes from a vertex, as link indices; never through the network and back."""
        best: dict[str, tuple[float, tuple[int, ...]]] = {source: (0.0, ())}
        queue: list[tuple[float, str]] = [(0.0, source)]
        while queue:
            seconds, vertex = heapq.heappop(queue)
            if seconds > best[vertex][0] or (vertex == NETWORK and source != NETWORK):
                continue
            for target, link, link_seconds in self._neighbors.get(vertex, ()):
                total = seconds + link_seconds
                if target not in best or total < best[target][0]:
                    best[target] = (total, (*best[vertex][1], link) if link >= 0 else best[vertex][1])
                    heapq.heappush(queue, (total, target))
        return {vertex: route for vertex, (_, route) in best.items()}

    @cached_property
    def _routes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        vertices = [f"gpu{i}" for i in range(self.num_devices)] + [NETWORK]
        return {vertex: self._routes_from(vertex) for vertex in vertices}

    def _route(self, source: str, target: str) -> tuple[int, ...]:
        route = self._routes[source].get(target)
        if route is None:
            raise HardwareError(
                f"node {self.name!r} has no path from {source} to {target}; add edges so that every device "
                "reaches "
                "every other, and the network where there are several nodes"
            )
        return route

    def local_route(self, source: int, target: int) -> tuple[int, ...]:
        """Links from one device of the node to another.

        Parameters
        ----------
        source, target
            Positions of the devices in the node.

        Returns
        -------
        tuple of int
            Indices into `links`; empty if they are the same device.
        """
        return self._route(f"gpu{source}", f"gpu{target}")

    def egress(self, source: int) -> tuple[int, ...]:
        """Links from a device out of the node, as indices into `links`."""
        return self._route(f"gpu{source}", NETWORK)

    def ingress(self, target: int) -> tuple[int, ...]:
        """Links from outside the node to a device, as indices into `links`."""
        return self._route(NETWORK, f"gpu{target}")

    @cached_property
    def has_network(self) -> bool:
        """Whether every device can leave the node and be reached from outside."""
        gpus = [f"gpu{i}" for i in range(self.num_devices)]
        return all(NETWORK in self._routes[gpu] and gpu in self._routes[NETWORK] for gpu in gpus)

    @cached_property
    def direct_bandwidth(self) -> dict[tuple[int, int], float]:
        """Bandwidth of the links that join two devices with nothing between, by (source, target), in bytes "
        "per second."""
        index = {f"gpu{i}": i for i in range(self.num_devices)}
        return {
            (index[edge.source], index[edge.target]): self.links[edge.link].bandwidth_bytes_per_s
            for edge in self.edges
            if edge.source in index and edge.target in index and edge.link >= 0
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for YAML and JSON; `from_dict` reads it back."""
        return {
            "name": self.name,
            "num_devices": self.num_devices,
            "links": [dict(vars(link)) for link in self.links],
            "edges": [[edge.source, edge.target, edge.link] for edge in self.edges],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NodeTopology:
        """Read the plain form.

        Raises
        ------
        HardwareError
            If a field is missing or unknown.
        """
        with raised_as(HardwareError):
            given = Section.of(values, "a description of hardware")
            given.what = f"topology {shown(given.get('name'))}"
            given.refuse_unknown(("name", "num_devices", "links", "edges"))
            return cls(
                name=given.text("name"),
                num_devices=given.whole("num_devices", 1, MOST_DEVICES),
                links=tuple(Link.from_dict(link) for link in given.sections("links")),
                edges=edges_from(given),
            )

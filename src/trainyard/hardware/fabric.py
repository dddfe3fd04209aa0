"""What joins the nodes of a cluster: a non-blocking switch, or a graph of switches and wires."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from trainyard.hardware.errors import HardwareError
from trainyard.hardware.topology import Edge, Link

__all__ = ["NON_BLOCKING", "Fabric"]


@dataclass(frozen=True)
class Fabric:
    """The network between nodes.

    Parameters
    ----------
    name
        What it is.
    links
        Its links; none for a non-blocking switch.
    edges
        Graph over ``"node0"``, ``"node1"``, ... and switches of any other name; each crosses a link, by
        index. Fewest hops win; the first edge given wins among equals.

    Raises
    ------
    HardwareError
        If an edge names a link that is not there.
    """

    name: str = "non-blocking"
    links: tuple[Link, ...] = ()
    edges: tuple[Edge, ...] = ()
    _routes: dict[str, dict[str, tuple[int, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for edge in self.edges:
            if not 0 <= edge.link < len(self.links):
                raise HardwareError(
                    f"edge {edge.source}->{edge.target} of fabric {self.name!r} crosses link {edge.link}; "
                    f"allowed: 0 to {len(self.links) - 1}"
                )

    @cached_property
    def _neighbors(self) -> dict[str, list[tuple[str, int]]]:
        neighbors: dict[str, list[tuple[str, int]]] = {}
        for edge in self.edges:
            neighbors.setdefault(edge.source, []).append((edge.target, edge.link))
        return neighbors

    def route(self, source_node: int, target_node: int) -> tuple[int, ...]:
        """Links between two nodes.

        Parameters
        ----------
        source_node, target_node
            Indices of the nodes.

        Returns
        -------
        tuple of int
            Indices into `links`; empty for a non-blocking switch.

        Raises
        ------
        HardwareError
            If there is no path.
        """
        if not self.edges or source_node == target_node:
            return ()
        source, target = f"node{source_node}", f"node{target_node}"
        if source not in self._routes:
            self._routes[source] = self._search(source)
        route = self._routes[source].get(target)
        if route is None:
            raise HardwareError(
                f"fabric {self.name!r} has no path from {source} to {target}; add edges between them"
            )
        return route

    def _search(self, source: str) -> dict[str, tuple[int, ...]]:
        """Breadth-first routes from one node."""
        routes: dict[str, tuple[int, ...]] = {source: ()}
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for target, link in self._neighbors.get(vertex, ()):
                if target not in routes:
                    routes[target] = (*routes[vertex], link)
                    queue.append(target)
        return routes

    def check(self, num_nodes: int) -> None:
        """Raise `HardwareError` unless every one of `num_nodes` nodes reaches every other."""
        if self.edges:
            for node in range(num_nodes):
                self.route(0, node)
                self.route(node, 0)


NON_BLOCKING = Fabric()
"""A switch whose only limits are the NICs."""

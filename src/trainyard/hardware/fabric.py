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
            raise self._no_path(source, target)
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
        if not self.edges:
            return
        forward: dict[str, list[str]] = {}
        backward: dict[str, list[str]] = {}
        for edge in self.edges:
            forward.setdefault(edge.source, []).append(edge.target)
            backward.setdefault(edge.target, []).append(edge.source)
        reached, reaching = _connected(forward), _connected(backward)
        for node in map("node{}".format, range(num_nodes)):
            if node not in reached:
                raise self._no_path("node0", node)
            if node not in reaching:
                raise self._no_path(node, "node0")

    def _no_path(self, source: str, target: str) -> HardwareError:
        return HardwareError(
            f"fabric {self.name!r} has no path from {source} to {target}; add edges between them"
        )


def _connected(neighbors: dict[str, list[str]]) -> set[str]:
    """What is reached from the first node."""
    found = {"node0"}
    queue = ["node0"]
    while queue:
        for vertex in neighbors.get(queue.pop(), ()):
            if vertex not in found:
                found.add(vertex)
                queue.append(vertex)
    return found


NON_BLOCKING = Fabric()
"""A switch whose only limits are the NICs."""

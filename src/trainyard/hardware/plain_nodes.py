"""Plain forms of nodes and of the fabric between them, as files of clusters have them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from trainyard.hardware.fabric import Fabric
from trainyard.hardware.node import Node

__all__ = ["plain_fabric", "plain_nodes"]


def plain_nodes(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the lists of devices, topologies and nodes; nodes have indices into the first two."""
    devices = list(dict.fromkeys(device for node in nodes for device in node.devices))
    topologies = list(dict.fromkeys(node.topology for node in nodes if node.topology is not None))
    device_index = {device: i for i, device in enumerate(devices)}
    topology_index = {topology: i for i, topology in enumerate(topologies)}
    plain = []
    for node, same in groupby(nodes):
        of_node: dict[str, Any] = {} if node.topology is None else {"topology": topology_index[node.topology]}
        of_node |= {"devices": [device_index[d] for d in node.devices], "count": len(list(same))}
        host = {"cpus": node.cpus, "memory_bytes": node.memory_bytes, "rack": node.rack}
        plain.append(of_node | {name: value for name, value in host.items() if value})
    return {
        "devices": [device.to_dict() for device in devices],
        "topologies": [topology.to_dict() for topology in topologies],
        "nodes": plain,
    }


def plain_fabric(fabric: Fabric) -> dict[str, Any]:
    """Return the name, links and edges of a fabric."""
    return {
        "name": fabric.name,
        "links": [dict(vars(link)) for link in fabric.links],
        "edges": [[edge.source, edge.target, edge.link] for edge in fabric.edges],
    }

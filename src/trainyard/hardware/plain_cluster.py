"""The plain form of a cluster, in numbers, texts, lists and mappings, as `cluster_from_dict` reads it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from trainyard.hardware.fabric import NON_BLOCKING
from trainyard.hardware.node_changes import nodes_text

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster

__all__ = ["plain_form"]


def plain_form(cluster: Cluster) -> dict[str, Any]:
    """Return the plain form of a cluster; settings that it does not have are left out."""
    devices = list(dict.fromkeys(device for node in cluster.nodes for device in node.devices))
    topologies = list(dict.fromkeys(node.topology for node in cluster.nodes if node.topology is not None))
    device_index = {device: i for i, device in enumerate(devices)}
    topology_index = {topology: i for i, topology in enumerate(topologies)}
    nodes = []
    for node, same in groupby(cluster.nodes):
        of_node: dict[str, Any] = {} if node.topology is None else {"topology": topology_index[node.topology]}
        of_node |= {"devices": [device_index[d] for d in node.devices], "count": len(list(same))}
        host = {"cpus": node.cpus, "memory_bytes": node.memory_bytes, "rack": node.rack}
        nodes.append(of_node | {name: value for name, value in host.items() if value})
    plain: dict[str, Any] = {
        "name": cluster.name,
        "devices": [device.to_dict() for device in devices],
        "topologies": [topology.to_dict() for topology in topologies],
        "nodes": nodes,
    }
    if cluster.fabric != NON_BLOCKING:
        plain["fabric"] = {
            "name": cluster.fabric.name,
            "links": [dict(vars(link)) for link in cluster.fabric.links],
            "edges": [[edge.source, edge.target, edge.link] for edge in cluster.fabric.edges],
        }
    if cluster.profile is not None:
        plain["profile"] = cluster.profile.to_dict()
    return plain | _settings(cluster)


def _settings(cluster: Cluster) -> dict[str, Any]:
    """Return what both forms of a file may say beside the nodes."""
    settings: dict[str, Any] = {
        "partitions": {name: nodes_text(nodes) for name, nodes in cluster.partitions},
        "changes": [change.to_dict() for change in cluster.changes],
        "reservations": [reservation.to_dict() for reservation in cluster.reservations],
        "qos": dict(cluster.qos),
        "prices": dict(cluster.prices),
    }
    return {name: setting for name, setting in settings.items() if setting}

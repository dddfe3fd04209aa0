"""Clusters as YAML.

The full form names every device, node and link once::

    name: two old machines
    devices: [{name: T4, memory_bytes: ..., ...}]     # or the name of a preset: [T4]
    topologies: [{name: ..., num_devices: 2, links: [...], edges: [[gpu0, switch, 0], ...]}]
    nodes: [{topology: 0, devices: [0, 0], count: 2}]  # indices into the two lists above
    fabric: {name: ..., links: [...], edges: [[node0, spine, 0], ...]}   # optional

The short form is the text form under one key: ``cluster: 16x8xA100-80G``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import yaml

from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING, Fabric
from trainyard.hardware.presets import device_named
from trainyard.hardware.profile import MachineProfile
from trainyard.hardware.topology import Edge, Link, NodeTopology

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster

__all__ = ["cluster_from_dict", "cluster_from_yaml", "cluster_to_dict", "cluster_to_yaml"]


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """Plain form of a cluster.

    Parameters
    ----------
    cluster
        The cluster.

    Returns
    -------
    dict
        Numbers, strings, lists and mappings; `cluster_from_dict` reads it back.
    """
    devices = list(dict.fromkeys(cluster.devices))
    topologies = list(dict.fromkeys(node.topology for node in cluster.nodes))
    device_index = {device: i for i, device in enumerate(devices)}
    topology_index = {topology: i for i, topology in enumerate(topologies)}
    nodes = []
    for node, same in groupby(cluster.nodes):
        places = [device_index[device] for device in node.devices]
        nodes.append({"topology": topology_index[node.topology], "devices": places, "count": len(list(same))})
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
    return plain


def cluster_from_dict(plain: Mapping[str, Any]) -> Cluster:
    """Read the plain form of a cluster.

    Parameters
    ----------
    plain
        What `cluster_to_dict` wrote, or a mapping with the single key ``cluster``.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    HardwareError
        If it cannot be read.
    """
    from trainyard.hardware.cluster import Cluster, Node
    from trainyard.hardware.parse import parse_cluster

    if not isinstance(plain, Mapping):
        raise HardwareError(
            f"a cluster file holds {type(plain).__name__}; allowed: a mapping with nodes or cluster"
        )
    if set(plain) == {"cluster"}:
        return parse_cluster(str(plain["cluster"]))
    try:
        devices = [
            device_named(entry) if isinstance(entry, str) else DeviceSpec.from_dict(entry)
            for entry in plain["devices"]
        ]
        topologies = [NodeTopology.from_dict(entry) for entry in plain["topologies"]]
        nodes: list[Node] = []
        for entry in plain["nodes"]:
            places = tuple(devices[index] for index in entry["devices"])
            nodes += [Node(topologies[entry["topology"]], places)] * int(entry.get("count", 1))
        fabric = NON_BLOCKING
        if "fabric" in plain:
            fabric = Fabric(
                str(plain["fabric"]["name"]),
                tuple(Link.from_dict(link) for link in plain["fabric"]["links"]),
                tuple(Edge(str(s), str(t), int(link)) for s, t, link in plain["fabric"]["edges"]),
            )
    except HardwareError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise HardwareError(
            f"a cluster file cannot be read ({error!r}); give devices, topologies and nodes as "
            "`Cluster.to_yaml` "
            "writes them, or `cluster: 16x8xA100-80G`"
        ) from error
    profile = MachineProfile.from_dict(plain["profile"]) if "profile" in plain else None
    return Cluster(str(plain.get("name", "cluster")), tuple(nodes), fabric, profile)


def cluster_to_yaml(cluster: Cluster) -> str:
    """A cluster as YAML; see `Cluster.to_yaml`."""
    return yaml.safe_dump(cluster_to_dict(cluster), sort_keys=False, default_flow_style=None, width=120)


def cluster_from_yaml(text: str) -> Cluster:
    """Read a cluster from YAML; see `Cluster.from_yaml`."""
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise HardwareError(
            f"a cluster file is not YAML ({error}); see `Cluster.to_yaml` for the form"
        ) from error
    return cluster_from_dict(plain)

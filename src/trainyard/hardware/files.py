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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING, Fabric
from trainyard.hardware.presets import device_named
from trainyard.hardware.profile import MachineProfile
from trainyard.hardware.topology import MAX_DEVICES, Link, NodeTopology, edges_from
from trainyard.reading import Section, parse_yaml, raised_as, shown

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster, Node

__all__ = ["cluster_from_dict", "cluster_from_yaml", "cluster_to_dict", "cluster_to_yaml"]

_FIELDS = ("name", "devices", "topologies", "nodes", "fabric", "profile")
_MOST_ROUTING = 4_000_000  # routes from every device of a node over all its edges: some seconds


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


def cluster_from_dict(plain: Mapping[str, Any], within: tuple[Path, ...] = ()) -> Cluster:
    """Read the plain form of a cluster.

    Parameters
    ----------
    plain
        What `cluster_to_dict` wrote, or a mapping with the single key ``cluster``.
    within
        Files that are being read, each named by the one before; none of them can be named again.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    HardwareError
        If it cannot be read.
    """
    from trainyard.hardware.cluster import Cluster
    from trainyard.hardware.parse import cluster_within

    with raised_as(HardwareError):
        given = Section.of(plain, "a cluster")
        if "cluster" in given:
            given.refuse_unknown(("cluster",))
            return cluster_within(given.text("cluster"), within)
        given.refuse_unknown(_FIELDS)
        nodes = _nodes(given)
        fabric = _fabric(given.section("fabric")) if "fabric" in given else NON_BLOCKING
        profile = MachineProfile.from_dict(given.section("profile")) if "profile" in given else None
        return Cluster(given.text("name", "cluster"), nodes, fabric, profile)


def _nodes(given: Section) -> tuple[Node, ...]:
    """The nodes; how many there are is known before they are made."""
    from trainyard.hardware.cluster import Node

    devices = [_device(entry, given, i) for i, entry in enumerate(given.items_of("devices"))]
    topologies = [NodeTopology.from_dict(entry) for entry in given.sections("topologies")]
    for key, known in (("devices", devices), ("topologies", topologies)):
        if not known:
            raise given.error(key, "a list with at least one")
    work = sum((topology.num_devices + 1) * len(topology.edges) for topology in topologies)
    if work > _MOST_ROUTING:
        raise given.error(
            "topologies", f"fewer edges: devices times edges is {work:,}, at most {_MOST_ROUTING:,}"
        )
    nodes: list[Node] = []
    num_devices = 0
    for entry in given.sections("nodes"):
        entry.refuse_unknown(("topology", "devices", "count"))
        places = Section(
            entry.source, entry.line, {str(i): x for i, x in enumerate(entry.items_of("devices"))}
        )
        places.what = "devices of a node"
        here = tuple(devices[places.whole(i, 0, len(devices) - 1)] for i in places)
        topology = topologies[entry.whole("topology", 0, len(topologies) - 1)]
        count = entry.whole("count", 1, MAX_DEVICES, 1)
        num_devices += count * max(1, len(here))
        if num_devices > MAX_DEVICES:
            raise entry.error("count", f"a number with which a cluster has at most {MAX_DEVICES:,} devices")
        nodes += [Node(topology, here)] * count
    return tuple(nodes)


def _device(entry: Any, given: Section, index: int) -> DeviceSpec:
    """A device by the name of a preset, or by its fields."""
    if isinstance(entry, str):
        return device_named(entry)
    if not isinstance(entry, Mapping):
        raise given.error("devices", "a list of mappings, or of names of presets")
    return DeviceSpec.from_dict(Section.of(entry, f"{given.place('devices')}[{index}]"))


def _fabric(given: Section) -> Fabric:
    given.refuse_unknown(("name", "links", "edges"))
    links = tuple(Link.from_dict(link) for link in given.sections("links"))
    return Fabric(given.text("name"), links, edges_from(given))


def cluster_to_yaml(cluster: Cluster) -> str:
    """A cluster as YAML; see `Cluster.to_yaml`."""
    return yaml.safe_dump(cluster_to_dict(cluster), sort_keys=False, default_flow_style=None, width=120)


def cluster_from_yaml(text: str, source: str | Path = "a cluster", within: tuple[Path, ...] = ()) -> Cluster:
    """Read a cluster from YAML; see `Cluster.from_yaml`.

    Parameters
    ----------
    text
        The YAML.
    source
        What errors call it.
    within
        As in `cluster_from_dict`.
    """
    with raised_as(HardwareError):
        # Which device a number is of is said where its fields are read.
        plain = parse_yaml(text, source, finite=False)
        if not isinstance(plain, Section):
            raise HardwareError(
                f"{source} holds {shown(plain)}; allowed: a mapping with devices, topologies and nodes, or with "
                "`cluster: 16x8xA100-80G`"
            )
    try:
        return cluster_from_dict(plain, within)
    except HardwareError as error:
        if str(source) in str(error):
            raise
        raise HardwareError(f"{source}: {error}") from error

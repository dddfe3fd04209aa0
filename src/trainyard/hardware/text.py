"""The text form of clusters: ``16x8xA100-80G``, ``2x8xA100-80G+1x4xT4``, ``4x8xV100-32G@100Gb``."""

from __future__ import annotations

import re

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.interconnects import network_of_gbit
from trainyard.hardware.presets import DEVICES, device_named, node_topology
from trainyard.hardware.topology import MAX_DEVICES
from trainyard.reading import shown

__all__ = ["cluster_from_text"]

_PART = re.compile(
    r"(?:(?P<nodes>\d{1,18})x)?(?P<devices>\d{1,18})x(?P<name>[A-Za-z][\w-]*)"
    r"(?:@(?:(?P<nics>\d{1,3})x)?(?P<gbit>\d{1,6}(?:\.\d{1,6})?)Gb)?",
    re.ASCII,
)


def cluster_from_text(text: str) -> Cluster:
    """Read a cluster from kinds of nodes, joined by ``+``.

    Raises
    ------
    HardwareError
        If it cannot be read.
    """
    nodes: list[Node] = []
    num_devices = 0
    for part in text.split("+"):
        more = _nodes_of(part.strip(), text)
        nodes += more
        num_devices += len(more) * len(more[0].devices)
        if num_devices > MAX_DEVICES:
            raise HardwareError(
                f"cluster {shown(text)} has more than {MAX_DEVICES} devices, which is the most"
            )
    return Cluster(text, tuple(nodes))


def _nodes_of(part: str, given: str) -> list[Node]:
    """Nodes of one part between plus signs."""
    match = _PART.fullmatch(part)
    if match is None:
        raise HardwareError(
            f"cluster {shown(given)} cannot be read at {shown(part)}; allowed: NODESxDEVICESxNAME such as "
            "16x8xA100-80G, one "
            "node as 8xA100-80G, a network as 4x8xV100-32G@100Gb or @4x100Gb, kinds of nodes joined by +, "
            "local, "
            f"local:4, or a YAML file; known devices: {', '.join(DEVICES)}"
        )
    num_nodes, num_devices = int(match["nodes"] or 1), int(match["devices"])
    if not 1 <= min(num_nodes, num_devices) <= num_nodes * num_devices <= MAX_DEVICES:
        raise HardwareError(
            f"cluster {shown(given)} has {num_nodes} x {num_devices} devices at {shown(part)}; allowed: at least 1 x 1 "
            f"and at most {MAX_DEVICES} devices"
        )
    device = device_named(match["name"])
    network = network_of_gbit(float(match["gbit"])) if match["gbit"] else None
    num_nics = int(match["nics"]) if match["nics"] else None
    topology = node_topology(device.name, num_devices, network, num_nics)
    return [Node(topology, (device,) * num_devices)] * num_nodes

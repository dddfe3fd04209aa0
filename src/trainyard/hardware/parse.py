"""The text form of clusters: ``16x8xA100-80G``, ``2x8xA100-80G+1x4xT4``, ``4x8xV100-32G@100Gb``, "
"``local:4``."""

from __future__ import annotations

import re
from pathlib import Path

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.files import cluster_from_yaml
from trainyard.hardware.interconnects import network_of_gbit
from trainyard.hardware.presets import DEVICES, device_named, node_topology

__all__ = ["is_described_by_name", "parse_cluster"]

_PART = re.compile(
    r"(?:(?P<nodes>\d+)x)?(?P<devices>\d+)x(?P<name>[A-Za-z][\w-]*)"
    r"(?:@(?:(?P<nics>\d+)x)?(?P<gbit>\d+(?:\.\d+)?)Gb)?"
)
_LOCAL = re.compile(r"local(?::(?P<count>\d+))?")
_MAX_DEVICES = 2**17  # a million-device cluster is a typing error


def parse_cluster(text: str | Path) -> Cluster:
    """Read a cluster.

    Parameters
    ----------
    text
        - nodes x devices per node x device: ``16x8xA100-80G``; ``8xA100-80G`` is one node;
        - with a network: ``4x8xV100-32G@100Gb`` (one NIC a node), ``4x8xA100-80G@4x200Gb`` (four);
        - several kinds of nodes: ``2x8xA100-80G+1x4xT4``;
        - ``local`` (a process for each core of this machine) or ``local:4``;
        - the path of a YAML file.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    HardwareError
        If it is none of these; a `ValueError`.
    """
    given = str(text).strip()
    local = _LOCAL.fullmatch(given)
    if local:
        return _local(local["count"])
    if given.endswith((".yaml", ".yml")):
        path = Path(given)
        if not path.is_file():
            raise HardwareError(
                f"cluster file {given!r} does not exist; give the path of a YAML file, or a text form"
            )
        return cluster_from_yaml(path.read_text())
    nodes = [node for part in given.split("+") for node in _nodes_of(part.strip(), given)]
    return Cluster(given, tuple(nodes))


def is_described_by_name(cluster: Cluster) -> bool:
    """Whether a cluster's name, as a text form, means this cluster, and not one that was edited or put together.

    Nothing is measured for it: ``local:4`` means this machine as it was measured last.
    """
    from trainyard.hardware.local import remembered_cluster

    if _LOCAL.fullmatch(cluster.name):
        meant = remembered_cluster(cluster.num_devices)
    elif cluster.name.endswith((".yaml", ".yml")):
        return False
    else:
        try:
            meant = parse_cluster(cluster.name)
        except HardwareError:
            return False
    return meant is not None and meant.fingerprint() == cluster.fingerprint()


def _local(count: str | None) -> Cluster:
    from trainyard.hardware.local import local_cluster
    from trainyard.hardware.measure import machine_identity

    return local_cluster(int(count) if count else int(machine_identity()["num_cores"]))


def _nodes_of(part: str, given: str) -> list[Node]:
    """Nodes of one part between plus signs."""
    match = _PART.fullmatch(part)
    if match is None:
        raise HardwareError(
            f"cluster {given!r} cannot be read at {part!r}; allowed: NODESxDEVICESxNAME such as "
            "16x8xA100-80G, one "
            "node as 8xA100-80G, a network as 4x8xV100-32G@100Gb or @4x100Gb, kinds of nodes joined by +, "
            "local, "
            f"local:4, or a YAML file; known devices: {', '.join(DEVICES)}"
        )
    num_nodes, num_devices = int(match["nodes"] or 1), int(match["devices"])
    if not 1 <= min(num_nodes, num_devices) <= num_nodes * num_devices <= _MAX_DEVICES:
        raise HardwareError(
            f"cluster {given!r} has {num_nodes} x {num_devices} devices at {part!r}; allowed: at least 1 x "
            "1 and at "
            f"most {_MAX_DEVICES} devices"
        )
    device = device_named(match["name"])
    network = network_of_gbit(float(match["gbit"])) if match["gbit"] else None
    num_nics = int(match["nics"]) if match["nics"] else None
    topology = node_topology(device.name, num_devices, network, num_nics)
    return [Node(topology, (device,) * num_devices)] * num_nodes

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
from trainyard.hardware.topology import MAX_DEVICES
from trainyard.reading import raised_as, read_text, shown

__all__ = ["is_described_by_name", "parse_cluster"]

_PART = re.compile(
    r"(?:(?P<nodes>\d{1,18})x)?(?P<devices>\d{1,18})x(?P<name>[A-Za-z][\w-]*)"
    r"(?:@(?:(?P<nics>\d{1,3})x)?(?P<gbit>\d{1,6}(?:\.\d{1,6})?)Gb)?",
    re.ASCII,
)
_LOCAL = re.compile(r"local(?::(?P<count>\d{1,18}))?", re.ASCII)
_MAX_INCLUDED = 8


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
    return cluster_within(text, ())


def cluster_within(text: str | Path, within: tuple[Path, ...]) -> Cluster:
    """As `parse_cluster`, in a file that is being read.

    Parameters
    ----------
    within
        That file and those that named it, each named by the one before; none of them can be named again.
    """
    given = str(text).strip()
    local = _LOCAL.fullmatch(given)
    if local:
        return _local(local["count"])
    if given.endswith((".yaml", ".yml")):
        path = Path(given)
        if not path.is_file():
            raise HardwareError(
                f"cluster file {shown(given)} does not exist; give the path of a YAML file, or a text form"
            )
        return _file(path, within)
    nodes: list[Node] = []
    num_devices = 0
    for part in given.split("+"):
        more = _nodes_of(part.strip(), given)
        nodes += more
        num_devices += len(more) * len(more[0].devices)
        if num_devices > MAX_DEVICES:
            raise HardwareError(
                f"cluster {shown(given)} has more than {MAX_DEVICES} devices, which is the most"
            )
    return Cluster(given, tuple(nodes))


def _file(path: Path, within: tuple[Path, ...]) -> Cluster:
    """The cluster that a file describes, or names."""
    here = path.resolve()
    if here in within or len(within) == _MAX_INCLUDED:
        names = " -> ".join(each.name for each in (*within, here))
        what = "includes itself" if here in within else f"names more than {_MAX_INCLUDED} files in turn"
        raise HardwareError(
            f"cluster file {str(path)!r} {what} ({names}); under `cluster`, give a text form such as 16x8xA100-80G, or "
            "another file that describes one"
        )
    with raised_as(HardwareError):
        text = read_text(path)
    return cluster_from_yaml(text, path, (*within, here))


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

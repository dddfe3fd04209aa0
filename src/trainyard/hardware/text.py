"""The text form of clusters: nodes, devices per node and the name of the devices, and what more a node has.

``16x8xA100-80G``, ``2x8xA100-80G+1x4xT4``, ``4x8xV100-32G@100Gb``, ``16x4``, ``8x8xV100@96cpu,1440GiB,4/rack``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.interconnects import network_of_gbit
from trainyard.hardware.presets import DEVICES, UNNAMED_DEVICE, find_device, node_topology
from trainyard.hardware.topology import MAX_NODE_DEVICES, NodeTopology
from trainyard.reading import shown
from trainyard.reading.limits import MOST_DEVICES
from trainyard.reading.quantities import BYTES

__all__ = ["cluster_from_text"]

_PART = re.compile(
    r"(?:(?P<nodes>\d{1,18})x)?(?P<devices>\d{1,18})(?:x(?P<name>[A-Za-z][\w.-]{0,99}))?(?:@(?P<more>.*))?",
    re.ASCII,
)
_NUMBER = r"(?![0.]+[a-zA-Z])(\d{1,15}(?:\.\d{1,15})?)"  # above 0
# What may follow the @, with commas between: each at most once.
_MORE = {
    "network": re.compile(r"(?:(?P<nics>\d{1,3})x)?(?P<gbit>\d{1,6}(?:\.\d{1,6})?)Gb", re.ASCII),
    "cpus": re.compile(_NUMBER + "cpu", re.ASCII),
    "memory": re.compile(_NUMBER + "(GB|GiB)", re.ASCII),
    "rack": re.compile(r"([1-9]\d{0,17})/rack", re.ASCII),
}
_FORM = (
    "NODESxDEVICESxNAME such as 16x8xA100-80G, one node as 8xA100-80G, or NODESxDEVICES; after it an @ and, with commas "
    "between, a network 100Gb or 4x100Gb, 24cpu, 500GB or 466GiB of memory, 4/rack, with numbers above 0; kinds of nodes "
    "joined by +; local or local:4; or a YAML file"
)


def cluster_from_text(text: str) -> Cluster:
    """Read a cluster from kinds of nodes, joined by ``+``.

    Of devices that have no preset only the name is known. GB are 10^9 bytes, and GiB, as Slurm counts, 2^30.

    Raises
    ------
    HardwareError
        If it cannot be read.
    """
    nodes: list[Node] = []
    num_devices = 0
    for number, part in enumerate(text.split("+")):
        more = _nodes_of(f"rack {number}", part.strip(), text)
        nodes += more
        num_devices += len(more) * more[0].num_devices
        if num_devices > MOST_DEVICES:
            raise HardwareError(f"cluster {shown(text)}: a cluster has at most {MOST_DEVICES:,} devices")
    return Cluster(text, tuple(nodes))


def _nodes_of(rack: str, part: str, given: str) -> list[Node]:
    """Nodes of one part between plus signs; ``rack`` is how the names of its racks begin."""
    match = _PART.fullmatch(part)
    # One number alone may be the nodes or the devices of one node.
    if match is None or (match["name"] is None and match["nodes"] is None):
        raise HardwareError(
            f"cluster {shown(given)} cannot be read at {shown(part)}; allowed: {_FORM}; known devices: "
            f"{', '.join(DEVICES)}"
        )
    num_nodes, num_devices = int(match["nodes"] or 1), int(match["devices"])
    if not 1 <= min(num_nodes, num_devices) <= num_nodes * num_devices <= MOST_DEVICES:
        raise HardwareError(
            f"cluster {shown(given)} has {num_nodes} x {num_devices} devices at {shown(part)}; allowed: at least 1 x 1 "
            f"and at most {MOST_DEVICES:,} devices"
        )
    more = _more(match["more"], part, given)
    name, cpus, memory_bytes = match["name"] or UNNAMED_DEVICE, 0.0, 0.0
    if found := more.get("cpus"):
        cpus = float(found[1])
    if found := more.get("memory"):
        memory_bytes = float(found[1]) * BYTES[found[2]]
    node = Node.named(name, num_devices, cpus, memory_bytes)
    if (spec := find_device(name)) is not None:
        is_small = num_devices <= MAX_NODE_DEVICES  # links of larger nodes are not known
        topology = _topology(spec.name, num_devices, more.get("network")) if is_small else None
        # Jobs ask for devices by the name that is written here.
        node = replace(node, topology=topology, devices=(replace(spec, name=name),) * num_devices)
    elif "network" in more:
        raise HardwareError(
            f"cluster {shown(given)}: of {shown(name)} at {shown(part)} only the name is known, so a network says "
            f"nothing; leave it out, or take one of the known devices: {', '.join(DEVICES)}"
        )
    if not (found := more.get("rack")):
        return [node] * num_nodes
    racks = [
        [replace(node, rack=f"{rack}.{n}")] * int(found[1]) for n in range(-(-num_nodes // int(found[1])))
    ]
    return [each for same in racks for each in same][:num_nodes]


def _topology(name: str, num_devices: int, network: re.Match[str] | None) -> NodeTopology:
    if network is None:
        return node_topology(name, num_devices)
    num_nics = int(network["nics"]) if network["nics"] else None
    return node_topology(name, num_devices, network_of_gbit(float(network["gbit"])), num_nics)


def _more(text: str | None, part: str, given: str) -> dict[str, re.Match[str]]:
    """What follows the @, by what it is about."""
    found: dict[str, re.Match[str]] = {}
    for one in [] if text is None else text.split(","):
        name, match = next(((n, m) for n, form in _MORE.items() if (m := form.fullmatch(one))), ("", None))
        if match is None:
            raise HardwareError(
                f"cluster {shown(given)}: {shown(one)} is none of 100Gb, 4x100Gb, 24cpu, 500GB (or 466GiB) and 4/rack, "
                f"with numbers above 0; allowed: {_FORM}"
            )
        if name in found:
            raise HardwareError(
                f"cluster {shown(given)}: {shown(part)} says something twice; keep one of each; allowed: {_FORM}"
            )
        found[name] = match
    return found

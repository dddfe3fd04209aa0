"""Nodes that are added to a cluster or taken away: written like a cluster, with a sign before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainyard.fleet.errors import FleetError
from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING
from trainyard.hardware.text import cluster_from_text
from trainyard.reading import count_text, shown
from trainyard.reading.limits import MOST_DEVICES

__all__ = ["NodeEdit", "edit_nodes"]


@dataclass(frozen=True)
class NodeEdit:
    """Nodes of one kind that are added or taken away.

    Attributes
    ----------
    text : the nodes as they were given, without the sign and the partitions.
    is_added : whether the nodes are added.
    nodes : the nodes that the text describes.
    partitions : names of the partitions that added nodes join, or of the one from which nodes are taken.
    """

    text: str
    is_added: bool
    nodes: tuple[Node, ...]
    partitions: tuple[str, ...]

    @classmethod
    def parse(cls, word: str, what_if: str) -> NodeEdit:
        """Read a sign, nodes as a cluster is written, and where there are partitions, a colon and their names.

        Raises
        ------
        FleetError
            If it cannot be read.
        """
        text, colon, names = word[1:].partition(":")
        partitions = tuple(names.split(",")) if colon else ()
        if "" in partitions:
            raise FleetError(
                f"what-if {shown(what_if)}: {shown(word)} names no partition after the colon; write for example {word[0]}"
                f"{text}:gpu"
            )
        try:
            cluster = cluster_from_text(text)
        except HardwareError as error:
            raise FleetError(f"what-if {shown(what_if)}: {error}") from None
        return cls(text, word[0] == "+", cluster.nodes, partitions)

    def is_kind_of(self, node: Node) -> bool:
        """Return whether a node has the same devices, and the same processors and memory if the text says these."""
        wanted = self.nodes[0]
        same_host = (wanted.cpus, wanted.memory_bytes) == (node.cpus, node.memory_bytes)
        same_devices = _kind(wanted) == _kind(node)
        return same_devices and (same_host or not self.describes_host)

    @property
    def describes_host(self) -> bool:
        """Whether the text says processors, memory or racks, beside devices."""
        return "@" in self.text


@dataclass(frozen=True)
class _Place:
    """A node of the changed cluster.

    Attributes
    ----------
    number : of the node in the cluster as it is; None for an added node.
    partitions : names of the partitions with the node.
    """

    node: Node
    number: int | None
    partitions: frozenset[str]


def edit_nodes(cluster: Cluster, edits: Sequence[NodeEdit], what_if: str) -> Cluster:
    """Return a cluster with nodes added and taken away; nodes that stay keep their partitions, changes and reservations.

    An added node of which only the devices are given gets the processors and memory of the first node with the same
    devices. Added nodes are in racks of their own.

    Raises
    ------
    FleetError
        If the cluster has no such nodes to take away, the partition of nodes is not given, added nodes have no price in
        a cluster with prices, or the links of the cluster are described node by node.
    """
    if cluster.fabric != NON_BLOCKING:
        raise FleetError(
            f"what-if {shown(what_if)}: links of cluster {cluster.name!r} are described node by node, and those of other "
            "nodes are not; leave fabric out of its file, or describe the other cluster in a file"
        )
    added = sum(node.num_devices for edit in edits if edit.is_added for node in edit.nodes)
    taken = sum(node.num_devices for edit in edits if not edit.is_added for node in edit.nodes)
    _check_num_devices(max(1, cluster.num_devices + added - taken), what_if)
    places = [
        _Place(node, number, frozenset(name for name, nodes in cluster.partitions if number in nodes))
        for number, node in enumerate(cluster.nodes)
    ]
    for edit in edits:
        _check_partitions(edit, cluster, what_if)
        change = _added if edit.is_added else _taken
        places = change(places, edit, cluster, what_if)
    _check_num_devices(sum(place.node.num_devices for place in places), what_if)
    try:
        return _renumbered(cluster, places, what_if)
    except HardwareError as error:
        raise FleetError(f"what-if {shown(what_if)}: {error}") from None


def _check_num_devices(num_devices: int, what_if: str) -> None:
    if not 0 < num_devices <= MOST_DEVICES:
        raise FleetError(
            f"what-if {shown(what_if)} leaves {count_text(num_devices, 'device')}; allowed are at least one and at most "
            f"{MOST_DEVICES:,}"
        )


def _check_partitions(edit: NodeEdit, cluster: Cluster, what_if: str) -> None:
    """Refuse unknown partitions, and added nodes without a partition if the cluster has partitions."""
    known = [name for name, _ in cluster.partitions]
    unknown = [name for name in edit.partitions if name not in known]
    if unknown:
        there = f"its partitions are {', '.join(known)}" if known else "it has no partitions"
        raise FleetError(
            f"what-if {shown(what_if)}: cluster {cluster.name!r} has no partition {shown(unknown[0])}; {there}"
        )
    if known and edit.is_added and not edit.partitions:
        raise FleetError(
            f"what-if {shown(what_if)}: cluster {cluster.name!r} has partitions, and nodes in none would be idle; "
            f"say which they join: +{edit.text}:{known[0]}, of {', '.join(known)}"
        )


def _added(places: list[_Place], edit: NodeEdit, cluster: Cluster, what_if: str) -> list[_Place]:
    """Return the places, and places of added nodes after them."""
    names = {name.lower(): name for name in cluster.device_types}
    # Nodes of one kind are one object.
    kinds = {id(node): node for node in edit.nodes}
    renamed = {
        key: _renamed(node, names.get(node.device_type.lower(), node.device_type))
        for key, node in kinds.items()
    }
    nodes = [renamed[id(node)] for node in edit.nodes]
    like = next((node for node in cluster.nodes if edit.is_kind_of(node)), None)
    if like is not None and not edit.describes_host:
        nodes = [like] * len(nodes)
    # Names of racks mean something only within the text that describes the nodes.
    nodes = [replace(node, rack=f"added {len(places)} {node.rack}") if node.rack else node for node in nodes]
    return [*places, *(_Place(node, None, frozenset(edit.partitions)) for node in nodes)]


def _renamed(node: Node, device_type: str) -> Node:
    """Return a node with another name for its devices."""
    return replace(node, devices=tuple(replace(device, name=device_type) for device in node.devices))


def _taken(places: list[_Place], edit: NodeEdit, cluster: Cluster, what_if: str) -> list[_Place]:
    """Return the places without the last nodes that the edit takes away."""
    wanted = frozenset(edit.partitions)
    found = [
        number
        for number, place in enumerate(places)
        if edit.is_kind_of(place.node) and wanted <= place.partitions
    ]
    where = f" in partition {', '.join(edit.partitions)}" if wanted else ""
    if len(found) < len(edit.nodes):
        wanted_kind = f"{edit.nodes[0].num_devices}x{edit.nodes[0].device_type}"
        kinds = dict.fromkeys(f"{place.node.num_devices}x{place.node.device_type}" for place in places)
        raise FleetError(
            f"what-if {shown(what_if)}: {len(edit.nodes)} nodes of {wanted_kind} are to go{where}, "
            f"and cluster {cluster.name!r} has {len(found)}; its nodes are {', '.join(kinds)}"
        )
    if len({places[number].partitions for number in found}) > 1 and len(found) > len(edit.nodes):
        raise FleetError(
            f"what-if {shown(what_if)}: such nodes are in several partitions{where}; say from which they are taken: "
            f"-{edit.text}:NAME, of {', '.join(name for name, _ in cluster.partitions)}"
        )
    gone = set(found[len(found) - len(edit.nodes) :])
    return [place for number, place in enumerate(places) if number not in gone]


def _renumbered(cluster: Cluster, places: Sequence[_Place], what_if: str) -> Cluster:
    """Return the cluster of these places, whose partitions, changes and reservations have the new numbers of nodes."""
    number_of = {place.number: number for number, place in enumerate(places) if place.number is not None}
    partitions = tuple(
        (name, frozenset(number for number, place in enumerate(places) if name in place.partitions))
        for name, _ in cluster.partitions
    )
    changes = [
        replace(change, nodes=frozenset(number_of[node] for node in change.nodes if node in number_of))
        for change in cluster.changes
    ]
    reservations = [
        replace(each, nodes=frozenset(number_of[node] for node in each.nodes if node in number_of))
        for each in cluster.reservations
    ]
    return Cluster(
        f"{cluster.name} {what_if}",
        tuple(place.node for place in places),
        partitions=partitions,
        changes=tuple(change for change in changes if change.nodes),
        prices=cluster.prices,
        reservations=tuple(each for each in reservations if each.nodes),
        qos=cluster.qos,
    )


def _kind(node: Node) -> tuple[str, int]:
    """Return the type of a node's devices, in small letters, and their number."""
    return node.device_type.lower(), node.num_devices

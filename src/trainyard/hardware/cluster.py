"""A cluster: devices by rank, the nodes they are in, and the links between them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING, Fabric
from trainyard.hardware.profile import MachineProfile
from trainyard.hardware.routing import RouteTable
from trainyard.hardware.topology import Link, NodeTopology

__all__ = ["Cluster", "Node"]


@dataclass(frozen=True)
class Node:
    """One machine: a topology and the devices at its places.

    Parameters
    ----------
    topology
        The inside of the node.
    devices
        One for each place of the topology.
    """

    topology: NodeTopology
    devices: tuple[DeviceSpec, ...]

    def __post_init__(self) -> None:
        if len(self.devices) != self.topology.num_devices:
            raise HardwareError(
                f"node {self.topology.name!r} has {self.topology.num_devices} places and "
                f"{len(self.devices)} devices; "
                "give one device for each place"
            )


@dataclass(frozen=True)
class Cluster:
    """Devices by rank and the links between them.

    Ranks count through the nodes in order. The route between two ranks is computed from the structure (inside
    a node from its graph, between nodes as out of one, across the fabric, into the other), so it is cheap for
    thousands.

    Parameters
    ----------
    name
        Text form or file name it was made from.
    nodes
        The machines.
    fabric
        What joins them; by default a non-blocking switch, whose only limits are the NICs.
    profile
        Measurements, where the cluster is this machine.
    """

    name: str
    nodes: tuple[Node, ...]
    fabric: Fabric = NON_BLOCKING
    profile: MachineProfile | None = None

    def __post_init__(self) -> None:
        if not self.nodes:
            raise HardwareError(f"cluster {self.name!r} has no nodes; give at least one, e.g. 1x8xA100-80G")
        if len(self.nodes) > 1:
            for index, topology in enumerate(node.topology for node in self.nodes):
                if not topology.has_network:
                    raise HardwareError(
                        f"node {index} ({topology.name!r}) of cluster {self.name!r} has no network, but "
                        "there are "
                        f"{len(self.nodes)} nodes; add NICs to it"
                    )
        self.fabric.check(len(self.nodes))

    @cached_property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Devices by rank."""
        return tuple(device for node in self.nodes for device in node.devices)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """Node of each rank."""
        return tuple(index for index, node in enumerate(self.nodes) for _ in node.devices)

    @cached_property
    def local_of(self) -> tuple[int, ...]:
        """Place of each rank in its node."""
        return tuple(place for node in self.nodes for place in range(len(node.devices)))

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """All links: those of each node in turn, then those of the fabric."""
        return tuple(link for node in self.nodes for link in node.topology.links) + self.fabric.links

    @cached_property
    def routes(self) -> RouteTable:
        """Routes and link rates as arrays, for many pairs at once."""
        return RouteTable.of([node.topology for node in self.nodes], self.fabric, self.links)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return len(self.nodes)

    @property
    def num_cores(self) -> int | None:
        """Cores that all devices share, where devices are processes of this machine; otherwise None."""
        return None if self.profile is None else self.profile.num_cores

    @cached_property
    def is_homogeneous(self) -> bool:
        """Whether all devices are the same and all nodes are the same."""
        return len(set(self.devices)) == 1 and len(set(self.nodes)) == 1

    def device(self, rank: int) -> DeviceSpec:
        """Device of a rank.

        Raises
        ------
        HardwareError
            If there is no such rank.
        """
        self.check_ranks((rank,))
        return self.devices[rank]

    def route(self, source_rank: int, target_rank: int) -> tuple[int, ...]:
        """Links that a message crosses, in order.

        Parameters
        ----------
        source_rank, target_rank
            Ranks.

        Returns
        -------
        tuple of int
            Indices into `links`; empty from a rank to itself.

        Raises
        ------
        HardwareError
            If there is no such rank.
        """
        self.check_ranks((source_rank, target_rank))
        row = self.routes.of_pairs(np.array([source_rank]), np.array([target_rank]))[0]
        return tuple(int(link) for link in row if link != self.routes.no_link)

    def check_ranks(self, ranks: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Raise `HardwareError` if one of the ranks is not in the cluster."""
        if len(ranks) and not 0 <= min(ranks) <= max(ranks) < self.num_devices:
            raise HardwareError(
                f"ranks {min(ranks)} to {max(ranks)} of cluster {self.name!r}; allowed: 0 to "
                f"{self.num_devices - 1}"
            )

    def describe(self) -> str:
        """A few lines for people: devices, nodes, links.

        Returns
        -------
        str
            Text of several lines.
        """
        devices = Counter(device.name for device in self.devices)
        lines = [f"{self.name}: {self.num_devices} devices in {self.num_nodes} nodes"]
        for name, count in devices.items():
            spec = next(device for device in self.devices if device.name == name)
            half = spec.reference_peak_flops_per_s
            lines.append(
                f"  {count} x {name}: {spec.memory_bytes / 2**30:.0f} GiB, {half / 1e12:.3g} Tflop/s (16 "
                "bit), "
                f"{spec.peak('float32') / 1e12:.3g} Tflop/s (float32), "
                f"memory {spec.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s"
            )
        for node, count in Counter(self.nodes).items():
            slowest = min(node.topology.links, key=lambda link: link.bandwidth_bytes_per_s, default=None)
            wires = (
                ""
                if slowest is None
                else f", slowest link {slowest.name} {slowest.bandwidth_bytes_per_s / 1e9:.3g} GB/s"
            )
            lines.append(f"  {count} x node of {len(node.devices)}: {node.topology.name}{wires}")
        if self.fabric.links:
            lines.append(f"  fabric {self.fabric.name}: {len(self.fabric.links)} links")
        return "\n".join(lines)

    @cached_property
    def _fingerprint(self) -> str:
        plain = self.to_dict()
        plain.pop("name")
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Short hash of everything but the name: equal for clusters that behave the same.

        Returns
        -------
        str
            16 hexadecimal digits.
        """
        return self._fingerprint

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def to_dict(self) -> dict[str, Any]:
        """The cluster in numbers, strings, lists and mappings.

        Returns
        -------
        dict
            `trainyard.hardware.parse.cluster_from_dict` reads it back.
        """
        devices = list(dict.fromkeys(self.devices))
        topologies = list(dict.fromkeys(node.topology for node in self.nodes))
        device_index = {device: i for i, device in enumerate(devices)}
        topology_index = {topology: i for i, topology in enumerate(topologies)}
        nodes = []
        for node, same in groupby(self.nodes):
            places = [device_index[device] for device in node.devices]
            nodes.append(
                {"topology": topology_index[node.topology], "devices": places, "count": len(list(same))}
            )
        plain: dict[str, Any] = {
            "name": self.name,
            "devices": [device.to_dict() for device in devices],
            "topologies": [topology.to_dict() for topology in topologies],
            "nodes": nodes,
        }
        if self.fabric != NON_BLOCKING:
            plain["fabric"] = {
                "name": self.fabric.name,
                "links": [dict(vars(link)) for link in self.fabric.links],
                "edges": [[edge.source, edge.target, edge.link] for edge in self.fabric.edges],
            }
        if self.profile is not None:
            plain["profile"] = self.profile.to_dict()
        return plain

    def to_yaml(self) -> str:
        """The cluster as YAML.

        Returns
        -------
        str
            A YAML document; `parse_cluster` reads a file of it.
        """
        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=120)

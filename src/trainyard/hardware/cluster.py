"""A cluster: nodes with devices, numbered through, and the links between them. It is the place of all three levels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from trainyard.hardware.devices import DeviceSpec, NamedDevice
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING, Fabric
from trainyard.hardware.node import Node
from trainyard.hardware.node_changes import NodeChange, nodes_text
from trainyard.hardware.plain_nodes import plain_fabric, plain_nodes
from trainyard.hardware.presets import UNNAMED_DEVICE, unknown_device
from trainyard.hardware.prices import Prices, check_prices
from trainyard.hardware.profile import MachineProfile
from trainyard.hardware.reservations import Reservation
from trainyard.hardware.routing import RouteTable
from trainyard.hardware.topology import MAX_NODE_DEVICES, Link, NodeTopology
from trainyard.reading import shown
from trainyard.shown import Shown

__all__ = ["WITHIN", "Bools", "Cluster", "Ints", "Node"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
WITHIN = 2
"""Overlap in `Cluster.partition_table` of a partition with a row that has all its nodes."""


@dataclass(frozen=True, repr=False)
class Cluster(Shown):
    """Nodes with devices, and the links between them.

    Devices are numbered through the nodes in order: a rank of level 1 is such a number. The route between two is
    computed from the structure (inside a node from its graph, between nodes as out of one, across the fabric, into the
    other), so it is cheap for thousands. Where only the names of devices are known, jobs can share them, but whatever
    asks how fast they are is refused.

    Parameters
    ----------
    name : text form or file name it was made from.
    nodes : the machines.
    fabric : what joins them; by default a non-blocking switch, whose only limits are the NICs.
    profile : measurements, where the cluster is this machine.
    partitions : names of partitions, each with the numbers of its nodes; a node may be in several. A job whose virtual
        cluster is called so has nodes of that partition only.
    changes : when nodes come and go while jobs run, in the order of time.
    reservations : nodes kept for some users or accounts, or for maintenance, for a time.
    qos : names of qualities of service (QOS), each with the priority that it adds to that of its jobs.
    prices : device types, each with the price of one device for an hour; empty for none. All types of the nodes have one.
    away : numbers of nodes that cannot be used now. Their devices keep their numbers, and count as none.
    outside : numbers of nodes that are for other jobs only: they count as none, too, also when all are there.
    """

    name: str
    nodes: tuple[Node, ...]
    fabric: Fabric = NON_BLOCKING
    profile: MachineProfile | None = None
    partitions: tuple[tuple[str, frozenset[int]], ...] = ()
    changes: tuple[NodeChange, ...] = ()
    prices: Prices = ()
    reservations: tuple[Reservation, ...] = ()
    qos: tuple[tuple[str, int], ...] = ()
    away: frozenset[int] = frozenset()
    outside: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not any(node.devices for node in self.nodes):
            raise HardwareError(
                f"cluster {self.name!r} has no devices; give at least one node with one, e.g. 1x8xA100-80G"
            )
        if len(self.nodes) > 1:
            for index, topology in enumerate(node.topology for node in self.nodes):
                if topology is not None and not topology.has_network:
                    raise HardwareError(
                        f"node {index} ({topology.name!r}) of cluster {self.name!r} has no network, but there are "
                        f"{len(self.nodes)} nodes; add NICs to it"
                    )
        self.fabric.check(len(self.nodes))
        check_prices(self.prices, self.nodes, self.name)

    @classmethod
    def uniform(cls, num_nodes: int, devices_per_node: int, device_type: str = UNNAMED_DEVICE) -> Cluster:
        """Nodes that are all the same, of which only the name of their devices is known."""
        return cls.of_pools([(device_type, num_nodes, devices_per_node)])

    @classmethod
    def of_pools(cls, pools: Sequence[tuple[str, int, int]]) -> Cluster:
        """Nodes of (name of their devices, number of nodes, devices per node), in this order."""
        nodes = tuple(node for kind, count, size in pools for node in (Node.named(kind, size),) * count)
        return cls("+".join(f"{count}x{size}x{kind}" for kind, count, size in pools), nodes)

    def without(self, away: Iterable[int]) -> Cluster:
        """The same cluster while these nodes, and no others, cannot be used."""
        return replace(self, away=frozenset(away))

    @cached_property
    def whole(self) -> Cluster:
        """The same cluster when all its nodes are there."""
        return self.without(()) if self.away else self

    @cached_property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Specifications of the devices, by rank.

        Raises
        ------
        HardwareError
            If of some only the name is known, or some cannot be used now.
        """
        self.require_known()
        return tuple(d for node in self.nodes for d in node.devices if isinstance(d, DeviceSpec))

    def require_known(self) -> None:
        """Refuse a cluster of which it is not known how fast its devices and links are.

        Raises
        ------
        HardwareError
            If of a device only the name is known, a node is larger than links are known of, or cannot be used now.
        """
        for index, node in enumerate(self.nodes):
            if index in self.away or not node.devices:
                why = "has no devices that can be used now; leave it out"
            elif named := [device.name for device in node.devices if isinstance(device, NamedDevice)]:
                raise unknown_device(named[0])
            elif node.topology is None:
                why = (
                    f"has {node.num_devices} devices, and links are known between at most {MAX_NODE_DEVICES}; a larger "
                    "machine is several nodes"
                )
            else:
                continue
            raise HardwareError(f"node {index} of cluster {shown(self.name)} {why}")

    @cached_property
    def local_of(self) -> tuple[int, ...]:
        """Place of each rank in its node."""
        return tuple(place for node in self.nodes for place in range(len(node.devices)))

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """All links: those of each node in turn, then those of the fabric."""
        return tuple(link for topology in self.topologies for link in topology.links) + self.fabric.links

    @cached_property
    def routes(self) -> RouteTable:
        """Routes and link rates as arrays, for many pairs at once."""
        return RouteTable.of(self.topologies, self.fabric, self.links)

    @cached_property
    def topologies(self) -> tuple[NodeTopology, ...]:
        """The inside of every node; refuses as `devices` does."""
        self.require_known()
        return tuple(node.topology for node in self.nodes if node.topology is not None)

    @cached_property
    def num_devices(self) -> int:
        """Number of devices that can be used now."""
        return int(self.devices_per_node.sum())

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return len(self.nodes)

    @property
    def num_cores(self) -> int | None:
        """Cores that all devices share, where devices are processes of this machine; otherwise None."""
        return None if self.profile is None else self.profile.num_cores

    @cached_property
    def node_of(self) -> Ints:
        """Node of every device."""
        return np.repeat(np.arange(self.num_nodes), [node.num_devices for node in self.nodes])

    @cached_property
    def first_device(self) -> Ints:
        """First device of every node, and the number of devices."""
        return np.concatenate(([0], np.cumsum([node.num_devices for node in self.nodes]))).astype(np.int64)

    @cached_property
    def devices_per_node(self) -> Ints:
        """Devices of every node that can be used now."""
        none = self.away | self.outside
        return np.array([0 if n in none else node.num_devices for n, node in enumerate(self.nodes)], np.int64)

    @cached_property
    def is_usable(self) -> Bools:
        """Whether every device, by its number, can be used now."""
        usable: Bools = self.devices_per_node[self.node_of] > 0
        return usable

    @cached_property
    def device_types(self) -> tuple[str, ...]:
        """Names of its devices, in the order in which they first occur; all of one name are a pool."""
        return tuple(dict.fromkeys(node.device_type for node in self.nodes if node.devices))

    @cached_property
    def type_of_node(self) -> Ints:
        """Index into `device_types` of every node; 0 for one without devices."""
        index = {name: number for number, name in enumerate(self.device_types)}
        return np.array([index.get(node.device_type, 0) for node in self.nodes], np.int64)

    @cached_property
    def kind_of_device(self) -> tuple[int, ...]:
        """Index into `device_types` of every device; -1 where its node cannot be used now."""
        return tuple(np.where(self.is_usable, self.type_of_node[self.node_of], -1).tolist())

    @cached_property
    def devices_of_type(self) -> Ints:
        """Number of devices of every type that can be used now."""
        sizes: Ints = self.devices_of_partition[0]
        return sizes

    @cached_property
    def devices_of_partition(self) -> Ints:
        """The same of every row of `members`."""
        types, sizes = self.type_of_node, self.devices_per_node * self.members
        return np.array([np.bincount(types, row, len(self.device_types)) for row in sizes], np.int64)

    @cached_property
    def largest_host(self) -> tuple[float, float]:
        """The most processors and bytes of memory that a node says it has; 0 where none says so."""
        return max(node.cpus for node in self.nodes), max(node.memory_bytes for node in self.nodes)

    @cached_property
    def rack_of_node(self) -> Ints:
        """Index of the rack of every node; 0 of all where nothing is said of racks."""
        racks = {name: number for number, name in enumerate(dict.fromkeys(node.rack for node in self.nodes))}
        return np.array([racks[node.rack] for node in self.nodes], np.int64)

    @cached_property
    def is_one_pool(self) -> bool:
        """Whether all jobs can have all devices: these are of one type, and no partition has but some of them."""
        inside, own = self.members[:, self.members[0] > 0], self.whole.devices_of_type
        return bool(np.count_nonzero(own) == 1) and all(row.all() or not row.any() for row in inside)

    @cached_property
    def members(self) -> Ints:
        """A row for every partition, after one for the whole cluster: 1 for each of its nodes, 0 for others."""
        found = np.ones((1 + len(self.partitions), len(self.nodes)), np.int64)
        found[0, list(self.outside)] = 0
        for row, (_, nodes) in enumerate(self.partitions, 1):
            found[row] = [node in nodes for node in range(len(self.nodes))]
        return found

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, (name, _) in enumerate(self.partitions, 1)}

    def partition_index(self, name: str) -> int:
        """Row of a partition among `members`; 0 for none, where there is none of that name."""
        return self._rows.get(name, 0)

    @cached_property
    def partition_table(self) -> Ints:
        """`devices_of_partition`, then overlaps with all rows: 2 (`WITHIN`) if the other has all its nodes, 1 if some."""
        shared = self.members @ self.members.T
        overlap = np.where(shared == shared.diagonal()[:, None], WITHIN, shared.clip(max=1))
        return np.hstack((self.devices_of_partition, overlap))

    def compact(self, num_devices: int, kind: int) -> tuple[int, ...]:
        """Devices on each node when so many of a type, by its index, lie on as few nodes as can hold them."""
        whole, rest = divmod(num_devices, self._largest_nodes[kind])
        return (self._largest_nodes[kind],) * whole + ((rest,) if rest else ())

    @cached_property
    def _largest_nodes(self) -> tuple[int, ...]:
        """Devices of the largest node of every type, whether it can be used or not."""
        sizes = [[n.num_devices for n in self.nodes if n.device_type == kind] for kind in self.device_types]
        return tuple(map(max, sizes))

    def type_bits(self, names: Sequence[str]) -> int:
        """Device types as bits, by their index; no names are all types. Types that no node has are left out."""
        if not names:
            return -1
        return sum(1 << self.device_types.index(name) for name in set(names) & set(self.device_types))

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

    @cached_property
    def _fingerprint(self) -> str:
        plain = self.to_dict()
        plain.pop("name")
        plain.pop("prices", None)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Short hash of all but the name, prices and what is away now: equal for clusters that behave the same.

        Returns
        -------
        str
            16 hexadecimal digits.
        """
        return self._fingerprint

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def describe(self) -> str:
        """A few lines for people: devices, nodes, links."""
        lines = [f"{self.name}: {self.num_devices} devices in {self.num_nodes} nodes"]
        devices = Counter(d for node in self.nodes for d in node.devices)
        lines += [f"  {n} x {device.describe()}" for device, n in devices.items()]
        lines += [f"  {n} x {text}" for text, n in Counter(node.describe() for node in self.nodes).items()]
        if self.fabric.links:
            lines.append(f"  fabric {self.fabric.name}: {len(self.fabric.links)} links")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The cluster in numbers, strings, lists and mappings.

        Returns
        -------
        dict
            `trainyard.hardware.parse.cluster_from_dict` reads it back.
        """
        plain = {"name": self.name, **plain_nodes(self.nodes)}
        if self.fabric != NON_BLOCKING:
            plain["fabric"] = plain_fabric(self.fabric)
        if self.profile is not None:
            plain["profile"] = self.profile.to_dict()
        settings: dict[str, Any] = {
            "partitions": {name: nodes_text(nodes) for name, nodes in self.partitions},
            "changes": [change.to_dict() for change in self.changes],
            "reservations": [reservation.to_dict() for reservation in self.reservations],
            "qos": dict(self.qos),
            "prices": dict(self.prices),
        }
        return plain | {name: setting for name, setting in settings.items() if setting}

    def to_yaml(self) -> str:
        """The cluster as YAML; `parse_cluster` reads a file of it."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=120)

"""The place at this level: nodes with devices, as a tree of pools, racks, nodes and devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainyard.reading import shown
from trainyard.reading.limits import MOST_DEVICES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_POOL = re.compile(r"([1-9]\d{0,17})x([1-9]\d{0,17})(?:x([A-Za-z][\w.-]*))?(?:@(.*))?", re.ASCII)
_NUMBER = r"(?![0.]+[a-zA-Z])(\d{1,15}(?:\.\d{1,15})?)"  # above 0
# What may follow the @ of a pool.
_CPUS, _MEMORY, _RACK = (
    re.compile(each) for each in (_NUMBER + "cpu", _NUMBER + "(GB|GiB)", r"([1-9]\d{0,17})/rack")
)
_BYTES = {"GB": 1e9, "GiB": 2.0**30}
_FORM = "NODESxDEVICES or NODESxDEVICESxTYPE, and what more a node has: NODESxDEVICES@24cpu,500GB,4/rack"


class FleetError(ValueError):
    """Something given to the fleet level that cannot be; the message says what is allowed."""


class UnfitJobError(FleetError):
    """A job that can never run on a cluster, or not under a policy.

    Attributes
    ----------
    reason : of what kind that is, in words; jobs with the same one are counted together.
    """

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


@dataclass(frozen=True)
class Host:
    """One node.

    Attributes
    ----------
    device_type : of all its devices, ``"V100"``.
    num_devices, cpus, memory_bytes : what it has.
    rack : name of its rack; nodes of one rack are near to each other.
    """

    device_type: str
    num_devices: int
    cpus: float = 0.0
    memory_bytes: float = 0.0
    rack: str = ""


@dataclass(frozen=True)
class Site:
    """The nodes of a cluster. Devices are numbered through the nodes in order; a pool is all devices of one type.

    Attributes
    ----------
    name : what reports call it.
    hosts : the nodes.
    away : numbers of nodes that cannot be used now. Their devices keep their numbers, and count as none.
    partitions : names of partitions, each with the numbers of its nodes; a node may be in several. A job whose virtual
        cluster is called so has nodes of that partition only.
    """

    name: str
    hosts: tuple[Host, ...]
    away: frozenset[int] = frozenset()
    partitions: tuple[tuple[str, frozenset[int]], ...] = ()

    def __post_init__(self) -> None:
        if not any(host.num_devices for host in self.hosts):
            raise FleetError(f"cluster {self.name!r} has no devices; give at least one node with one")

    @classmethod
    def uniform(cls, num_nodes: int, devices_per_node: int, device_type: str = "device") -> Site:
        """Nodes that are all the same."""
        return cls(
            f"{num_nodes}x{devices_per_node}x{device_type}",
            (Host(device_type, devices_per_node),) * num_nodes,
        )

    @classmethod
    def of_pools(cls, pools: Sequence[tuple[str, int, int]]) -> Site:
        """Pools of (device type, nodes, devices per node), in this order."""
        hosts = tuple(Host(kind, size) for kind, count, size in pools for _ in range(count))
        return cls("+".join(f"{count}x{size}x{kind}" for kind, count, size in pools), hosts)

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read ``NODESxDEVICES`` or ``NODESxDEVICESxTYPE``, several of them joined by ``+``.

        Each may be followed by ``@`` and some of ``24cpu``, ``500GB`` and ``4/rack``, with commas between: processors and
        memory of a node, and how many nodes are in a rack. GB are 10^9 bytes, and GiB, as Slurm counts, 2^30.

        Raises
        ------
        FleetError
            If it does not read so.
        """
        pools: list[Host] = []
        num_devices = 0
        for number, part in enumerate(text.split("+")):
            more = _pool(f"rack {number}", part.strip(), text)
            pools += more
            num_devices += sum(host.num_devices for host in more)
            if num_devices > MOST_DEVICES:
                raise FleetError(f"cluster {text!r}: a cluster has at most {MOST_DEVICES:,} devices")
        return cls(text, tuple(pools))

    def without(self, away: Iterable[int]) -> Site:
        """The same cluster while these nodes, and no others, cannot be used."""
        return replace(self, away=frozenset(away))

    @cached_property
    def whole(self) -> Site:
        """The same cluster when all its nodes are there."""
        return self.without(()) if self.away else self

    @cached_property
    def is_one_pool(self) -> bool:
        """Whether all jobs can have all devices: these are of one type, and there are no partitions."""
        return len(self.device_types) == 1 and not self.partitions

    @cached_property
    def members(self) -> Ints:
        """A row for every partition, after one for the whole cluster: 1 for each of its nodes, 0 for others."""
        found = np.ones((1 + len(self.partitions), len(self.hosts)), np.int64)
        for row, (_, nodes) in enumerate(self.partitions, 1):
            found[row] = [node in nodes for node in range(len(self.hosts))]
        return found

    def partition_index(self, name: str) -> int:
        """Row of a partition among ``members``; 0 for none, where there is none of that name."""
        return self._partition_indices.get(name, 0)

    @cached_property
    def _partition_indices(self) -> dict[str, int]:
        return {name: row for row, (name, _) in enumerate(self.partitions, 1)}

    @cached_property
    def num_devices(self) -> int:
        return int(self.devices_per_node.sum())

    @cached_property
    def is_usable(self) -> Bools:
        """Whether every device, by its number, can be used now."""
        usable: Bools = self.devices_per_node[self.node_of] > 0
        return usable

    @cached_property
    def kind_of_device(self) -> tuple[int, ...]:
        """Index into ``device_types`` of the type of every device; -1 where its node cannot be used now."""
        return tuple(np.where(self.is_usable, self.type_of_node[self.node_of], -1).tolist())

    @cached_property
    def device_types(self) -> tuple[str, ...]:
        """Names of the pools, in the order in which they first occur."""
        return tuple(dict.fromkeys(host.device_type for host in self.hosts))

    @cached_property
    def node_of(self) -> Ints:
        """Node of every device."""
        return np.repeat(np.arange(len(self.hosts)), [h.num_devices for h in self.hosts])

    @cached_property
    def type_of_node(self) -> Ints:
        """Index into ``device_types`` of every node."""
        return np.array([self.device_types.index(h.device_type) for h in self.hosts], np.int64)

    @cached_property
    def rack_of_node(self) -> Ints:
        """Index of the rack of every node; 0 of all where nothing is said of racks."""
        racks = list(dict.fromkeys(host.rack for host in self.hosts))
        return np.array([racks.index(host.rack) for host in self.hosts], np.int64)

    @cached_property
    def first_device(self) -> Ints:
        """First device of every node, and the number of devices."""
        return np.concatenate(([0], np.cumsum([h.num_devices for h in self.hosts]))).astype(np.int64)

    @cached_property
    def devices_per_node(self) -> Ints:
        return np.array([0 if n in self.away else h.num_devices for n, h in enumerate(self.hosts)], np.int64)

    @cached_property
    def devices_of_type(self) -> Ints:
        """Number of devices in every pool."""
        return np.bincount(self.type_of_node, self.devices_per_node, len(self.device_types)).astype(np.int64)

    @cached_property
    def says(self) -> tuple[bool, bool]:
        """Whether any node says how many processors it has, and how much memory."""
        return any(host.cpus for host in self.hosts), any(host.memory_bytes for host in self.hosts)

    def compact(self, num_devices: int, kind: int) -> tuple[int, ...]:
        """Devices on each node when so many of a type, by its index, lie on as few nodes as can hold them."""
        whole, rest = divmod(num_devices, self._largest_nodes[kind])
        return (self._largest_nodes[kind],) * whole + ((rest,) if rest else ())

    @cached_property
    def _largest_nodes(self) -> tuple[int, ...]:
        """Devices of the largest node of every type, whether it can be used or not."""
        hosts = self.hosts
        return tuple(max(h.num_devices for h in hosts if h.device_type == kind) for kind in self.device_types)

    def type_bits(self, names: Sequence[str]) -> int:
        """Device types as bits, by their index; no names are all types. Types that no node has are left out."""
        if not names:
            return -1
        return sum(1 << self.device_types.index(name) for name in set(names) & set(self.device_types))

    def require_one_type(self, who: str) -> None:
        """Refuse, in the name of a policy that takes all devices for equal, a cluster where they are not.

        Raises
        ------
        FleetError
            If there are several types of devices.
        """
        if len(self.device_types) > 1:
            raise FleetError(
                f"{who} is for devices of one type; cluster {self.name!r} has {', '.join(self.device_types)}"
            )

    def type_index(self, name: str) -> int:
        """Index of a device type.

        Raises
        ------
        FleetError
            If no node has it.
        """
        if name not in self.device_types:
            raise FleetError(
                f"cluster {shown(self.name)} has no devices of type {shown(name)}; it has {', '.join(self.device_types)}"
            )
        return self.device_types.index(name)


def _pool(rack: str, part: str, whole: str) -> list[Host]:
    """The nodes of a pool, as it is written; ``rack`` is how the names of its racks begin.

    Raises
    ------
    FleetError
        If it is not written so; ``whole`` is all that was given.
    """
    found = _POOL.fullmatch(part)
    if found is None:
        raise FleetError(
            f"cluster {shown(whole)}: {shown(part)} is not {_FORM}; write for example 16x4 or 2x8xV100+4x4xK80"
        )
    cpus = memory_bytes = 0.0
    per_rack = 0
    parts = [] if found[4] is None else found[4].split(",")
    for more in parts:
        if number := _CPUS.fullmatch(more):
            cpus = float(number[1])
        elif number := _MEMORY.fullmatch(more):
            memory_bytes = float(number[1]) * _BYTES[number[2]]
        elif number := _RACK.fullmatch(more):
            per_rack = int(number[1])
        else:
            raise FleetError(
                f"cluster {shown(whole)}: {shown(more)} is none of 24cpu, 500GB (or 466GiB) and 4/rack, with numbers "
                f"above 0; a pool is {_FORM}"
            )
    if len({part.lstrip("0123456789.").replace("GiB", "GB") for part in parts}) < len(parts):
        raise FleetError(
            f"cluster {shown(whole)}: {shown(part)} says something twice; keep one of each; a pool is {_FORM}"
        )
    if int(found[1]) * int(found[2]) > MOST_DEVICES:
        raise FleetError(
            f"cluster {shown(whole)}: a cluster has at most {MOST_DEVICES:,} devices, got {found[1]} nodes of {found[2]}"
        )
    host = Host(found[3] or "device", int(found[2]), cpus, memory_bytes)
    return [replace(host, rack=f"{rack}.{n // per_rack}" if per_rack else "") for n in range(int(found[1]))]

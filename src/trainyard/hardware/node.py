"""A node: one machine with its devices, and what its host has beside them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trainyard.hardware.devices import DeviceSpec, NamedDevice
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.topology import NodeTopology

__all__ = ["Node"]


@dataclass(frozen=True)
class Node:
    """One machine.

    Parameters
    ----------
    topology
        The inside of the node; None where only the names of its devices are known.
    devices
        One for each place of the topology.
    cpus, memory_bytes
        Processors and memory of its host; 0 where nothing is said of them.
    rack
        Name of its rack; nodes of one rack are near to each other.
    """

    topology: NodeTopology | None
    devices: tuple[DeviceSpec | NamedDevice, ...]
    cpus: float = 0.0
    memory_bytes: float = 0.0
    rack: str = ""

    def __post_init__(self) -> None:
        if self.topology is not None and len(self.devices) != self.topology.num_devices:
            raise HardwareError(
                f"node {self.topology.name!r} has {self.topology.num_devices} places and "
                f"{len(self.devices)} devices; "
                "give one device for each place"
            )

    @classmethod
    def named(
        cls, device_type: str, num_devices: int, cpus: float = 0.0, memory_bytes: float = 0.0, rack: str = ""
    ) -> Node:
        """A node of which no more is known than the name and the number of its devices, and its host."""
        return cls(None, (NamedDevice(device_type),) * num_devices, cpus, memory_bytes, rack)

    @property
    def num_devices(self) -> int:
        """Number of its devices."""
        return len(self.devices)

    @cached_property
    def device_type(self) -> str:
        """Name of all its devices; empty where it has none.

        Raises
        ------
        HardwareError
            If they are of several types.
        """
        names = dict.fromkeys(device.name for device in self.devices)
        if len(names) > 1:
            raise HardwareError(
                f"a node has devices of several types, {', '.join(names)}; to run many jobs, each type needs nodes of "
                "its own"
            )
        return next(iter(names), "")

    def describe(self) -> str:
        """Return a line for people: the number of devices, the topology and its slowest link."""
        if self.topology is None:
            return f"node of {self.num_devices}"
        slowest = min(self.topology.links, key=lambda link: link.bandwidth_bytes_per_s, default=None)
        line = f"node of {self.num_devices}: {self.topology.name}"
        if slowest is None:
            return line
        return f"{line}, slowest link {slowest.name} {slowest.bandwidth_bytes_per_s / 1e9:.3g} GB/s"

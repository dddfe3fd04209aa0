"""What machines are: devices, links, clusters, presets, measuring this one."""

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DTYPES, DeviceSpec, Efficiency, NamedDevice
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING, Fabric
from trainyard.hardware.interconnects import INTERCONNECTS, Interconnect, interconnect_named
from trainyard.hardware.local import cluster_of_profile, local_cluster, local_profile
from trainyard.hardware.overhead import NO_OVERHEAD, MemoryOverhead
from trainyard.hardware.parse import parse_cluster
from trainyard.hardware.presets import DEVICES, NODE_PRESETS, device_named, node_topology
from trainyard.hardware.profile import CollectiveSample, MachineProfile, MatmulSample, MemorySample
from trainyard.hardware.remembered import forget_measurements
from trainyard.hardware.topology import NETWORK, Edge, Link, NodeTopology

__all__ = [
    "DEVICES",
    "DTYPES",
    "INTERCONNECTS",
    "NETWORK",
    "NODE_PRESETS",
    "NON_BLOCKING",
    "NO_OVERHEAD",
    "Cluster",
    "CollectiveSample",
    "DeviceSpec",
    "Edge",
    "Efficiency",
    "Fabric",
    "HardwareError",
    "Interconnect",
    "Link",
    "MachineProfile",
    "MatmulSample",
    "MemoryOverhead",
    "MemorySample",
    "NamedDevice",
    "Node",
    "NodeTopology",
    "cluster_of_profile",
    "device_named",
    "forget_measurements",
    "interconnect_named",
    "local_cluster",
    "local_profile",
    "node_topology",
    "parse_cluster",
]

"""What a node of each kind looks like inside: NVSwitch, V100's hybrid cube mesh, PCIe trees, tori."""

from __future__ import annotations

from trainyard.hardware.errors import HardwareError
from trainyard.hardware.interconnects import INTERCONNECTS, Interconnect
from trainyard.hardware.topology import NETWORK, Edge, Link, NodeTopology

__all__ = [
    "CUBE_MESH_LINKS",
    "cube_mesh_node",
    "pcie_node",
    "shared_memory_node",
    "switched_node",
    "torus_node",
]

CUBE_MESH_LINKS: dict[tuple[int, int], int] = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip
"""NVLinks between pairs of GPUs of a DGX-1V, six a GPU (NVIDIA DGX-1 with Tesla V100 whitepaper)."""


class _Wiring:
    """Collects links and the edges that cross them."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.edges: list[Edge] = []

    def one_way(self, source: str, target: str, link: Link) -> None:
        self.links.append(link)
        self.edges.append(Edge(source, target, len(self.links) - 1))

    def both_ways(
        self, source: str, target: str, kind: Interconnect, latency_share: float, width: int = 1
    ) -> None:
        for start, stop in ((source, target), (target, source)):
            link = kind.link(f"{start}->{stop} {kind.name}", latency_share)
            self.one_way(start, stop, Link(link.name, link.bandwidth_bytes_per_s * width, link.latency_s))

    def nics(self, attach: list[str], num_nics: int, kind: Interconnect) -> None:
        """NICs shared evenly by the vertices of `attach`; each end of a path has half of the network's "
        "latency."""
        for nic in range(num_nics):
            # Two vertices for a NIC: nothing turns round in it without leaving the node.
            self.one_way(f"nic{nic}.out", NETWORK, kind.link(f"nic{nic}->network {kind.name}", 0.5))
            self.one_way(NETWORK, f"nic{nic}.in", kind.link(f"network->nic{nic} {kind.name}", 0.5))
        for position, vertex in enumerate(attach):
            nic_name = f"nic{position * num_nics // len(attach)}"
            self.edges.append(Edge(vertex, f"{nic_name}.out", -1))
            self.edges.append(Edge(f"{nic_name}.in", vertex, -1))

    def node(self, name: str, num_devices: int) -> NodeTopology:
        return NodeTopology(name, num_devices, tuple(self.links), tuple(self.edges))


def _gpus(num_devices: int) -> list[str]:
    return [f"gpu{i}" for i in range(num_devices)]


def switched_node(num_devices: int, kind: Interconnect, num_nics: int, network: Interconnect) -> NodeTopology:
    """Every device on a non-blocking switch (NVSwitch): one link in and one out for each.

    Parameters
    ----------
    num_devices
        Devices of the node.
    kind
        All links of one device to the switch together.
    num_nics, network
        NICs of the node, shared evenly by its devices, and their kind.

    Returns
    -------
    NodeTopology
        The node.
    """
    wiring = _Wiring()
    if num_devices > 1:
        for gpu in _gpus(num_devices):
            wiring.both_ways(gpu, "switch", kind, 0.5)
    wiring.nics(_gpus(num_devices), num_nics, network)
    return wiring.node(f"{kind.name} switch", num_devices)


def cube_mesh_node(num_devices: int, num_nics: int, network: Interconnect) -> NodeTopology:
    """The first devices of a DGX-1V: NVLinks straight between GPUs, none between some pairs.

    Parameters
    ----------
    num_devices
        1 to 8.
    num_nics, network
        NICs of the node and their kind.

    Returns
    -------
    NodeTopology
        The node; GPUs without a link between them reach each other through a neighbour.

    Raises
    ------
    HardwareError
        If there are more than 8 devices.
    """
    if num_devices > 8:
        raise HardwareError(
            f"a hybrid cube mesh of {num_devices} GPUs; allowed: 1 to 8; use switched_node for more"
        )
    wiring = _Wiring()
    for (a, b), width in CUBE_MESH_LINKS.items():
        if max(a, b) < num_devices:
            wiring.both_ways(f"gpu{a}", f"gpu{b}", INTERCONNECTS["NVLink2"], 1.0, width)
    wiring.nics(_gpus(num_devices), num_nics, network)
    return wiring.node("hybrid cube mesh", num_devices)


def pcie_node(num_devices: int, kind: Interconnect, num_nics: int, network: Interconnect) -> NodeTopology:
    """Pairs of devices on PCIe switches, up to four devices a socket, two sockets, NICs on the first.

    Two devices of a pair share one slot's bandwidth to the root complex, and everything between sockets
    shares one inter-socket link: the bottlenecks of commodity servers.

    Parameters
    ----------
    num_devices
        Devices of the node.
    kind
        Generation of PCIe.
    num_nics, network
        NICs of the node and their kind.

    Returns
    -------
    NodeTopology
        The node.
    """
    wiring = _Wiring()
    num_switches = (num_devices + 1) // 2
    num_sockets = 1 if num_devices <= 4 else 2
    for i, gpu in enumerate(_gpus(num_devices)):
        wiring.both_ways(gpu, f"pcie{i // 2}", kind, 0.5)
    for switch in range(num_switches):
        wiring.both_ways(f"pcie{switch}", f"root{switch * num_sockets // num_switches}", kind, 0.0)
    if num_sockets == 2:
        wiring.both_ways("root0", "root1", INTERCONNECTS["QPI"], 1.0)
    # A single NIC has a slot of its own; several sit beside the devices, on the switches.
    attach = ["root0"] if num_nics == 1 else [f"pcie{switch}" for switch in range(num_switches)]
    wiring.nics(attach, num_nics, network)
    return wiring.node(f"{kind.name} tree", num_devices)


def torus_node(num_devices: int, kind: Interconnect, num_nics: int, network: Interconnect) -> NodeTopology:
    """A two-dimensional torus, as square as the number of devices allows.

    Parameters
    ----------
    num_devices
        Devices of the node.
    kind
        One link between neighbours.
    num_nics, network
        NICs of the node and their kind.

    Returns
    -------
    NodeTopology
        The node.
    """
    rows = max(r for r in range(1, int(num_devices**0.5) + 1) if num_devices % r == 0)
    columns = num_devices // rows
    wiring = _Wiring()
    pairs: dict[tuple[int, int], int] = {}
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            for other in (row * columns + (column + 1) % columns, (row + 1) % rows * columns + column):
                if other != here:
                    pair = (min(here, other), max(here, other))
                    pairs[pair] = (
                        pairs.get(pair, 0) + 1
                    )  # a side of two wraps onto the same neighbour: two links
    for (a, b), width in pairs.items():
        wiring.both_ways(f"gpu{a}", f"gpu{b}", kind, 1.0, width)
    wiring.nics(_gpus(num_devices), num_nics, network)
    return wiring.node(f"{rows}x{columns} torus", num_devices)


def shared_memory_node(num_processes: int, bandwidth_bytes_per_s: float, latency_s: float) -> NodeTopology:
    """Processes of one machine: everything they send crosses the same memory.

    Parameters
    ----------
    num_processes
        Processes.
    bandwidth_bytes_per_s, latency_s
        Of one message between two of them.

    Returns
    -------
    NodeTopology
        The node, with a single link and no network.
    """
    wiring = _Wiring()
    wiring.links.append(Link("shared memory", bandwidth_bytes_per_s, latency_s))
    for gpu in _gpus(num_processes):
        wiring.edges.append(Edge(gpu, "memory", 0))
        wiring.edges.append(Edge("memory", gpu, -1))
    return wiring.node("shared memory", num_processes)

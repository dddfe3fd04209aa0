"""Published devices and the nodes they usually come in.

Peaks are of the datasheets, dense. The reached fraction of memory bandwidth is measured in [1]_ and [2]_ up
to T4 and V100. The ceiling of matrix products is 0.74 on V100 [3]_. Everything marked *assumed* in a source
is a round number, not a measurement; measure the machine and write a YAML file where it matters. What memory holds
beside tensors is in `_HELD`; TPUs have none there, since PyTorch does not say it for them.

References
----------
.. [1] Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv 1804.06826.
.. [2] Jia et al., "Dissecting the NVIDIA Turing T4 GPU via Microbenchmarking", arXiv 1903.07486.
.. [3] Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", IPDPSW 2018.
.. [4] Jouppi et al., "A Domain-Specific Supercomputer for Training Deep Neural Networks", CACM 2020 (TPU v3).
.. [5] MooreThreads, SimuMax v1.2, ``b200`` system: times of 514 products of training. Of those of more than 1e12 flops
   the median reaches 0.49 of the peak forward, 0.49 and 0.47 backward; smaller ones reach up to 0.65.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.errors import HardwareError, unknown_name
from trainyard.hardware.interconnects import INTERCONNECTS, Interconnect
from trainyard.hardware.nodes import cube_mesh_node, pcie_node, switched_node, torus_node
from trainyard.hardware.overhead import NO_OVERHEAD, MemoryOverhead
from trainyard.hardware.topology import NodeTopology

__all__ = [
    "DEVICES",
    "NODE_PRESETS",
    "NodePreset",
    "device_named",
    "find_device",
    "gpu_overhead",
    "node_topology",
    "unknown_device",
]

_GIB = 2**30
# One wave of thread blocks fills and drains in about 4 us on large GPUs, and memory takes about 2 us to
# saturate.
# Assumed for all devices: it sets the sizes at which half of a ceiling is reached.
_MATMUL_RAMP_S = 4e-6
_MEMORY_RAMP_S = 2e-6

_MIB = 2**20
# Collectives and sends among the GPUs of one node, as NCCL 2.19 to 2.29 logs them: by NVLinks, or PCIe.
_PCIE_CHANNELS, _NVLINK2_CHANNELS, _NVLINK3_CHANNELS, _NVLINK5_CHANNELS = (2, 2), (12, 16), (24, 32), (32, 32)
# GiB that PyTorch says a GPU has ("has a total capacity of"), the least that is often reported; GiB that a process has
# beside what PyTorch's allocator holds, the usual with CUDA 11.8 and later; MiB of cuBLAS's workspace, which is larger
# from Hopper on; channels.
_HELD = {
    "K80": (11.17, 0.30, 8.125, _PCIE_CHANNELS),  # context assumed
    "P100": (15.89, 0.30, 8.125, _PCIE_CHANNELS),  # context assumed
    "V100-16G": (15.77, 0.38, 8.125, _NVLINK2_CHANNELS),
    "V100-32G": (31.73, 0.38, 8.125, _NVLINK2_CHANNELS),
    "T4": (14.56, 0.12, 8.125, _PCIE_CHANNELS),
    "A100-40G": (39.38, 0.51, 8.125, _NVLINK3_CHANNELS),
    "A100-80G": (79.14, 0.51, 8.125, _NVLINK3_CHANNELS),
    "H100": (79.10, 0.51, 32.0, _NVLINK3_CHANNELS),
    "H200": (139.72, 0.51, 32.0, _NVLINK3_CHANNELS),
    "B200": (178.35, 0.51, 32.0, _NVLINK5_CHANNELS),  # context assumed
    "GB200": (184.3, 0.51, 32.0, _NVLINK5_CHANNELS),  # assumed: 0.7 below what nvidia-smi says
    "B300": (267.9, 0.51, 32.0, _NVLINK5_CHANNELS),  # assumed: 0.7 below what nvidia-smi says
    "GB300": (276.8, 0.51, 32.0, _NVLINK5_CHANNELS),  # assumed: 0.7 below what nvidia-smi says
    "A30": (23.50, 0.51, 8.125, _PCIE_CHANNELS),  # assumed
    "L40S": (44.40, 0.33, 8.125, _PCIE_CHANNELS),  # context as of L4
    "RTXPRO6000": (94.97, 0.51, 32.0, _PCIE_CHANNELS),  # context and workspace assumed
    "L4": (22.03, 0.33, 8.125, _PCIE_CHANNELS),
    "RTX4090": (23.52, 0.33, 8.125, _PCIE_CHANNELS),
}
# A channel has NCCL's default buffers (4 MiB for its protocol Simple, 4.7 for LL128, 0.5 for LL) on the side that
# receives and little on the side that sends, in units of 2 MiB: 10, 2 and 2. An all-to-all of 8 H100 takes 3.28 GB for
# 7 peers on 32 channels each: 14 MiB a channel (NVIDIA/nccl issue 1685).
_CHANNEL_BYTES = 14 * _MIB
# Of a communicator across nodes, to each peer and for each GPU of a node.
_NETWORK_CHANNELS = 2
# PyTorch packs tensors of up to 1 MiB into segments of 2 MiB, and those of up to 10 MiB into segments of 20 MiB.
_SEGMENT_BYTES = (2 + 20) * _MIB
# In 18 reports of memory that ran out, what is "reserved but unallocated" is 6 % of all in the median, up to a third. A
# replay of PyTorch's allocator over steps of GPT-2, GPT-3, BERT, ResNet and VGG needs 1 to 8 % more than the tensors of a
# step have at most, in the median 3 %, and 27 % in one of 14.
_FRAGMENTED_FRACTION = 0.05


def _overhead(name: str, memory_bytes: int) -> MemoryOverhead:
    if name not in _HELD:
        return NO_OVERHEAD
    reported_gib, context_gib, workspace_mib, (channels, peer_channels) = _HELD[name]
    return replace(
        gpu_overhead(channels, peer_channels),
        driver_bytes=memory_bytes - int(reported_gib * _GIB),
        context_bytes=int(context_gib * _GIB) + int(workspace_mib * _MIB),
    )


def gpu_overhead(channels: int = _PCIE_CHANNELS[0], peer_channels: int = _PCIE_CHANNELS[1]) -> MemoryOverhead:
    """Memory that PyTorch's allocator and NCCL hold on a GPU, beside driver and context.

    Parameters
    ----------
    channels, peer_channels
        As in `MemoryOverhead`; by default those of GPUs that are linked by PCIe.
    """
    return MemoryOverhead(
        channels=channels,
        peer_channels=peer_channels,
        network_channels=_NETWORK_CHANNELS,
        channel_bytes=_CHANNEL_BYTES,
        segment_bytes=_SEGMENT_BYTES,
        fragmented_fraction=_FRAGMENTED_FRACTION,
    )


def _device(
    name: str,
    memory_gib: float,
    peaks_tflops: dict[str, float],
    memory_gb_per_s: float,
    fractions: tuple[float, float],
    source: str,
    pcie: str,
    launch_s: float = 5e-6,
    sustained: float | None = None,
) -> DeviceSpec:
    """A device from datasheet units; `fractions` are the ceilings of matrix products and of memory."""
    peaks = {dtype: rate * 1e12 for dtype, rate in peaks_tflops.items()}
    fastest = max(peaks.get("float16", 0.0), peaks.get("bfloat16", 0.0), peaks["float32"])
    bandwidth = memory_gb_per_s * 1e9
    matmul, memory = fractions
    efficiency = Efficiency(
        *(matmul, fastest * matmul * _MATMUL_RAMP_S, memory, bandwidth * memory * _MEMORY_RAMP_S, sustained)
    )
    host = INTERCONNECTS[pcie]
    memory_bytes = int(memory_gib * _GIB)
    return DeviceSpec(
        name=name,
        memory_bytes=memory_bytes,
        peak_flops_per_s=peaks,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_s=launch_s,
        efficiency=efficiency,
        source=source,
        host_bandwidth_bytes_per_s=host.nominal_bytes_per_s * host.efficiency,
        overhead=_overhead(name, memory_bytes),
    )


def _blackwell(float32: float, tf32: float, float4: float) -> dict[str, float]:
    """Peaks of tensor units whose rate doubles with each halving of the format, but for that of 4 bits."""
    half = {"float16": 2 * tf32, "bfloat16": 2 * tf32}
    return {"float32": float32, "tf32": tf32, **half, "float8": 4 * tf32, "float4": float4}


_V100 = {"float32": 15.7, "float16": 125.0}
_A100 = {"float32": 19.5, "tf32": 156.0, "float16": 312.0, "bfloat16": 312.0}
_H100 = {"float32": 66.9, "tf32": 494.7, "float16": 989.4, "bfloat16": 989.4, "float8": 1978.9}
_B200 = _blackwell(75.0, 1125.0, 9000.0)
_GB200 = _blackwell(80.0, 1250.0, 10000.0)
_B300 = _blackwell(75.0, 1125.0, 13500.0)
_GB300 = _blackwell(80.0, 1250.0, 15000.0)
_RTX_PRO = _blackwell(126.0, 251.9, 2015.2)
_A30 = {"float32": 10.3, "tf32": 82.0, "float16": 165.0, "bfloat16": 165.0}
_L40S = {"float32": 91.6, "tf32": 183.0, "float16": 362.05, "bfloat16": 362.05, "float8": 733.0}
_L4 = {"float32": 30.3, "tf32": 60.0, "float16": 121.0, "bfloat16": 121.0, "float8": 242.5}
_4090 = {"float32": 82.6, "tf32": 82.6, "float16": 165.2, "bfloat16": 165.2, "float8": 330.3}
_V100_SOURCE = "NVIDIA V100 datasheet; memory [1], matrix products [3]"
_A100_SOURCE = "NVIDIA A100 datasheet (SXM4); ceilings assumed"
_HOPPER_SOURCE = (
    "NVIDIA {} datasheet (SXM5); ceilings assumed, matrix products below clock under the power limit"
)

DEVICES = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _device("K80", 12, {"float32": 4.37}, 240, (0.75, 0.775),
                    "NVIDIA K80 board, one of its two GPUs; memory [1]; products assumed", "PCIe3", 8e-6),
            _device("P100", 16, {"float32": 9.3, "float16": 18.7}, 732, (0.85, 0.70),
                    "NVIDIA P100 PCIe datasheet; memory [1]; products assumed", "PCIe3"),
            _device("V100-16G", 16, _V100, 900, (0.74, 0.83), _V100_SOURCE, "PCIe3"),
            _device("V100-32G", 32, _V100, 900, (0.74, 0.83), _V100_SOURCE, "PCIe3"),
            _device("T4", 16, {"float32": 8.1, "float16": 65.0}, 320, (0.60, 0.69),
                    "NVIDIA T4 datasheet; memory [2]; products assumed, power-limited [2]", "PCIe3"),
            _device("A100-40G", 40, _A100, 1555, (0.85, 0.88), _A100_SOURCE, "PCIe4"),
            _device("A100-80G", 80, _A100, 2039, (0.85, 0.88), _A100_SOURCE, "PCIe4"),
            _device("H100", 80, _H100, 3350, (0.72, 0.90), _HOPPER_SOURCE.format("H100"), "PCIe5"),
            _device("H200", 141, _H100, 4800, (0.72, 0.90), _HOPPER_SOURCE.format("H200"), "PCIe5"),
            _device("B200", 180, _B200, 8000, (0.72, 0.90),
                    "NVIDIA HGX B200 datasheet, an eighth; ceilings assumed, sustained products measured [5]", "PCIe5",
                    sustained=0.49),
            _device("GB200", 186, _GB200, 8000, (0.72, 0.90),
                    "NVIDIA GB200 NVL72 datasheet, a 72nd; ceilings assumed, host memory as by PCIe", "PCIe5"),
            _device("B300", 270, _B300, 8000, (0.72, 0.90),
                    "NVIDIA HGX B300 datasheet, an eighth; ceilings assumed", "PCIe5"),
            _device("GB300", 279, _GB300, 8000, (0.72, 0.90),
                    "NVIDIA GB300 NVL72 datasheet, a 72nd; ceilings assumed, host memory as by PCIe", "PCIe5"),
            _device("A30", 24, _A30, 933, (0.85, 0.88), "NVIDIA A30 datasheet; ceilings assumed", "PCIe4"),
            _device("L40S", 48, _L40S, 864, (0.75, 0.88), "NVIDIA L40S datasheet; ceilings assumed", "PCIe4"),
            _device("RTXPRO6000", 96, _RTX_PRO, 1792, (0.85, 0.90),
                    "NVIDIA RTX PRO Blackwell whitepaper, RTX PRO 6000 Workstation Edition at its boost clock; the "
                    "Server Edition has the same chip at lower clocks; ceilings assumed", "PCIe5"),
            _device("L4", 24, _L4, 300, (0.60, 0.85), "NVIDIA L4 datasheet; ceilings assumed", "PCIe4"),
            _device("RTX4090", 24, _4090, 1008, (0.85, 0.90),
                    "NVIDIA Ada whitepaper, 32-bit accumulation; ceilings assumed", "PCIe4"),
            _device("TPUv3", 32, {"float32": 20.5, "bfloat16": 123.0}, 900, (0.85, 0.85),
                    "TPU v3 chip [4]; float32 is six bfloat16 passes; ceilings assumed", "PCIe3", 2e-6),
        )
    }
)  # fmt: skip
"""Known devices by name."""

UNNAMED_DEVICE = "device"
"""Device type of a cluster that names none, such as ``16x8``."""


def device_named(name: str) -> DeviceSpec:
    """Look a device up; capitals do not matter.

    Parameters
    ----------
    name
        A key of `DEVICES`.

    Returns
    -------
    DeviceSpec
        The device.

    Raises
    ------
    HardwareError
        If the name is not known; the message lists those that are.
    """
    if (spec := find_device(name)) is None:
        raise unknown_device(name)
    return spec


def unknown_device(name: str) -> HardwareError:
    """The error where it matters how fast a device is of which only the name is known."""
    advice = "or describe your own in a YAML file, such as `trainyard hardware --yaml` writes"
    if name == UNNAMED_DEVICE:
        return HardwareError(
            "the cluster names no device type; name one, as NODESxDEVICESxTYPE such as 1x8xA100-80G; "
            f"known: {', '.join(sorted(DEVICES))}; {advice}"
        )
    return unknown_name("device", name, DEVICES, advice)


def find_device(name: str) -> DeviceSpec | None:
    """The same, and None for a name that is not known."""
    return next((spec for known, spec in DEVICES.items() if known.lower() == name.lower()), None)


@dataclass(frozen=True)
class NodePreset:
    """The node that a device usually comes in.

    Parameters
    ----------
    build
        From the number of devices, of NICs, and the network to the node.
    num_devices
        Devices of a full node.
    num_nics
        NICs of a full node; a smaller one has proportionally fewer, at least one.
    network
        Name of the usual network, a key of `INTERCONNECTS`.
    source
        A machine of that kind.
    """

    build: Callable[[int, int, Interconnect], NodeTopology]
    num_devices: int
    num_nics: int
    network: str
    source: str


def _switched(kind: str) -> Callable[[int, int, Interconnect], NodeTopology]:
    return lambda devices, nics, network: switched_node(devices, INTERCONNECTS[kind], nics, network)


def _pcie(kind: str) -> Callable[[int, int, Interconnect], NodeTopology]:
    return lambda devices, nics, network: pcie_node(devices, INTERCONNECTS[kind], nics, network)


def _v100(num_devices: int, num_nics: int, network: Interconnect) -> NodeTopology:
    if num_devices <= 8:
        return cube_mesh_node(num_devices, num_nics, network)
    return switched_node(num_devices, INTERCONNECTS["NVSwitch1"], num_nics, network)


def _torus(num_devices: int, num_nics: int, network: Interconnect) -> NodeTopology:
    return torus_node(num_devices, INTERCONNECTS["ICI-v3"], num_nics, network)


_V100_NODE = NodePreset(_v100, 8, 4, "InfiniBand-100Gb", "NVIDIA DGX-1V; DGX-2 beyond 8 GPUs")
_A100_NODE = NodePreset(_switched("NVLink3"), 8, 8, "InfiniBand-200Gb", "NVIDIA DGX A100")
_H100_NODE = NodePreset(_switched("NVLink4"), 8, 8, "InfiniBand-400Gb", "NVIDIA DGX H100 and H200")
# All GPUs of a rack are on one NVLink switch, whatever host they belong to.
_NVL72_NODE = NodePreset(
    _switched("NVLink5"), 72, 72, "InfiniBand-400Gb", "NVIDIA GB200 and GB300 NVL72 rack"
)

NODE_PRESETS = MappingProxyType(
    {
        "K80": NodePreset(_pcie("PCIe3"), 8, 1, "Ethernet-10Gb", "Amazon p2.8xlarge"),
        "P100": NodePreset(_pcie("PCIe3"), 4, 1, "Ethernet-25Gb", "four-GPU PCIe server"),
        "V100-16G": _V100_NODE,
        "V100-32G": _V100_NODE,
        "T4": NodePreset(_pcie("PCIe3"), 4, 1, "Ethernet-25Gb", "Amazon g4dn.12xlarge"),
        "A100-40G": _A100_NODE,
        "A100-80G": _A100_NODE,
        "H100": _H100_NODE,
        "H200": _H100_NODE,
        "B200": NodePreset(_switched("NVLink5"), 8, 8, "InfiniBand-400Gb", "NVIDIA DGX B200"),
        "GB200": _NVL72_NODE,
        "B300": NodePreset(
            _switched("NVLink5"), 8, 8, "InfiniBand-400Gb", "NVIDIA DGX B300; half of its 800 Gb/s a GPU"
        ),
        "GB300": _NVL72_NODE,
        "A30": NodePreset(_pcie("PCIe4"), 8, 1, "Ethernet-25Gb", "eight-GPU PCIe server"),
        "L40S": NodePreset(_pcie("PCIe4"), 8, 1, "Ethernet-25Gb", "eight-GPU PCIe server"),
        "RTXPRO6000": NodePreset(_pcie("PCIe5"), 8, 1, "Ethernet-25Gb", "eight-GPU PCIe server"),
        "L4": NodePreset(_pcie("PCIe4"), 8, 1, "Ethernet-25Gb", "Google g2-standard-96"),
        "RTX4090": NodePreset(_pcie("PCIe4"), 8, 1, "Ethernet-25Gb", "eight-GPU PCIe server"),
        "TPUv3": NodePreset(
            _torus, 4, 1, "InfiniBand-100Gb", "Cloud TPU v3-8 host; network of the hosts assumed"
        ),
    }
)
"""Usual nodes by device name."""


def node_topology(
    device_name: str, num_devices: int, network: Interconnect | None = None, num_nics: int | None = None
) -> NodeTopology:
    """The usual node of a device.

    Parameters
    ----------
    device_name
        A key of `NODE_PRESETS`.
    num_devices
        Devices in the node.
    network
        Kind of its NICs; the usual one if not given.
    num_nics
        Number of NICs; if not given, one where the network was given, otherwise the usual number.

    Returns
    -------
    NodeTopology
        The node.

    Raises
    ------
    HardwareError
        If the device is not known or a number is not allowed.
    """
    if device_name not in NODE_PRESETS:
        raise unknown_name("node of device", device_name, NODE_PRESETS, "describe the node in a YAML file")
    if num_devices < 1 or (num_nics is not None and num_nics < 1):
        raise HardwareError(
            f"a node of {num_devices} devices and {num_nics} NICs; allowed: at least one of each"
        )
    preset = NODE_PRESETS[device_name]
    if num_nics is None:
        usual = max(1, -(-preset.num_nics * num_devices // preset.num_devices))
        num_nics = 1 if network is not None else usual
    return preset.build(num_devices, num_nics, network or INTERCONNECTS[preset.network])

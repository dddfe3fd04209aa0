"""Published interconnects: nominal bandwidth, the share of it that payload gets, and latency.

Latencies of GPU interconnects are NCCL's own constants for one step of a ring with the protocol of large
messages (3.4 us over NVLink, 5.7 us over PCIe, 14 us over InfiniBand [1]_), so they include the
synchronisation of two GPUs and are larger than those of the bare wire.

References
----------
.. [1] NVIDIA, NCCL 2.18 source, `hwLat` in `src/graph/tuning.cc`.
.. [2] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023,
   Table 1
   and the published profiles: 46 us/MB on one NVLink2, 8 us/MB through a DGX-2 NVSwitch.
.. [3] Alibaba, SimAI, bus-bandwidth ratio tables: 0.74 to 0.78 of NVLink behind NVSwitch on messages of 1 to
   8 GB,
   0.90 to 0.95 of the NIC.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from trainyard.hardware.errors import HardwareError, unknown_name
from trainyard.hardware.topology import Link

__all__ = ["INTERCONNECTS", "Interconnect", "interconnect_named", "network_of_gbit"]


@dataclass(frozen=True)
class Interconnect:
    """A kind of wire, before it is put between two particular things.

    Parameters
    ----------
    name
        Name, e.g. ``"NVLink3"``.
    nominal_bytes_per_s
        Bandwidth on the datasheet, one direction: of one link (NVLink2), of all links of one GPU (NVSwitch
        and NVLink3 to 5), of a x16 slot (PCIe), or of one port (networks).
    efficiency
        Fraction of it that payload reaches, in (0, 1].
    latency_s
        Seconds of one step across it.
    source
        Where the numbers come from.
    """

    name: str
    nominal_bytes_per_s: float
    efficiency: float
    latency_s: float
    source: str

    def link(self, name: str, latency_share: float = 1.0) -> Link:
        """One direction of this wire as a link.

        Parameters
        ----------
        name
            Name of the link.
        latency_share
            Fraction of the latency to put on it: a path through a switch is two links, each with half.

        Returns
        -------
        Link
            With the reached bandwidth.
        """
        return Link(name, self.nominal_bytes_per_s * self.efficiency, self.latency_s * latency_share)


_PCIE = "PCI-SIG base specification {}, x16; 80% is payload after packet headers; latency: NCCL [1]"
_NVSWITCH = "NVIDIA {} whitepaper; payload share 0.75 from SimAI's NVLink ratios [3]; latency: NCCL [1]"
_ETHERNET = "IEEE 802.3; 90% is payload over TCP; latency of a kernel TCP stack, 25 us (assumed)"
_INFINIBAND = "InfiniBand trade association roadmap; 92% reached, SimAI's NIC ratios [3]; latency: NCCL [1]"

INTERCONNECTS = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            Interconnect("PCIe3", 15.75e9, 0.80, 5.7e-6, _PCIE.format("3.0")),
            Interconnect("PCIe4", 31.5e9, 0.80, 5.7e-6, _PCIE.format("4.0")),
            Interconnect("PCIe5", 63.0e9, 0.80, 5.7e-6, _PCIE.format("5.0")),
            Interconnect(
                "QPI", 19.2e9, 0.50, 1.0e-6, "Intel QPI 9.6 GT/s; half is reached between GPUs (assumed)"
            ),
            Interconnect(
                "NVLink2", 25e9, 0.88, 3.4e-6, "NVIDIA V100 whitepaper; 46 us/MB in TACCL [2]; NCCL [1]"
            ),
            Interconnect(
                "NVSwitch1", 150e9, 0.85, 3.4e-6, "NVIDIA DGX-2 datasheet; 8 us/MB in TACCL [2]; NCCL [1]"
            ),
            Interconnect("NVLink3", 300e9, 0.75, 3.4e-6, _NVSWITCH.format("A100")),
            Interconnect("NVLink4", 450e9, 0.75, 3.4e-6, _NVSWITCH.format("H100")),
            Interconnect("NVLink5", 900e9, 0.75, 3.4e-6, _NVSWITCH.format("Blackwell")),
            Interconnect(
                "ICI-v3", 82e9, 0.90, 1.0e-6, "Google Cloud TPU v3: 656 Gb/s a link; 90% and 1 us assumed"
            ),
            Interconnect("Ethernet-10Gb", 1.25e9, 0.90, 25e-6, _ETHERNET),
            Interconnect("Ethernet-25Gb", 3.125e9, 0.90, 25e-6, _ETHERNET),
            Interconnect("InfiniBand-100Gb", 12.5e9, 0.92, 14e-6, _INFINIBAND + "; EDR"),
            Interconnect("InfiniBand-200Gb", 25e9, 0.92, 14e-6, _INFINIBAND + "; HDR"),
            Interconnect("InfiniBand-400Gb", 50e9, 0.92, 14e-6, _INFINIBAND + "; NDR"),
        )
    }
)
"""Known interconnects by name."""


def interconnect_named(name: str) -> Interconnect:
    """Look an interconnect up.

    Raises
    ------
    HardwareError
        If the name is not known; the message lists those that are.
    """
    if name not in INTERCONNECTS:
        raise unknown_name("interconnect", name, INTERCONNECTS, "or write the links into a YAML file")
    return INTERCONNECTS[name]


def network_of_gbit(gbit_per_s: float) -> Interconnect:
    """Network whose ports have a given rate: Ethernet below 100 Gb/s, InfiniBand (or RoCE) from there on.

    Parameters
    ----------
    gbit_per_s
        Rate of one port in gigabits (1e9 bits) per second.

    Returns
    -------
    Interconnect
        A known one where the rate is a usual one, otherwise one with the same efficiency and latency as its
        family.

    Raises
    ------
    HardwareError
        If the rate is not more than zero.
    """
    if not gbit_per_s > 0:
        raise HardwareError(f"network rate is {gbit_per_s} Gb/s; allowed: more than zero, e.g. 100Gb")
    family = "InfiniBand" if gbit_per_s >= 100 else "Ethernet"
    name = f"{family}-{gbit_per_s:g}Gb"
    if name in INTERCONNECTS:
        return INTERCONNECTS[name]
    like = INTERCONNECTS["InfiniBand-100Gb" if family == "InfiniBand" else "Ethernet-10Gb"]
    return Interconnect(name, gbit_per_s / 8 * 1e9, like.efficiency, like.latency_s, like.source)

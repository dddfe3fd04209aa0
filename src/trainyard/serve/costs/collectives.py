"""Collectives of a server's devices in one node: NCCL's rings by protocol, and the servers' own all-reduce.

A step of a ring costs a latency that depends on NCCL's protocol. LL sends flags beside the data: small messages are fast,
and half of the bytes are flags. LL128 needs NVLink. Simple synchronises for every piece and has the full bandwidth. The
bandwidth of a ring on the node's links is that of `trainyard.cost.collectives`; there, PCIe reaches 80 % of its nominal
rate, which is one direction alone. In a ring every card sends and receives at once, and a CPU cuts what cards exchange
into packets of 64 bytes: 63 % remain. Cards without peer-to-peer pass all data through memory of the host.

Servers of devices that are fully connected by NVLink, or of two cards with peer-to-peer, read the partial sums of all
others in one kernel, with a barrier before and after. The faster one of the two is taken, as thresholds of servers are
tuned for it.

Fidelity: NCCL's trees, channels, and NVLink SHARP are left out. Groups over several nodes, measured machines and other
links than NVLink and PCIe have the times of `trainyard.cost.collectives`. Whether cards reach each other depends on
the host. Here GeForce cards do not, as their driver has no peer-to-peer; nor do one or two RTX PRO cards of a node,
which are taken for a workstation whose slots are at the CPU. Nodes of more of them are servers, whose cards do.

References
----------
NCCL 2.27, `src/graph/tuning.cc` (`baseLatencies`, `hwLatencies`, `llMaxBws`, factors of LL and LL128),
`src/graph/topo.h` (`PCI_BW`: 12 GB/s of PCIe 3.0; `INTEL_P2P_OVERHEAD`: 6/5) and `src/graph/paths.cc`
(`ncclTopoCheckP2p`: through an Intel host bridge, no peer-to-peer; where the driver has none, shared memory).
vLLM 0.11, `csrc/custom_all_reduce.cuh` (one stage and two stages) and
`vllm/distributed/device_communicators/custom_all_reduce.py` (more than two cards only with NVLink).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trainyard.cost.collectives import collective_costs
from trainyard.hardware.cluster import Cluster

__all__ = ["NodeCollectives"]


class _Protocol(NamedTuple):
    """A protocol of NCCL's ring: seconds of a call and of each step, and the share of the bandwidth that data gets."""

    base_s: float
    step_s: float
    share: float
    most_bytes_per_s: float = float("inf")


_LL_BYTES_PER_S = 141e9  # `llMaxBws` of Hopper, in one node
_NVLINK = (
    _Protocol(6.6e-6, 0.6e-6, 1 / 2, _LL_BYTES_PER_S),
    _Protocol(14.0e-6, 1.9e-6, 120 / 128),
    _Protocol(8.4e-6, 3.4e-6, 1.0),
)
_PCIE_SHARE = 12.0 / (6 / 5) / 15.75 / 0.80
"""Bandwidth of cards that exchange data, relative to that of one direction: `PCI_BW` by `INTEL_P2P_OVERHEAD`."""
_PCIE = (
    _Protocol(6.6e-6, 1.0e-6, _PCIE_SHARE / 2, _LL_BYTES_PER_S),
    _Protocol(8.4e-6, 5.7e-6, _PCIE_SHARE),
)
_HOST_SHARE, _HOST_STEP_S = 0.243 / 0.80, 7e-6
"""Through memory of the host, of the all-reduce of two RTX PRO 6000 (aiconfigurator-core 0.12.0, `comm/vllm/0.19.0`):
15.3 GB/s of the 63 GB/s of PCIe 5.0 at 1 GiB, and 20.5 us at 16 KiB, of which 6.6 us are not in its two steps. That
table is of a machine with two cards; the newer one (0.24.0) is of one with eight, which has peer-to-peer.
"""
_HOST = (_Protocol(6.6e-6, _HOST_STEP_S, _HOST_SHARE),)
_MOST_OF_WORKSTATION = 2  # cards
_BARRIER_S = 0.6e-6  # a flag across NVLink, as one step of LL; across PCIe, 1 us
_MOST_OF_ONE_KERNEL = 8
_PROBE_BYTES = 2.0**30


@dataclass(frozen=True)
class NodeCollectives:
    """Collectives of the first devices of a cluster.

    Attributes
    ----------
    cluster : its first devices are the group.
    num_devices : size of the group, 2 or more.
    kernel_s : seconds of a kernel that moves nothing.
    """

    cluster: Cluster
    num_devices: int
    kernel_s: float

    @property
    def is_known(self) -> bool:
        """Whether the group is in one node, on links that NCCL's constants are about."""
        last_node = int(self.cluster.node_of[self.num_devices - 1])
        return self.cluster.profile is None and last_node == 0 and bool(self._protocols)

    def all_reduce_s(self, num_bytes: float) -> float:
        """Seconds of an all-reduce of so many bytes on each device."""
        return min([self._ring_s(num_bytes, 2), *self._one_kernel_s(num_bytes)])

    def all_gather_s(self, num_bytes: float) -> float:
        """Seconds of an all-gather to so many bytes on each device."""
        return self._ring_s(num_bytes, 1)

    @cached_property
    def _s_per_byte(self) -> float:
        """Of an all-gather on a ring of these links, by the bytes of its result."""
        costs = collective_costs(self.cluster, "all_gather", range(self.num_devices), _PROBE_BYTES)
        return next(cost.moving_s for cost in costs if cost.algorithm == "ring") / _PROBE_BYTES

    @cached_property
    def _links(self) -> str:
        return " ".join(link.name for link in self.cluster.topologies[0].links)

    @property
    def _is_nvlink(self) -> bool:
        return "NVLink" in self._links or "NVSwitch" in self._links

    @cached_property
    def _protocols(self) -> tuple[_Protocol, ...]:
        if self._is_nvlink:
            return _NVLINK
        if "PCIe" not in self._links:
            return ()
        return _HOST if self._passes_host else _PCIE

    @property
    def _passes_host(self) -> bool:
        name, size = self.cluster.devices[0].name, len(self.cluster.nodes[0].devices)
        return name.startswith("RTX") and (not name.startswith("RTXPRO") or size <= _MOST_OF_WORKSTATION)

    def _ring_s(self, num_bytes: float, rounds: int) -> float:
        """Of a ring that all data goes round once (all-gather) or twice (all-reduce)."""
        num_steps = rounds * (self.num_devices - 1)
        sent_bytes = num_steps / self.num_devices * num_bytes

        def seconds(each: _Protocol) -> float:
            moving_s = rounds * self._s_per_byte * num_bytes / each.share
            return each.base_s + num_steps * each.step_s + max(moving_s, sent_bytes / each.most_bytes_per_s)

        return min(map(seconds, self._protocols))

    def _one_kernel_s(self, num_bytes: float) -> Iterator[float]:
        """Of the servers' own all-reduce in one stage and in two; nothing where it cannot be used."""
        size, is_connected = self.num_devices, self._is_nvlink and "switch" in self._links
        if size > _MOST_OF_ONE_KERNEL or (not is_connected and (size > 2 or self._passes_host)):
            return
        s_per_byte = self._s_per_byte * size / (size - 1)
        s_per_byte /= 1.0 if self._is_nvlink else _PCIE_SHARE
        barrier_s = _BARRIER_S if self._is_nvlink else 1.0e-6
        yield self.kernel_s + 2 * barrier_s + (size - 1) * num_bytes * s_per_byte
        yield self.kernel_s + 3 * barrier_s + 2 * (size - 1) / size * num_bytes * s_per_byte

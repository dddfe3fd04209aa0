"""Predicted kernel times: the roofline of a device, and collectives on its links.

Servers replay steps as CUDA graphs, so the host launches nothing between two kernels. What remains of a launch is the
time in which a kernel fills the device, which is part of the device's description, and the gap to the next kernel.

References
----------
A. Gray, "Getting Started with CUDA Graphs", NVIDIA technical blog, 2019: kernels of 2.9 us follow each other in 3.4 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainyard.cost.collectives import collective_cost
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.serve.costs.collectives import NodeCollectives
from trainyard.serve.costs.kernels import Attention, Experts, Product, StepGraph
from trainyard.serve.step_time import ATTENTION_BACKWARD

__all__ = ["PredictedKernels"]

Floats = NDArray[np.float64]

_BETWEEN_S = 0.5e-6  # two kernels of a recorded graph
_ACTIVATION_BYTES = 2  # servers keep 16 bits between products, whatever the weights are in


@dataclass(frozen=True)
class PredictedKernels:
    """Kernel times predicted from a device's description.

    Attributes
    ----------
    cluster : its first devices are the tensor-parallel group.
    num_devices : size of the group.
    weights : format of matrix products, as `trainyard.hardware.devices.DTYPES` names it.
    weight_bytes : bytes of a weight.
    cache_bytes : bytes of an element of the KV cache.
    """

    cluster: Cluster
    num_devices: int
    weights: str = "bfloat16"
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0

    @property
    def device(self) -> DeviceSpec:
        """The device; all of the group are alike."""
        return self.cluster.devices[0]

    def described(self, graph: StepGraph) -> dict[str, int]:
        return graph.num_kernels

    def product_s(self, num_rows: int, product: Product) -> float:
        return self._product_s(num_rows, product.width, product.columns, 1)

    def experts_s(self, num_tokens: int, experts: Experts) -> float:
        """All matrix products of the experts, with random routing: the weights of each active expert are read once."""
        num_rows = num_tokens * experts.num_used / experts.num_devices
        touched = experts.mean_active(num_tokens)
        columns = experts.width * (2 if experts.is_gated else 1)
        into_s = self._product_s(num_rows, experts.hidden, columns, touched)
        return into_s + self._product_s(num_rows, experts.width, experts.hidden, touched)

    def _product_s(self, num_rows: float, width: int, columns: int, num_matrices: float) -> float:
        computed_s = self._computed_s(num_rows, width, columns, num_matrices)
        if self.weight_bytes >= _ACTIVATION_BYTES:
            return computed_s
        # Activations are brought to the format of the weights by a kernel of its own.
        return computed_s + self._moved_s(num_rows * width * (_ACTIVATION_BYTES + self.weight_bytes))

    def _computed_s(self, num_rows: float, width: int, columns: int, num_matrices: float) -> float:
        num_bytes = num_matrices * width * columns * self.weight_bytes
        num_bytes += num_rows * (width + columns) * _ACTIVATION_BYTES
        efficiency = self.device.efficiency
        flops_per_s = self.device.peak(self.weights) * efficiency.max_matmul_fraction
        computing_s = 2.0 * num_rows * width * columns / flops_per_s
        # First data has to come, then the units fill: both ramps count, whichever of the two takes longer afterwards.
        ramp_s = efficiency.half_matmul_flops / (
            self.device.reference_peak_flops_per_s * efficiency.max_matmul_fraction
        )
        moving_s = self._moved_s(num_bytes)
        return max(computing_s + self._moved_s(0.0), moving_s) + ramp_s

    def pointwise_s(self, num_elements: int) -> float:
        return self._moved_s(num_elements * _ACTIVATION_BYTES)

    def prompt_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        tokens = sum(num for num, _ in chunks)
        num_bytes = float(2 * tokens * attention.num_heads * attention.head_width * _ACTIVATION_BYTES)
        num_bytes += _num_seen(attention, chunks) * attention.cached_per_token * self.cache_bytes
        return self._attended_s(attention, chunks, 1.0, num_bytes) + self._kept_s(attention, tokens)

    def backward_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        """Reads queries, results and their gradients, and keys and values; writes gradients of all that went in."""
        tokens, seen = sum(num for num, _ in chunks), _num_seen(attention, chunks)
        num_bytes = float(4 * tokens * attention.num_heads * attention.head_width * _ACTIVATION_BYTES)
        num_bytes += seen * attention.cached_per_token * (self.cache_bytes + 2 * _ACTIVATION_BYTES)
        return self._attended_s(attention, chunks, ATTENTION_BACKWARD, num_bytes)

    def _attended_s(
        self, attention: Attention, chunks: Sequence[tuple[int, int]], passes: float, num_bytes: float
    ) -> float:
        """Of a kernel that computes scores and sums of all pairs so many times, and reads and writes so many bytes."""
        pairs = sum(attention.num_pairs(num, before) for num, before in chunks)
        flops = passes * 4.0 * attention.num_heads * attention.head_width * pairs
        computing_s = flops / self.device.matmul_flops_per_s(flops, "bfloat16") + _BETWEEN_S
        return max(computing_s, self._moved_s(num_bytes))

    def decode_attention_s(self, attention: Attention, num: int, mean_tokens: Floats) -> Floats:
        seen = num * (np.minimum(mean_tokens, attention.window) if attention.window else mean_tokens)
        width = attention.latent + attention.rotary / 2 if attention.latent else attention.head_width
        num_bytes = seen * (attention.cached_per_token * self.cache_bytes)
        num_bytes += 2 * num * attention.num_heads * width * _ACTIVATION_BYTES
        efficiency = self.device.efficiency
        rate = self.device.memory_bandwidth_bytes_per_s * efficiency.max_memory_fraction
        # Keys and values are cut in parts, which are computed at once; a second kernel puts their results together.
        moving_s = (num_bytes + 2 * efficiency.half_memory_bytes) / rate + 2 * _BETWEEN_S
        flops_per_s = self.device.peak("bfloat16") * efficiency.max_matmul_fraction
        computing_s = seen * attention.decode_flops_per_cached / flops_per_s
        return np.maximum(moving_s, computing_s) + self._kept_s(attention, num)

    def all_reduce_s(self, num_elements: int) -> float:
        if self._in_node is not None:
            return self._in_node.all_reduce_s(num_elements * _ACTIVATION_BYTES)
        return self._collective_s("all_reduce", num_elements)

    def all_gather_s(self, num_elements: int) -> float:
        if self._in_node is not None:
            return self._in_node.all_gather_s(num_elements * _ACTIVATION_BYTES)
        return self._collective_s("all_gather", num_elements)

    @cached_property
    def _in_node(self) -> NodeCollectives | None:
        """Collectives of devices in one node; None for one device, and where only the links of the cluster are known."""
        if self.num_devices == 1:
            return None
        found = NodeCollectives(self.cluster, self.num_devices, self._moved_s(0.0))
        return found if found.is_known else None

    def send_s(self, num_elements: int) -> float:
        return self._collective_s("send", num_elements, (0, self.num_devices))

    def _collective_s(self, kind: str, num_elements: int, ranks: Sequence[int] = ()) -> float:
        ranks = ranks or range(self.num_devices)
        cost = collective_cost(self.cluster, kind, ranks, num_elements * _ACTIVATION_BYTES)
        return max(cost.seconds - self.device.collective_launch_s, cost.moving_s)

    def _kept_s(self, attention: Attention, num_tokens: int) -> float:
        """Of the kernel that puts keys and values of tokens in the cache."""
        return self._moved_s(num_tokens * attention.cached_per_token * (_ACTIVATION_BYTES + self.cache_bytes))

    def _moved_s(self, num_bytes: float) -> float:
        efficiency = self.device.efficiency
        rate = self.device.memory_bandwidth_bytes_per_s * efficiency.max_memory_fraction
        return (num_bytes + efficiency.half_memory_bytes) / rate + _BETWEEN_S


def _num_seen(attention: Attention, chunks: Sequence[tuple[int, int]]) -> int:
    """Tokens whose keys and values chunks of prompts need."""
    return sum(
        num + (min(before, attention.window) if attention.window else before) for num, before in chunks
    )

"""The kernels that a step of a transformer launches, and the interface of their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Attention", "Experts", "KernelTimes", "Product", "StepGraph"]

Floats = NDArray[np.float64]


class Product(NamedTuple):
    """A matrix product (GEMM): rows of activations times weights of shape [width, columns].

    Attributes
    ----------
    width, columns : shape of the weights on one device.
    is_of_last_tokens : whether there is one row for each sequence of the step (its last token, as in the LM head), not
        for each token.
    """

    width: int
    columns: int
    is_of_last_tokens: bool = False


class Attention(NamedTuple):
    """Attention of one layer, on one device.

    Attributes
    ----------
    num_heads, num_kv_heads : heads of queries, and of keys and values.
    head_width : elements of a head; the mean of keys and values, if they differ.
    window : size of the sliding window in tokens, the token itself included; 0 for full attention.
    latent : elements of the latent vector that is cached in place of keys and values (MLA of DeepSeek-V2, arXiv
        2405.04434); 0 if there is none.
    rotary : elements of a key with rotary position embedding that are shared by all heads and cached beside the latent.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    window: int = 0
    latent: int = 0
    rotary: int = 0

    @property
    def cached_per_token(self) -> int:
        """Elements of the KV cache, or of its latent form, for each token."""
        return self.latent + self.rotary or 2 * self.num_kv_heads * self.head_width

    @property
    def decode_flops_per_cached(self) -> int:
        """Flops of a decode for each cached token that it attends to.

        With a latent vector, all heads multiply by it: the weights that would expand it are absorbed into the queries.
        """
        if self.latent:
            return 2 * self.num_heads * (2 * self.latent + self.rotary)
        return 4 * self.num_heads * self.head_width

    def num_pairs(self, num_tokens: int, before: int) -> float:
        """Pairs of query and key in a prefill chunk of ``num_tokens`` tokens, after ``before`` cached ones."""
        growing = min(max(self.window - before, 0), num_tokens) if self.window else num_tokens
        return growing * (before + (growing + 1) / 2) + (num_tokens - growing) * self.window


class Experts(NamedTuple):
    """The experts of one mixture-of-experts layer.

    Attributes
    ----------
    num_experts, num_used : experts of the layer, and experts per token (top k).
    hidden : elements of a token.
    width : intermediate size of an expert on one device.
    is_gated : whether an expert has three matrices (gate, up and down), or two.
    num_devices : expert-parallel degree; 1 if every device has a slice of each expert.
    """

    num_experts: int
    num_used: int
    hidden: int
    width: int
    is_gated: bool
    num_devices: int = 1

    def mean_active(self, num_tokens: int) -> float:
        """Expected number of experts on a device that get at least one of so many tokens, with random routing."""
        missed = (1 - self.num_used / self.num_experts) ** num_tokens
        return self.num_experts * (1 - missed) / self.num_devices


@dataclass(frozen=True)
class StepGraph:
    """The kernels that one device launches in a step, as functions of the tokens in it.

    Attributes
    ----------
    products : matrix products, each with its number of launches.
    attention : kinds of attention, each with its number of layers.
    pointwise : memory-bound kernels by elements per token, each with its number of launches.
    all_reduces, all_gathers : collectives of the tensor-parallel group by elements per token, and per sequence (of the
        whole result), each with its number of launches.
    hidden : elements of a token that are sent between pipeline stages.
    num_weights : number of weights on a device.
    experts : kinds of expert layers, each with its number of layers.
    """

    products: tuple[tuple[Product, int], ...]
    attention: tuple[tuple[Attention, int], ...]
    pointwise: tuple[tuple[int, int], ...]
    all_reduces: tuple[tuple[int, int], ...]
    all_gathers: tuple[tuple[int, int], ...]
    hidden: int
    num_weights: int
    experts: tuple[tuple[Experts, int], ...] = ()

    @property
    def cached_per_token(self) -> int:
        """Elements of the KV cache for each token, of all layers."""
        return sum(shape.cached_per_token * num for shape, num in self.attention)

    @property
    def num_kernels(self) -> dict[str, int]:
        """Kernels of a step of requests that decode, by kind."""
        kinds = {
            "product": self.products,
            "attention": self.attention,
            "experts": self.experts,
            "collective": (*self.all_reduces, *self.all_gathers),
            "elementwise": self.pointwise,
        }
        found = {kind: sum(num for _, num in kernels) for kind, kernels in kinds.items()}
        return {kind: num for kind, num in found.items() if num}

    @property
    def between_ranks(self) -> StepGraph:
        """The collectives between data-parallel ranks: an all-gather of all tokens before each mixture, one after it."""
        num_layers = sum(num for _, num in self.experts)
        return StepGraph((), (), (), (), ((self.hidden, 2 * num_layers),), self.hidden, 0)

    @property
    def lora_width(self) -> int:
        """Weights of a LoRA adapter of rank 1, of all products but those of experts and of last tokens."""
        return sum(
            num * (each.width + each.columns) for each, num in self.products if not each.is_of_last_tokens
        )


class KernelTimes(Protocol):
    """Seconds of each kernel on one device, and of the collectives of a group."""

    def described(self, graph: StepGraph) -> dict[str, int]:
        """Kernels of a step of requests that decode whose times follow from the device's description, by kind."""
        ...

    def product_s(self, num_rows: int, product: Product) -> float:
        """A matrix product."""
        ...

    def experts_s(self, num_tokens: int, experts: Experts) -> float:
        """All matrix products of the experts of one layer."""
        ...

    def pointwise_s(self, num_elements: int) -> float:
        """A memory-bound kernel that reads and writes so many elements in total."""
        ...

    def prompt_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        """Prefill attention of one layer; each chunk is (tokens in the step, cached tokens before them)."""
        ...

    def decode_attention_s(self, attention: Attention, num: int, mean_tokens: Floats) -> Floats:
        """Decode attention of one layer for ``num`` requests, by their mean sequence length; one value for each step."""
        ...

    def backward_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        """The gradients of `prompt_attention_s` of the same chunks.

        Raises
        ------
        ServeError
            If they were not measured.
        """
        ...

    def all_reduce_s(self, num_elements: int) -> float:
        """An all-reduce over the group."""
        ...

    def all_gather_s(self, num_elements: int) -> float:
        """An all-gather over the group, to so many elements in total."""
        ...

    def send_s(self, num_elements: int) -> float:
        """A send to the next pipeline stage."""
        ...

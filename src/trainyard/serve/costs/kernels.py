"""What a step of a transformer launches, and who says how long each kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Attention", "Experts", "KernelTimes", "Product", "StepGraph"]

Floats = NDArray[np.float64]


class Product(NamedTuple):
    """Rows of activations times a matrix of weights of shape [width, columns].

    Attributes
    ----------
    width, columns : of the weights on one device.
    is_of_last_tokens : whether there is a row for each sequence in the step (its last token), not for each token.
    """

    width: int
    columns: int
    is_of_last_tokens: bool = False


class Attention(NamedTuple):
    """Attention of one layer, on one device.

    Attributes
    ----------
    num_heads, num_kv_heads : of queries, and of keys and values.
    head_width : elements of a head; in the mean of keys and values, where they differ.
    window : tokens that a token sees, itself included; 0 is all.
    latent : elements of the vector that a server keeps of a token in place of its keys and values, where these follow
        from it (DeepSeek-V2, arXiv 2405.04434); 0 where there is none.
    rotary : elements of a key that turn with its position and are the same in all heads, which are kept beside it.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    window: int = 0
    latent: int = 0
    rotary: int = 0

    @property
    def cached_per_token(self) -> int:
        """Elements of keys and values of a token, or of what they follow from."""
        return self.latent + self.rotary or 2 * self.num_kv_heads * self.head_width

    @property
    def decode_flops_per_cached(self) -> int:
        """Flops of a decoding token for each token that it sees.

        Where there is a latent vector, all heads multiply by it: queries go through the weights that would make keys.
        """
        if self.latent:
            return 2 * self.num_heads * (2 * self.latent + self.rotary)
        return 4 * self.num_heads * self.head_width

    def num_pairs(self, num_tokens: int, before: int) -> float:
        """Pairs of a token of a prompt and one that it sees, of so many tokens after so many others."""
        growing = min(max(self.window - before, 0), num_tokens) if self.window else num_tokens
        return growing * (before + (growing + 1) / 2) + (num_tokens - growing) * self.window


class Experts(NamedTuple):
    """The experts of one layer, of which each token goes to a few.

    Attributes
    ----------
    num_experts, num_used : of the layer, and of a token.
    hidden : elements of a token.
    width : of an expert on one device.
    is_gated : whether an expert has three matrices (gate, up and down), or two.
    num_devices : that the experts are dealt out to; 1 where every device has a part of each.
    """

    num_experts: int
    num_used: int
    hidden: int
    width: int
    is_gated: bool
    num_devices: int = 1

    def mean_active(self, num_tokens: int) -> float:
        """Experts on a device that at least one of so many tokens goes to, if they choose at random."""
        missed = (1 - self.num_used / self.num_experts) ** num_tokens
        return self.num_experts * (1 - missed) / self.num_devices


@dataclass(frozen=True)
class StepGraph:
    """What one device launches in a step, as it depends on the tokens in it.

    Attributes
    ----------
    products : with how often each is launched.
    attention : with the number of layers of each kind.
    pointwise : kernels that only read and write, by elements per token, with how often each is launched.
    all_reduces, all_gathers : over the devices of a tensor-parallel group, by elements per token and per sequence (of
        the whole result), with how often each is launched.
    hidden : elements of a token that go from stage to stage of a pipeline.
    num_weights : elements of weights on a device.
    experts : of mixtures, with the number of layers of each kind.
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
        """Elements of keys and values of a token, of all layers."""
        return sum(shape.cached_per_token * num for shape, num in self.attention)


class KernelTimes(Protocol):
    """Seconds of kernels on one device, or of a group of devices."""

    def product_s(self, num_rows: int, product: Product) -> float:
        """Of a product."""
        ...

    def experts_s(self, num_tokens: int, experts: Experts) -> float:
        """Of all products of the experts of a layer."""
        ...

    def pointwise_s(self, num_elements: int) -> float:
        """Of a kernel that reads and writes so many elements, together."""
        ...

    def prompt_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        """Of one layer of prompts: each has so many tokens in the step, after so many that are in the cache."""
        ...

    def decode_attention_s(self, attention: Attention, num: int, mean_tokens: Floats) -> Floats:
        """Of one layer of so many requests that decode, by the mean length of their sequences; of several steps."""
        ...

    def all_reduce_s(self, num_elements: int) -> float:
        """Of a sum over the group."""
        ...

    def all_gather_s(self, num_elements: int) -> float:
        """Of the parts of the group, put together to so many elements."""
        ...

    def send_s(self, num_elements: int) -> float:
        """Of what goes from a group to the next one of a pipeline."""
        ...

"""What a step of a transformer launches, and who says how long each kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Attention", "KernelTimes", "Product", "StepGraph"]

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
    head_width : elements of a head.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int

    @property
    def cached_per_token(self) -> int:
        """Elements of keys and values of a token."""
        return 2 * self.num_kv_heads * self.head_width


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
    """

    products: tuple[tuple[Product, int], ...]
    attention: tuple[tuple[Attention, int], ...]
    pointwise: tuple[tuple[int, int], ...]
    all_reduces: tuple[tuple[int, int], ...]
    all_gathers: tuple[tuple[int, int], ...]
    hidden: int
    num_weights: int

    @property
    def cached_per_token(self) -> int:
        """Elements of keys and values of a token, of all layers."""
        return sum(shape.cached_per_token * num for shape, num in self.attention)


class KernelTimes(Protocol):
    """Seconds of kernels on one device, or of a group of devices."""

    def product_s(self, num_rows: int, product: Product) -> float:
        """Of a product."""
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

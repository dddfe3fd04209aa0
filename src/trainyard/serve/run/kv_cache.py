"""The KV cache of a model as tensors, and the operations of a batch on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from trainyard.serve.batch import CacheOp, Tier
from trainyard.serve.run.paged_attention import LayerCache, PagedAttention

__all__ = ["CacheShape", "KvCache"]


class CacheShape(NamedTuple):
    """What one layer keeps of a token.

    Attributes
    ----------
    num_heads : of keys and values.
    width, value_width : elements of a key and of a value.
    """

    num_heads: int
    width: int
    value_width: int


class KvCache:
    """Blocks of all layers, on the device and on the host.

    Parameters
    ----------
    attention : that chooses the layout.
    shapes : of every layer.
    num_blocks, num_host_blocks : blocks of each tier.
    block_tokens : tokens per block.
    dtype : of what is kept.
    device : of the blocks that are not on the host.

    Attributes
    ----------
    layers : blocks on the device.
    num_blocks, block_tokens : of the device.
    """

    def __init__(
        self,
        attention: PagedAttention,
        shapes: Sequence[CacheShape],
        num_blocks: int,
        block_tokens: int,
        num_host_blocks: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens

        def tier(num: int, device: torch.device | None) -> list[LayerCache]:
            return [
                attention.new_cache(num, heads, width, block_tokens, dtype, device, value_width)
                for heads, width, value_width in shapes
            ]

        self.layers = tier(num_blocks, device)
        self._tiers: dict[Tier, list[LayerCache]] = {
            "device": self.layers,
            "host": tier(num_host_blocks, None),
        }

    def apply(self, ops: Iterable[CacheOp]) -> None:
        """Copy the blocks that operations of a batch copy, in their order; the others change no content."""
        for op in ops:
            if op.to:
                self._copy(op)

    def _copy(self, op: CacheOp) -> None:
        source, to = list(op.blocks), list(op.to)
        for before, after in zip(self._tiers[op.tier], self._tiers[op.to_tier], strict=True):
            after.keys[to] = before.keys[source].to(after.keys.device)
            after.values[to] = before.values[source].to(after.values.device)

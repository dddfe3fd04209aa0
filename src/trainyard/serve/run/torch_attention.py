"""Attention over a paged cache by torch's `scaled_dot_product_attention`: for every device and shape that torch has.

Keys and values are (num_blocks, num_kv_heads, block_tokens, head_dim). In memory all blocks of a head follow each other,
so that the cache of a head is one sequence of slots. Decodes of a step are computed together, and every other item by
itself: the blocks of its sequence are gathered, and torch does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainyard.serve.run.attention_window import Window
from trainyard.serve.run.paged_attention import (
    AttentionBatch,
    LayerCache,
    require_cache_dtype,
    require_query_fits,
    require_written_fit,
    token_windows,
)

__all__ = ["TorchAttention", "by_slot"]


class TorchAttention:
    """Attention by torch's own, sequence by sequence; see `paged_attention.PagedAttention`.

    Parameters
    ----------
    device : that computes it.
    """

    warm_up_tokens: Sequence[int] = ()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batch: AttentionBatch | None = None
        self._slots = torch.empty(0)

    def new_cache(
        self,
        num_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        value_dim: int | None = None,
    ) -> LayerCache:
        """Make the cache of a layer; see `paged_attention.PagedAttention`."""
        require_cache_dtype(dtype)
        slots = (num_kv_heads, num_blocks, block_tokens)
        keys, values = (
            torch.zeros(*slots, width, dtype=dtype, device=device).transpose(0, 1)
            for width in (head_dim, value_dim or head_dim)
        )
        return LayerCache(keys, values)

    def write(self, keys: Tensor, values: Tensor, cache: LayerCache, batch: AttentionBatch) -> None:
        """Write keys and values of tokens; see `paged_attention.PagedAttention`."""
        require_written_fit(cache, batch, keys, values)
        if batch is not self._batch:  # once a step, not once a layer
            self._batch, self._slots = batch, torch.from_numpy(batch.slots).to(self._device)
        for part, given in zip(cache, (keys, values), strict=True):
            by_slot(part)[:, self._slots] = given.transpose(0, 1).to(part.dtype)

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        batch: AttentionBatch,
        scale: float | None = None,
        window: Window = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Compute attention; see `paged_attention.PagedAttention`."""
        require_query_fits(cache, batch, query, window, softcap, sinks)
        starts, lengths = batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens)
        windows = torch.from_numpy(token_windows(batch, window)).to(query.device)
        out = query.new_empty(*query.shape[:2], cache.value_dim)
        decodes = np.flatnonzero(lengths == 1)
        groups = [decodes] if len(decodes) else []
        for sequences in (*groups, *np.flatnonzero(lengths > 1)[:, None]):
            length = int(lengths[sequences[0]])
            rows = torch.from_numpy(starts[sequences, None] + np.arange(length)).to(query.device)
            seen = -(-int(batch.positions[sequences].max() + length) // batch.block_tokens)
            tables = batch.block_tables[sequences, :seen].clip(0, batch.num_blocks - 1).astype(np.int64)
            at = torch.from_numpy(tables).to(query.device)
            before = torch.from_numpy(batch.positions[sequences]).to(query.device)
            mask = _mask(before, length, seen * batch.block_tokens, windows[rows])
            unseen = ~mask.any(1)[:, None, :, None]  # what stands there may be no number
            keys, values = (part[at].transpose(1, 2).flatten(2, 3).to(query.dtype) for part in cache)
            given = (
                query[rows].transpose(1, 2),
                keys.masked_fill_(unseen, 0.0),
                values.masked_fill_(unseen, 0.0),
                mask[:, None],
            )
            if softcap is None and sinks is None:
                found = F.scaled_dot_product_attention(*given, scale=scale, enable_gqa=True)
            else:
                found = _attend(*given, scale, softcap, sinks)
            out[rows] = found.transpose(1, 2)
        return out


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute attention with bounded scores or sinks, in float32; shapes are those of `scaled_dot_product_attention`."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (each.float().repeat_interleave(group, 1) for each in (keys, values))
    scores = query.float() @ keys.transpose(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1)[..., : keys.shape[2]]
    return (weights @ values).to(query.dtype)


def by_slot(part: Tensor) -> Tensor:
    """Keys or values of a cache as one sequence of slots for each head: (num_kv_heads, num_slots, head_dim), no copy."""
    num_blocks, num_kv_heads, block_tokens, head_dim = part.shape
    return part.transpose(0, 1).view(num_kv_heads, num_blocks * block_tokens, head_dim)


def _mask(before: Tensor, length: int, num_keys: int, windows: Tensor) -> Tensor:
    """Which tokens each query sees; shape (sequences, length, num_keys)."""
    query = before[:, None, None] + torch.arange(length, device=before.device)[:, None]
    key = torch.arange(num_keys, device=before.device)
    return (key <= query) & (key > query - windows[..., None])

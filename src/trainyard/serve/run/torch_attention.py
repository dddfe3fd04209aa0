"""Attention over the cache of `trainyard.serve.run.paged_attention`, by torch alone: for every device that torch has.

Decodes of a step are computed together, and every other item by itself: the blocks of its sequence are gathered, and
torch's own attention does the rest.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from trainyard.serve.run.paged_attention import AttentionBatch

__all__ = ["attend_by_torch", "write_by_torch"]


def write_by_torch(
    keys: Tensor, values: Tensor, slots: NDArray[np.int64], key_cache: Tensor, value_cache: Tensor
) -> None:
    """Write the keys and values of tokens into the cache of a layer; see `paged_attention.write_cache`."""
    at = torch.from_numpy(slots).to(keys.device)
    block, place = at // key_cache.shape[3], at % key_cache.shape[3]
    key_cache[block, :, :, place] = keys.to(key_cache.dtype)
    value_cache[block, :, place] = values.to(value_cache.dtype)


def attend_by_torch(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Compute the causal attention of the tokens of a batch; see `paged_attention.attend`.

    Parameters
    ----------
    query : (num_tokens, num_heads, head_dim).
    key_cache, value_cache : of the layer, on the device of the query.
    scale : of the scores; 1 / sqrt(head_dim) by default.
    window : tokens that a query sees, its own among them; all by default.

    Returns
    -------
    Tensor
        (num_tokens, num_heads, head_dim), of the dtype of the query.
    """
    starts, lengths = batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens)
    out = torch.empty_like(query)
    decodes = np.flatnonzero(lengths == 1)
    groups = [decodes] if len(decodes) else []
    for sequences in (*groups, *np.flatnonzero(lengths > 1)[:, None]):
        length = int(lengths[sequences[0]])
        rows = torch.from_numpy(starts[sequences, None] + np.arange(length)).to(query.device)
        seen = -(-int(batch.positions[sequences].max() + length) // batch.block_tokens)
        tables = batch.block_tables[sequences, :seen].clip(0, batch.num_blocks - 1).astype(np.int64)
        at = torch.from_numpy(tables).to(query.device)
        before = torch.from_numpy(batch.positions[sequences]).to(query.device)
        mask = _mask(before, length, seen * batch.block_tokens, window)
        unseen = ~mask.any(1)[:, None, :, None]  # what stands there may be no number
        keys = key_cache[at].permute(0, 2, 1, 4, 3).flatten(2, 3).to(query.dtype)
        values = value_cache[at].transpose(1, 2).flatten(2, 3).to(query.dtype)
        out[rows] = F.scaled_dot_product_attention(
            query[rows].transpose(1, 2),
            keys.masked_fill_(unseen, 0.0),
            values.masked_fill_(unseen, 0.0),
            attn_mask=mask[:, None],
            scale=scale,
            enable_gqa=True,
        ).transpose(1, 2)
    return out


def _mask(before: Tensor, length: int, num_keys: int, window: int | None) -> Tensor:
    """Which tokens each query sees; shape (sequences, length, num_keys)."""
    query = before[:, None, None] + torch.arange(length, device=before.device)[:, None]
    key = torch.arange(num_keys, device=before.device)
    sees = key <= query
    return sees if window is None else sees & (key > query - window)

"""Attention over a cache of keys and values in blocks, on the CPU.

The cache of a layer is two tensors: keys (num_blocks, num_kv_heads, head_dim, block_tokens) and values
(num_blocks, num_kv_heads, block_tokens, head_dim). Keys have the tokens of a block side by side, so that the scores of
a block are computed in vector instructions. A sequence's tokens lie in the blocks that its row of a block table names.
A batch is a flat list of query tokens of several sequences, each in the order of its tokens; decodes and parts of
prompts may be mixed. Whatever is cached, one compiled kernel computes it, on one thread.

References
----------
Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainyard.serve.errors import ServeError

__all__ = ["AttentionBatch", "attend", "attention_batch", "new_cache", "write_cache"]

_DTYPES = (torch.float32, torch.bfloat16)
_NO_WINDOW = 1 << 62


@dataclass(frozen=True, eq=False)
class AttentionBatch:
    """Where the tokens of a batch lie in the cache; the same for all layers. Made by `attention_batch`.

    Parameters
    ----------
    cu_seqlens : (num_sequences + 1,) index of the first query of each sequence, and the number of queries.
    positions : (num_sequences,) tokens of each sequence that are cached before its queries.
    block_tables : (num_sequences, most_blocks) blocks of each sequence; what follows its last one is not read.
    slots : (num_tokens,) where the keys and values of each query go: block times ``block_tokens`` plus offset.
    num_blocks, block_tokens : of the cache.
    """

    cu_seqlens: NDArray[np.int64]
    positions: NDArray[np.int64]
    block_tables: NDArray[np.int32]
    slots: NDArray[np.int64]
    num_blocks: int
    block_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.slots)


def new_cache(
    num_blocks: int,
    num_kv_heads: int,
    head_dim: int,
    block_tokens: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Make the cache of a layer, of float32 or bfloat16: its keys and its values (see the module).

    Parameters
    ----------
    device : by default the CPU.

    Raises
    ------
    ServeError
        If the dtype is another one.
    """
    if dtype not in _DTYPES:
        raise ServeError(f"dtype of the cache is {dtype}; allowed are torch.float32 and torch.bfloat16")
    keys = torch.zeros(num_blocks, num_kv_heads, head_dim, block_tokens, dtype=dtype, device=device)
    return keys, torch.zeros(num_blocks, num_kv_heads, block_tokens, head_dim, dtype=dtype, device=device)


def attention_batch(
    cu_seqlens: ArrayLike, positions: ArrayLike, block_tables: ArrayLike, num_blocks: int, block_tokens: int
) -> AttentionBatch:
    """Check a batch, and find the slot of each of its tokens.

    Parameters
    ----------
    cu_seqlens : (num_sequences + 1,) index of the first query of each sequence, and the number of queries.
    positions : (num_sequences,) tokens of each sequence that are cached before its queries.
    block_tables : (num_sequences, most_blocks) blocks of each sequence, padded with anything.
    num_blocks, block_tokens : of the cache.

    Raises
    ------
    ServeError
        If shapes do not fit, or if a sequence has tokens in no block of the cache.
    """
    starts = np.asarray(cu_seqlens, np.int64)
    before = np.asarray(positions, np.int64)
    tables = np.ascontiguousarray(block_tables, np.int32)
    if (
        starts.shape != (len(before) + 1,)
        or before.ndim != 1
        or tables.ndim != 2
        or len(tables) != len(before)
    ):
        raise ServeError(
            f"batch: cu_seqlens has shape {starts.shape}, positions {before.shape}, block_tables {tables.shape}; "
            "allowed are (n + 1,), (n,) and (n, most_blocks) for n sequences"
        )
    lengths = np.diff(starts)
    if starts[0] != 0 or (lengths < 0).any() or (before < 0).any():
        raise ServeError(
            "batch: cu_seqlens must start at 0 and not decrease, and positions must be 0 or more"
        )
    used = -(-(before + lengths) // block_tokens)
    for sequence in np.flatnonzero(used > tables.shape[1]):
        raise ServeError(
            f"batch: sequence {sequence} needs {used[sequence]} blocks; its block table has {tables.shape[1]}"
        )
    is_used = np.arange(tables.shape[1]) < used[:, None]
    for sequence, column in np.argwhere(is_used & ((tables < 0) | (tables >= num_blocks))):
        raise ServeError(
            f"batch: block {column} of sequence {sequence} is {tables[sequence, column]}; "
            f"allowed is 0 to {num_blocks - 1}"
        )
    owner = np.repeat(np.arange(len(before)), lengths)
    token = np.arange(starts[-1]) - starts[owner] + before[owner]
    slots = tables[owner, token // block_tokens].astype(np.int64) * block_tokens + token % block_tokens
    return AttentionBatch(starts, before, tables, slots, num_blocks, block_tokens)


def write_cache(
    keys: Tensor, values: Tensor, slots: NDArray[np.int64], key_cache: Tensor, value_cache: Tensor
) -> None:
    """Write the keys and values of tokens into the cache of a layer.

    Parameters
    ----------
    keys, values : (num_tokens, num_kv_heads, head_dim).
    slots : (num_tokens,) of the batch.
    key_cache, value_cache : as `new_cache` makes them.

    Raises
    ------
    ServeError
        If shapes do not fit, or a slot is not in the cache.
    """
    from trainyard.serve.run.attention_kernel import write_tokens

    num_blocks, num_kv_heads, block_tokens, head_dim = value_cache.shape
    shape = (len(slots), num_kv_heads, head_dim)
    if keys.shape != shape or values.shape != shape:
        raise ServeError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)}; the cache takes {shape}"
        )
    if len(slots) and not 0 <= slots.min() <= slots.max() < num_blocks * block_tokens:
        raise ServeError(
            f"slots are {slots.min()} to {slots.max()}; allowed is 0 to {num_blocks * block_tokens - 1}"
        )
    dtype = key_cache.dtype
    write_tokens(
        _numbers(keys.to(dtype).contiguous()),
        _numbers(values.to(dtype).contiguous()),
        slots,
        _numbers(key_cache),
        _numbers(value_cache),
    )


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: AttentionBatch,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Compute the causal attention of the tokens of a batch, whose own keys and values are in the cache already.

    Sums are in float32, whatever the dtypes are.

    Parameters
    ----------
    query : (num_tokens, num_heads, head_dim); heads that share keys and values follow each other.
    key_cache, value_cache : of the layer, as `new_cache` makes them.
    scale : of the scores; 1 / sqrt(head_dim) by default.
    window : tokens that a query sees, its own among them; all by default.

    Returns
    -------
    Tensor
        (num_tokens, num_heads, head_dim), of the dtype of the query.

    Raises
    ------
    ServeError
        If shapes do not fit.
    """
    from trainyard.serve.run.attention_kernel import TILE, tile_kernel, token_kernel

    num_heads, head_dim = query.shape[1:]
    num_kv_heads = value_cache.shape[1]
    _check(query, key_cache, value_cache, batch)
    if window is not None and window < 1:
        raise ServeError(f"window is {window}; allowed is 1 or more, or None for all tokens")
    lengths = batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]
    seen = int((batch.positions + lengths).max(initial=1))
    width = min(seen, window + TILE if window else seen) + 2 * batch.block_tokens
    out = torch.empty(query.shape, dtype=torch.float32)
    arguments = (
        _numbers(query.float().contiguous()).reshape(-1),
        _numbers(key_cache).reshape(-1),
        _numbers(value_cache).reshape(-1),
        batch.cu_seqlens,
        batch.positions,
        batch.block_tables,
        num_heads,
        np.float32(head_dim**-0.5 if scale is None else scale),
        window or _NO_WINDOW,
        np.empty(max(num_heads, TILE) * width, np.float32),
        out.numpy().reshape(-1),
    )
    sizes = (num_heads // num_kv_heads, head_dim, batch.block_tokens)
    if (lengths >= TILE).any():
        tile_kernel(*sizes)(*arguments)
    if (lengths % TILE).any():
        token_kernel(*sizes)(*arguments)
    return out.to(query.dtype)


def _check(query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: AttentionBatch) -> None:
    """Refuse tensors that the kernels would read beyond their ends."""
    num_tokens, num_heads, head_dim = query.shape
    num_blocks, num_kv_heads, block_tokens, value_dim = value_cache.shape
    if (
        (num_blocks, block_tokens) != (batch.num_blocks, batch.block_tokens)
        or key_cache.shape != (num_blocks, num_kv_heads, value_dim, block_tokens)
        or key_cache.dtype != value_cache.dtype
        or value_dim != head_dim
        or num_heads % num_kv_heads
        or num_tokens != batch.num_tokens
    ):
        raise ServeError(
            f"query {tuple(query.shape)}, keys {tuple(key_cache.shape)} and values {tuple(value_cache.shape)} do "
            f"not fit a batch of {batch.num_tokens} tokens and a cache of {batch.num_blocks} blocks of "
            f"{batch.block_tokens}; allowed are (tokens, heads, dim), (blocks, kv_heads, dim, block_tokens) and "
            "(blocks, kv_heads, block_tokens, dim), both of one dtype, "
            "where heads is a multiple of kv_heads"
        )


def _numbers(tensor: Tensor) -> NDArray[Any]:
    """A tensor's memory; the bits of bfloat16, which NumPy does not know."""
    kept = tensor.detach()
    return (kept.view(torch.int16) if kept.dtype == torch.bfloat16 else kept).numpy()

"""Attention over a cache of keys and values in blocks: its batches, and the interface of what computes it on a device.

A sequence's tokens lie in the blocks that its row of a block table names. A batch is a flat list of query tokens of
several sequences, each in the order of its tokens; decodes and parts of prompts may be mixed.

References
----------
Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainyard.serve.errors import ServeError
from trainyard.serve.run.attention_window import Window

__all__ = [
    "AttentionBatch",
    "LayerCache",
    "PagedAttention",
    "attention_batch",
    "require_cache_dtype",
    "require_query_fits",
    "require_written_fit",
    "token_windows",
]

_NO_WINDOW = 1 << 30  # behind all tokens
_DTYPES = (torch.float32, torch.bfloat16)


class LayerCache(NamedTuple):
    """Keys and values of one layer, as `PagedAttention.new_cache` makes them.

    Attributes
    ----------
    keys : its first dim is blocks; the others are as the attention wants them.
    values : (num_blocks, num_kv_heads, block_tokens, value_dim).
    """

    keys: Tensor
    values: Tensor

    @property
    def head_dim(self) -> int:
        """Elements of a key."""
        return prod(self.keys.shape[2:]) // self.values.shape[2]

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.values.shape[3]


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

    @cached_property
    def token_positions(self) -> NDArray[np.int64]:
        """Number of tokens before each one in its sequence; shape ``(num_tokens,)``."""
        before = np.repeat(self.positions - self.cu_seqlens[:-1], np.diff(self.cu_seqlens))
        return np.arange(self.num_tokens) + before


class PagedAttention(Protocol):
    """Computes attention on a device, over a cache in the layout that it chooses.

    Attributes
    ----------
    warm_up_tokens : lengths of prompts; once they are computed, nothing more has to be compiled.
    """

    @property
    def warm_up_tokens(self) -> Sequence[int]: ...

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
        """Make the cache of a layer; every number in it is 0.

        Parameters
        ----------
        head_dim : elements of a key.
        dtype : float32 or bfloat16.
        device : where it is kept; by default the CPU.
        value_dim : elements of a value; as many as of a key by default.

        Raises
        ------
        ServeError
            If the dtype is another one.
        """
        ...

    def write(self, keys: Tensor, values: Tensor, cache: LayerCache, batch: AttentionBatch) -> None:
        """Write the keys and values of the tokens of a batch into the cache of a layer.

        Parameters
        ----------
        keys : (num_tokens, num_kv_heads, head_dim).
        values : (num_tokens, num_kv_heads, value_dim).

        Raises
        ------
        ServeError
            If shapes do not fit.
        """
        ...

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
        """Compute the causal attention of the tokens of a batch, whose own keys and values are in the cache already.

        What the cache holds beside the tokens of a sequence does not change the result, whatever it is.

        Parameters
        ----------
        query : (num_tokens, num_heads, head_dim); heads that share keys and values follow each other.
        cache : of the layer.
        scale : of the scores; 1 / sqrt(head_dim) by default.
        window : tokens that a query sees, its own among them; all by default.
        softcap : bound of the scores, which become ``softcap * tanh(score / softcap)`` after they are scaled.
        sinks : (num_heads,) score of one more token that each query of a head sees, and whose value is 0.

        Returns
        -------
        Tensor
            (num_tokens, num_heads, value_dim), of the dtype of the query.

        Raises
        ------
        ServeError
            If shapes do not fit.
        """
        ...


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


def token_windows(batch: AttentionBatch, window: Window) -> NDArray[np.int64]:
    """Return the number of tokens that each query of a batch sees, its own among them; shape ``(num_tokens,)``.

    The first token that a query sees is never before that of the query before it in its sequence.
    """
    if window is None or isinstance(window, int):
        return np.full(batch.num_tokens, window or _NO_WINDOW, np.int64)
    return window(batch.token_positions)


def require_cache_dtype(dtype: torch.dtype) -> None:
    """Refuse numbers that no cache keeps.

    Raises
    ------
    ServeError
        If they are neither float32 nor bfloat16.
    """
    if dtype not in _DTYPES:
        raise ServeError(f"dtype of the cache is {dtype}; allowed are torch.float32 and torch.bfloat16")


def require_written_fit(cache: LayerCache, batch: AttentionBatch, keys: Tensor, values: Tensor) -> None:
    """Refuse keys and values that would be written beyond the ends of a cache.

    Parameters
    ----------
    keys : (num_tokens, num_kv_heads, head_dim).
    values : (num_tokens, num_kv_heads, value_dim).

    Raises
    ------
    ServeError
        If their shapes do not fit the batch, or the batch does not fit the cache.
    """
    _require_cache_fits(cache, batch)
    written = batch.num_tokens, cache.values.shape[1]
    key_shape, value_shape = (*written, cache.head_dim), (*written, cache.value_dim)
    if keys.shape != key_shape or values.shape != value_shape:
        raise ServeError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)}; the cache takes {key_shape} and {value_shape}"
        )


def require_query_fits(
    cache: LayerCache,
    batch: AttentionBatch,
    query: Tensor,
    window: Window,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Refuse a query for which a cache would be read beyond its ends.

    Parameters
    ----------
    query : (num_tokens, num_heads, head_dim).
    window : tokens that a query sees; None for all.
    softcap : bound of the scores; None for none.
    sinks : (num_heads,) scores of a token without a value; None for none.

    Raises
    ------
    ServeError
        If its shape does not fit the batch, the batch does not fit the cache, the window is empty, the bound is not above
        0, or the sinks are not one for each head.
    """
    _require_cache_fits(cache, batch)
    num_kv_heads, head_dim = cache.values.shape[1], cache.head_dim
    if (query.shape[0], query.shape[2]) != (batch.num_tokens, head_dim) or query.shape[1] % num_kv_heads:
        raise ServeError(
            f"query {tuple(query.shape)} does not fit; allowed is ({batch.num_tokens}, heads, {head_dim}), "
            f"where heads is a multiple of kv_heads, here {num_kv_heads}"
        )
    if isinstance(window, int) and window < 1:
        raise ServeError(f"window is {window}; allowed is 1 or more, or None for all tokens")
    if softcap is not None and not softcap > 0:
        raise ServeError(f"softcap is {softcap}; allowed is a number above 0, or None for no bound")
    if sinks is not None and sinks.shape != query.shape[1:2]:
        raise ServeError(
            f"sinks have shape {tuple(sinks.shape)}; allowed is one for each of {query.shape[1]} heads"
        )


def _require_cache_fits(cache: LayerCache, batch: AttentionBatch) -> None:
    num_blocks, _, block_tokens, _ = cache.values.shape
    if (num_blocks, block_tokens) != (batch.num_blocks, batch.block_tokens):
        raise ServeError(
            f"the cache has {num_blocks} blocks of {block_tokens} tokens; the batch is for {batch.num_blocks} of "
            f"{batch.block_tokens}"
        )

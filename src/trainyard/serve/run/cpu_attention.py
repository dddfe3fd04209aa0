"""Attention over a paged cache on the CPU: compiled kernels, on one thread.

Keys are (num_blocks, num_kv_heads, head_dim, block_tokens): the tokens of a block lie side by side, so that scores are
computed in vector instructions. Sums are in float32, whatever the dtypes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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

__all__ = ["CpuAttention"]


class CpuAttention:
    """Attention by the kernels of `attention_kernel`; see `paged_attention.PagedAttention`."""

    warm_up_tokens: Sequence[int] = ()

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
        value_dim = value_dim or head_dim
        keys = torch.zeros(num_blocks, num_kv_heads, head_dim, block_tokens, dtype=dtype, device=device)
        values = torch.zeros(num_blocks, num_kv_heads, block_tokens, value_dim, dtype=dtype, device=device)
        return LayerCache(keys, values)

    def write(self, keys: Tensor, values: Tensor, cache: LayerCache, batch: AttentionBatch) -> None:
        """Write keys and values of tokens; see `paged_attention.PagedAttention`."""
        from trainyard.serve.run.attention_kernel import write_tokens

        require_written_fit(cache, batch, keys, values)
        dtype = cache.keys.dtype
        write_tokens(
            _numbers(keys.to(dtype).contiguous()),
            _numbers(values.to(dtype).contiguous()),
            batch.slots,
            _numbers(cache.keys),
            _numbers(cache.values),
        )

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
        from trainyard.serve.run.attention_kernel import TILE, tile_kernel, token_kernel

        require_query_fits(cache, batch, query, window, softcap, sinks)
        num_heads, head_dim = query.shape[1:]
        num_kv_heads = cache.values.shape[1]
        lengths = batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]
        seen = int((batch.positions + lengths).max(initial=1))
        windows = token_windows(batch, window)
        width = min(seen, int(windows.max(initial=1)) + TILE) + 2 * batch.block_tokens
        out = torch.empty(batch.num_tokens, num_heads, cache.value_dim, dtype=torch.float32)
        arguments = (
            _numbers(query.float().contiguous()).reshape(-1),
            _numbers(cache.keys).reshape(-1),
            _numbers(cache.values).reshape(-1),
            batch.cu_seqlens,
            batch.positions,
            batch.block_tables,
            num_heads,
            np.float32(head_dim**-0.5 if scale is None else scale),
            np.float32(softcap or 0.0),
            np.full(num_heads, -np.inf, np.float32) if sinks is None else sinks.detach().float().numpy(),
            windows,
            np.empty(max(num_heads, TILE) * width, np.float32),
            out.numpy().reshape(-1),
        )
        sizes = (num_heads // num_kv_heads, head_dim, cache.value_dim, batch.block_tokens)
        if (lengths >= TILE).any():
            tile_kernel(*sizes)(*arguments)
        if (lengths % TILE).any():
            token_kernel(*sizes)(*arguments)
        return out.to(query.dtype)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    """A tensor's memory; the bits of bfloat16, which NumPy does not know."""
    kept = tensor.detach()
    return (kept.view(torch.int16) if kept.dtype == torch.bfloat16 else kept).numpy()

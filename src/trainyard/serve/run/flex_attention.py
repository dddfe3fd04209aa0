"""Attention over a paged cache by torch's FlexAttention: all items of a step in one call of one compiled kernel.

The kernel sees the cache of a layer as one sequence of slots, and the queries of a step as one sequence of rows
(`step_mask`).

References
----------
Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", arXiv 2412.05496, 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cached
from math import isclose

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, FlexKernelOptions, flex_attention

from trainyard.serve.run.attention_window import Window
from trainyard.serve.run.paged_attention import AttentionBatch, LayerCache, require_query_fits
from trainyard.serve.run.step_mask import LEAST_ROWS, StepMask, step_mask
from trainyard.serve.run.torch_attention import TorchAttention, by_slot

__all__ = ["FlexAttention", "fits_flex_attention"]

_MOST_ROWS = 64
_TILE_BYTES = 16 * 2**10
"""Bytes of queries, of keys and of values on the chip at a time; keys and values are there twice."""
_LEAST_WIDTH = 16
"""Elements and tokens: a GPU computes no smaller product."""


def fits_flex_attention(head_dim: int, num_blocks: int, block_tokens: int, dtype: torch.dtype) -> bool:
    """Whether FlexAttention has a kernel for the cache of a layer on a GPU.

    Parameters
    ----------
    head_dim : elements of a head.
    num_blocks, block_tokens, dtype : of the cache.
    """
    return (
        head_dim >= _LEAST_WIDTH
        and block_tokens % _LEAST_WIDTH == 0
        and _most_rows(head_dim, dtype) >= LEAST_ROWS
        and num_blocks > 1  # a size of 1 would be compiled in
        and num_blocks * block_tokens * head_dim < 1 << 31  # of a head, it counts elements in 32 bits
    )


class FlexAttention(TorchAttention):
    """Attention by FlexAttention; see `paged_attention.PagedAttention`.

    Parameters
    ----------
    device : that computes it.
    backend : of `torch.compile`. With "eager", torch computes what the kernel would, without making one.
    """

    warm_up_tokens = (1, LEAST_ROWS + 1)

    def __init__(self, device: torch.device, backend: str = "inductor") -> None:
        super().__init__(device)
        self._backend = backend
        self._masked: AttentionBatch | None = None
        self._masks: dict[tuple[Window, int], StepMask] = {}
        self._bounds: dict[float, Tensor] = {}

    def write(self, keys: Tensor, values: Tensor, cache: LayerCache, batch: AttentionBatch) -> None:
        """Write keys and values of tokens; see `paged_attention.PagedAttention`.

        The kernel multiplies what a query does not see by 0, which is no number where that is not finite. So a value that
        is not finite is kept as 0, and the key of its token as no number: queries that see the token get none, as they
        should, and the others are not touched.
        """
        finite = values.isfinite()
        keys = keys.masked_fill(~finite.all(-1, keepdim=True), float("nan"))
        super().write(keys, values.masked_fill(~finite, 0.0), cache, batch)

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
        dtype, head_dim = cache.keys.dtype, query.shape[2]
        most_rows = _most_rows(max(head_dim, cache.value_dim), dtype)
        mask = self.mask(batch, window, most_rows)
        # The scale is not given to the kernel, in which a second one would be a number that is not known when it is made.
        factor = 1.0 if scale is None else scale * head_dim**0.5
        scaled = (query if isclose(factor, 1.0) else query.float() * factor).to(dtype)
        by_row = scaled[mask.token_of_row].transpose(0, 1)[None]
        keys, values = (by_slot(part)[None] for part in cache)
        torch._dynamo.mark_dynamic(by_row, 2)
        kernel = _kernel(
            mask.rows_per_block,
            batch.block_tokens,
            most_rows,
            softcap is not None,
            sinks is not None,
            self._backend,
        )
        bound = self._bound(softcap or 1.0)
        found, log_sums = kernel(
            by_row, keys, values, mask.num_blocks, mask.blocks, mask.rows, mask.starts, bound
        )
        if sinks is not None:  # one more term of the sum by which all weights are divided
            assert log_sums is not None
            found = found.float() * (log_sums - sinks.float()[:, None]).sigmoid()[..., None]
        return found[0].transpose(0, 1)[mask.row_of_token].to(query.dtype)

    def _bound(self, softcap: float) -> Tensor:
        """Return a bound of scores as a tensor on the device: a number would be compiled in."""
        if softcap not in self._bounds:
            self._bounds[softcap] = torch.tensor(softcap, dtype=torch.float32, device=self._device)
        return self._bounds[softcap]

    def mask(self, batch: AttentionBatch, window: Window, most_rows: int) -> StepMask:
        """The mask of a batch for all layers of this window, made when it is asked for the first time."""
        if batch is not self._masked:
            self._masked, self._masks = batch, {}
        key = window, most_rows
        if key not in self._masks:
            made = self._masks[key] = step_mask(batch, window, most_rows, self._device)
            torch._dynamo.mark_dynamic(made.num_blocks, 2)
            torch._dynamo.mark_dynamic(made.blocks, [2, 3])
            torch._dynamo.mark_dynamic(made.rows, 1)
            torch._dynamo.mark_dynamic(made.starts, 0)
        return self._masks[key]


def _most_rows(head_dim: int, dtype: torch.dtype) -> int:
    """Return the most rows of a tile, a power of two; the chip rounds the elements of a row up to a power of two, too."""
    row_bytes = (1 << (head_dim - 1).bit_length()) * dtype.itemsize
    return min(_MOST_ROWS, _TILE_BYTES // row_bytes)


def _options(rows_per_block: int, block_tokens: int, most_rows: int) -> FlexKernelOptions:
    """Return the sizes of the tiles of a kernel; see `_kernel`."""
    return {
        "BACKEND": "TRITON",  # one kernel for few rows and for many
        "BLOCK_M": rows_per_block,
        "BLOCK_N": min(most_rows, block_tokens & -block_tokens),
        "num_stages": 2,
    }


@cached
def _kernel(
    rows_per_block: int,
    block_tokens: int,
    most_rows: int,
    is_bounded: bool,
    tells_sums: bool,
    backend: str,
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Attention of rows over slots, compiled once for all steps over a cache.

    Parameters
    ----------
    rows_per_block, block_tokens : of a mask.
    most_rows : of a tile of keys.
    is_bounded : whether scores have a bound, which is given to the kernel.
    tells_sums : whether it also returns the logarithm of the sum of each row's weights; shape (1, heads, rows).
    """
    options = _options(rows_per_block, block_tokens, most_rows)

    def attention(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        num_blocks: Tensor,
        blocks: Tensor,
        rows: Tensor,
        starts: Tensor,
        bound: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        def is_seen(batch: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
            position = starts[rows[0, row], slot // block_tokens] + slot % block_tokens
            return (position >= rows[1, row]) & (position <= rows[2, row])

        def bounded(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
            return bound * torch.tanh(score / bound)

        mask = BlockMask.from_kv_blocks(
            num_blocks,
            blocks,
            BLOCK_SIZE=(rows_per_block, block_tokens),
            mask_mod=is_seen,
            seq_lengths=(query.shape[2], keys.shape[2]),
            compute_q_blocks=False,
        )
        found, aux = flex_attention(
            query,
            keys,
            values,
            score_mod=bounded if is_bounded else None,
            block_mask=mask,
            enable_gqa=True,
            kernel_options=options,
            return_aux=AuxRequest(lse=tells_sums),
        )
        return found, aux.lse

    return torch.compile(attention, fullgraph=True, backend=backend)

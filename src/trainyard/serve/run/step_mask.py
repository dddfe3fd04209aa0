"""Which slots of a paged cache the queries of a step see, in the form of FlexAttention.

Queries are rows, in blocks of which each is of one sequence: so what a block of rows reads is a part of the block table
of its sequence, as it stands. Numbers of rows and of blocks are rounded up to few.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard.serve.errors import ServeError
from trainyard.serve.run.attention_window import Window
from trainyard.serve.run.paged_attention import AttentionBatch, token_windows

__all__ = ["LEAST_ROWS", "StepMask", "step_mask"]

LEAST_ROWS = 16
"""Of a block: a GPU computes no smaller product."""
_LEAST_TOTAL_ROWS = 128
"""Below, FlexAttention would be compiled once more."""
_UNSEEN = 1 << 30
"""A position behind all tokens."""

Longs = NDArray[np.int64]


class StepMask(NamedTuple):
    """The rows of a step, and the slots that each of them sees.

    Attributes
    ----------
    rows_per_block : rows of a block.
    token_of_row : which token of the batch stands in each row; token 0 where none does; shape (rows,).
    row_of_token : in which row each token stands; shape (num_tokens,).
    num_blocks : blocks of the cache that each block of rows reads; shape (1, 1, row blocks).
    blocks : which ones these are; shape (1, 1, row blocks, most of them).
    rows : sequence of each row, and positions of the first and the last token that it sees; shape (3, rows). The last is
        -1 where no token stands.
    starts : position of the first token of each block of the cache in each sequence, behind all tokens if the sequence
        does not have it; shape (sequences, blocks of the cache).
    """

    rows_per_block: int
    token_of_row: Tensor
    row_of_token: Tensor
    num_blocks: Tensor
    blocks: Tensor
    rows: Tensor
    starts: Tensor


def step_mask(batch: AttentionBatch, window: Window, most_rows: int, device: torch.device) -> StepMask:
    """Make the mask of a batch.

    Parameters
    ----------
    window : tokens that a query sees, its own among them.
    most_rows : of a block; where every item is short, blocks have the least.
    device : of the tensors.

    Raises
    ------
    ServeError
        If a block is in a sequence twice.
    """
    windows = token_windows(batch, window)
    before, lengths = batch.positions, np.diff(batch.cu_seqlens)
    rows_per_block = LEAST_ROWS if lengths.max(initial=0) <= LEAST_ROWS else most_rows
    row_blocks = -(-lengths // rows_per_block)
    first_row_block = row_blocks.cumsum() - row_blocks
    num_row_blocks = _rounded(int(row_blocks.sum()), _LEAST_TOTAL_ROWS // rows_per_block)

    sequence = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(batch.num_tokens) - batch.cu_seqlens[sequence]
    position = before[sequence] + place
    row_of_token = first_row_block[sequence] * rows_per_block + place
    of_rows = np.zeros((4, num_row_blocks * rows_per_block), np.int64)
    of_rows[3] = -1
    seen_first = (position - windows + 1).clip(0)
    of_rows[:, row_of_token] = np.arange(batch.num_tokens), sequence, seen_first, position

    owner = np.repeat(np.arange(len(lengths)), row_blocks)
    first_row = (np.arange(len(owner)) - first_row_block[owner]) * rows_per_block
    begin = before[owner] + first_row
    end = np.minimum(begin + rows_per_block, (before + lengths)[owner])
    first_column = (begin - windows[batch.cu_seqlens[owner] + first_row] + 1).clip(0) // batch.block_tokens
    num_blocks = -(-end // batch.block_tokens) - first_column
    columns = first_column[:, None] + np.arange(_rounded(int(num_blocks.max(initial=0))))
    listed = batch.block_tables[owner[:, None], np.minimum(columns, (first_column + num_blocks - 1)[:, None])]
    added = num_row_blocks - len(owner)

    def moved(array: NDArray[np.generic], dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.from_numpy(array).to(device, dtype)

    return StepMask(
        rows_per_block=rows_per_block,
        token_of_row=moved(of_rows[0], torch.int64),
        row_of_token=moved(row_of_token, torch.int64),
        num_blocks=moved(np.pad(num_blocks, (0, added)))[None, None],
        blocks=moved(np.pad(listed, ((0, added), (0, 0))))[None, None],
        rows=moved(of_rows[1:]),
        starts=_starts(batch, lengths, device),
    )


def _starts(batch: AttentionBatch, lengths: Longs, device: torch.device) -> Tensor:
    """Where each block of the cache begins in each sequence; see `StepMask`."""
    used = -(-(batch.positions + lengths) // batch.block_tokens)
    sequence, column = np.nonzero(np.arange(batch.block_tables.shape[1]) < used[:, None])
    at = sequence * batch.num_blocks + batch.block_tables[sequence, column]
    ordered = np.sort(at)
    for again in ordered[1:][ordered[1:] == ordered[:-1]][:1]:
        raise ServeError(
            f"block {again % batch.num_blocks} is in sequence {again // batch.num_blocks} twice; allowed is once"
        )
    starts = torch.full((_rounded(len(lengths)), batch.num_blocks), _UNSEEN, dtype=torch.int32, device=device)
    starts.view(-1)[torch.from_numpy(at).to(device)] = torch.from_numpy(
        (column * batch.block_tokens).astype(np.int32)
    ).to(device)
    return starts


def _rounded(number: int, least: int = 2) -> int:
    """The next power of two, so that there are few sizes; never 1, which is compiled in."""
    return max(least, 2, 1 << (number - 1).bit_length() if number else 0)

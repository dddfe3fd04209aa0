"""Boxes: where the rectangles of one rank's part of a tensor lie in the whole tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch

from trainyard.program.placement import Placement, Shard, Share


@dataclass(frozen=True)
class Box:
    """A rectangle that is whole both in a rank's part and in the whole tensor.

    Attributes
    ----------
    local : where it begins in the part, ``offsets`` in the whole tensor, ``sizes`` its extent; by dimension.
    """

    local: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """The box as a view of the part."""
        return narrowed(part, self.local, self.sizes)


def narrowed(x: torch.Tensor, starts: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """A rectangle of a tensor, as a view."""
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        x = x.narrow(dim, start, size)
    return x


def boxes(
    shape: tuple[int, ...],
    placements: Mapping[str, Placement],
    shares: Mapping[str, Share],
) -> tuple[Box, ...]:
    """The rectangles of one rank's part.

    Parameters
    ----------
    shape : of the whole tensor.
    placements : by mesh axis.
    shares : what the rank holds along each axis. Axes cut in this order.
    """
    # Per dimension, the runs (start, length) of the whole tensor that the part holds, in its own order.
    runs = [[(0, n)] for n in shape]
    for axis, share in shares.items():
        placement = placements.get(axis)
        if isinstance(placement, Shard):
            runs[placement.dim] = _cut(runs[placement.dim], placement.blocks, share)
    by_dim = [_with_local_starts(r) for r in runs]
    return tuple(
        Box(tuple(r[0] for r in rows), tuple(r[1] for r in rows), tuple(r[2] for r in rows))
        for rows in product(*by_dim)
    )


def _cut(runs: list[tuple[int, int]], blocks: int, share: Share) -> list[tuple[int, int]]:
    """A share of each of ``blocks`` equal blocks of the concatenated runs."""
    total = sum(length for _, length in runs)
    block = total // blocks
    part = block // share.of
    found: list[tuple[int, int]] = []
    for b in range(blocks):
        first = b * block + share.first * part
        found += _slice(runs, first, first + share.held * part)
    return found


def _slice(runs: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    position = 0
    for start, length in runs:
        low, high = max(first, position), min(last, position + length)
        if low < high:
            found.append((start + low - position, high - low))
        position += length
    return found


def _with_local_starts(runs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    found = []
    position = 0
    for start, length in runs:
        found.append((position, start, length))
        position += length
    return found

"""Functions that are captured as other ops, which show that each row of a batch is computed by itself.

PyTorch's own ops for them number elements through all rows: the bags of a batch are one list of indices with offsets,
and strides count in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._refs
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BY_ROWS", "windows"]


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags of one length, ``input`` [rows, length]; all others, and what PyTorch refuses, are left to its own op."""
    weights = per_sample_weights
    is_plain = not (sparse or scale_grad_by_freq or offsets is not None or max_norm is not None)
    is_weighed = weights is None or (mode == "sum" and weights.shape == input.shape)
    if input.dim() != 2 or not input.numel() or mode not in _POOLS or not is_plain or not is_weighed:
        return F.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse,
            per_sample_weights, include_last_offset, padding_idx,
        )  # fmt: skip
    found = F.embedding(input, weight, padding_idx)
    if weights is not None:
        found = found * weights.unsqueeze(-1)
    kept = None if padding_idx is None else (input != padding_idx % weight.shape[0]).unsqueeze(-1)
    return _POOLS[mode](found, kept)


def _sum(found: Tensor, kept: Tensor | None) -> Tensor:
    return (found if kept is None else torch.where(kept, found, 0)).sum(1)


def _mean(found: Tensor, kept: Tensor | None) -> Tensor:
    return found.mean(1) if kept is None else _sum(found, kept) / kept.sum(1).clamp(min=1)


def _max(found: Tensor, kept: Tensor | None) -> Tensor:
    """The largest; 0 where a bag has none."""
    if kept is None:
        return found.max(1).values
    return found.masked_fill(~kept, -torch.inf).max(1).values.masked_fill(~kept.any(1), 0)


_POOLS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"sum": _sum, "mean": _mean, "max": _max}


def _as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    offset = 0 if storage_offset is None else storage_offset - int(input.storage_offset())
    found = windows(input, size, stride, offset)
    return torch.as_strided(input, size, stride, storage_offset) if found is None else found


def windows(x: Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int) -> Tensor | None:
    """The view of a contiguous tensor with these sizes and strides, as ranges and windows of its dimensions.

    Parameters
    ----------
    offset : elements of ``x`` before the first of the view.

    Returns
    -------
    None where a dimension of the view runs over several of ``x``, or three of them over one.
    """
    if offset < 0 or not x.is_contiguous() or 0 in (*sizes, *x.shape):
        return None
    begins: list[int] = []
    for step in x.stride():
        begins.append(offset // step)
        offset %= step
    # By dimension of x, steps in it, sizes, and dimensions of the view.
    runs: list[list[tuple[int, int, int]]] = [[] for _ in x.shape]
    for place, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        if size > 1 and stride:
            fitting = [d for d, step in enumerate(x.stride()) if x.shape[d] > 1 and stride % step == 0]
            if not fitting:
                return None
            runs[fitting[0]].append((stride // x.stride(fitting[0]), size, place))
    extents = [1 + sum(step * (size - 1) for step, size, _ in run) for run in runs]
    if offset or any(
        begin + extent > size or len(run) > 2
        for begin, extent, size, run in zip(begins, extents, x.shape, runs, strict=True)
    ):
        return None
    return _cut(x, begins, extents, runs, sizes)


def _cut(
    x: Tensor,
    begins: Sequence[int],
    extents: Sequence[int],
    runs: Sequence[Sequence[tuple[int, int, int]]],
    sizes: Sequence[int],
) -> Tensor:
    places: list[int] = []  # in the view, of the dimensions before those that are still to be cut
    inner: list[int] = []  # of the elements of windows, which come last
    for begin, extent, run in zip(begins, extents, runs, strict=True):
        at = len(places)
        x = x.narrow(at, begin, extent)
        if not run:
            x = x.select(at, 0)
            continue
        (step, _, place), *rest = sorted(run, reverse=True)
        places.append(place)
        if rest:
            within, size, place = rest[0]
            x = x.unfold(at, within * (size - 1) + 1, step)[..., ::within]
            inner.append(place)
        else:
            x = x[(slice(None),) * at + (slice(None, None, step),)]
    places += inner
    x = x.permute([places.index(place) for place in sorted(places)])
    for place in range(len(sizes)):
        if place not in places:
            x = x.unsqueeze(place)
    return x.expand(tuple(sizes))


BY_ROWS: dict[Any, Callable[..., Any]] = {
    F.embedding_bag: _embedding_bag,
    torch.as_strided: _as_strided,
    Tensor.as_strided: _as_strided,
    torch.stft: torch._refs.stft,
    Tensor.stft: torch._refs.stft,
}

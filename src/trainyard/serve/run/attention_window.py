"""Windows of causal attention: how many tokens a query sees, its own and those right before it.

A window may depend on the position of the query: where attention is cut into chunks, a query sees its chunk only.
Transformers says it by functions of its masks, which tell of a query and a key whether one sees the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MaskFunction", "MaskWindow", "UnsupportedMaskError", "Window"]

_FIRST_POSITIONS = 1024
_MOST_COMPARED = 1 << 22
_SAMPLED = 64

Longs = NDArray[np.int64]
MaskFunction = Callable[[Any, Any, Tensor, Tensor], Tensor]
"""Whether queries see keys, by the numbers of sequence, head, query and key; of transformers' ``masking_utils``."""


class UnsupportedMaskError(ValueError):
    """A mask that is no window."""


class MaskWindow:
    """The window of a mask of transformers.

    Parameters
    ----------
    sees : the mask; of its queries, each has to see itself and the tokens right before it, up to some first one.
    context : the longest sequence, in tokens.
    device : of what the mask is made of.

    Raises
    ------
    UnsupportedMaskError
        If it is another mask.
    """

    def __init__(self, sees: MaskFunction, context: int, device: torch.device) -> None:
        self._sees, self._context, self._device = sees, context, device
        self._first: Longs = np.zeros(0, np.int64)
        self._require_window(context)

    def __call__(self, positions: Longs) -> Longs:
        """Tokens that queries see, their own among them.

        Parameters
        ----------
        positions : of the queries.
        """
        if len(positions) and (last := int(positions.max())) >= len(self._first):
            self._first = self._first_seen(np.arange(max(_FIRST_POSITIONS, 1 << last.bit_length())))
        windows: Longs = positions + 1 - self._first[positions]
        return windows

    @property
    def is_unbounded(self) -> bool:
        """Whether every query of the longest sequence is known to see all tokens before it."""
        if self._context > _MOST_COMPARED:
            return False
        queries = np.arange(self._context)
        return bool(self._is_seen(queries, np.zeros_like(queries)).all())

    def _first_seen(self, queries: Longs) -> Longs:
        """Search the first token that each query sees, by halves."""
        low, high = np.zeros_like(queries), queries.copy()
        while (low < high).any():
            middle = (low + high) // 2
            is_seen = self._is_seen(queries, middle)
            high, low = np.where(is_seen, middle, high), np.where(is_seen, low, middle + 1)
        if (np.diff(high) < 0).any():
            raise UnsupportedMaskError
        return high

    def _is_seen(self, queries: Longs, keys: Longs) -> NDArray[np.bool_]:
        """Whether each query sees the key of the same index."""
        query, key = (torch.from_numpy(each).to(self._device) for each in (queries, keys))
        zero = torch.zeros((), dtype=torch.int64, device=self._device)
        seen = torch.as_tensor(self._sees(zero, zero, query, key), device=self._device)
        found: NDArray[np.bool_] = seen.bool().expand(query.shape).cpu().numpy()
        return found

    def _require_window(self, context: int) -> None:
        """Look at the keys around the ends of what some queries see, and at keys anywhere."""
        random = np.random.default_rng(0)
        spread = np.geomspace(1, context, _SAMPLED).astype(np.int64) - 1
        queries = np.unique(np.concatenate([np.arange(min(context, _SAMPLED)), spread]))
        first = self._first_seen(queries)
        near = np.arange(-_SAMPLED, _SAMPLED)
        anywhere = (random.random((len(queries), _SAMPLED)) * (queries[:, None] + 1)).astype(np.int64)
        keys = np.concatenate([first[:, None] + near, queries[:, None] + near, anywhere], 1).clip(0)
        found = self._is_seen(np.repeat(queries, keys.shape[1]), keys.ravel()).reshape(keys.shape)
        if ((keys >= first[:, None]) & (keys <= queries[:, None]) != found).any():
            raise UnsupportedMaskError


Window = int | MaskWindow | None
"""Tokens that a query sees, its own among them: as many everywhere, as many as its position has, or all."""

"""Windows of causal attention: numbers of tokens that a query sees, its own and those right before it.

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
"""Function of transformers' ``masking_utils``: whether queries see keys, by sequence, head, query and key."""


class UnsupportedMaskError(ValueError):
    """A mask of attention that is no window."""


class MaskWindow:
    """The window of a mask of transformers.

    Parameters
    ----------
    sees : the mask; each query has to see its own token and those right before it, up to some first one.
    context : the longest sequence, in tokens.
    device : of the tensors that the mask uses.

    Raises
    ------
    UnsupportedMaskError
        If the mask is no window.
    """

    def __init__(self, sees: MaskFunction, context: int, device: torch.device) -> None:
        self._sees, self._context, self._device = sees, context, device
        self._first: Longs = np.zeros(0, np.int64)
        self._require_window(context)

    def __call__(self, positions: Longs) -> Longs:
        """Return the numbers of tokens that queries see, their own among them.

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
        """Whether every query of the longest sequence sees all tokens before it; False if too many would be compared."""
        if self._context > _MOST_COMPARED:
            return False
        queries = np.arange(self._context)
        return bool(self._is_seen(queries, np.zeros_like(queries)).all())

    def _first_seen(self, queries: Longs) -> Longs:
        """Find the first token that each query sees, by bisection."""
        low, high = np.zeros_like(queries), queries.copy()
        while (low < high).any():
            middle = (low + high) // 2
            is_seen = self._is_seen(queries, middle)
            high, low = np.where(is_seen, middle, high), np.where(is_seen, low, middle + 1)
        if (np.diff(high) < 0).any():
            raise UnsupportedMaskError("the window of a query begins before that of the query before it")
        return high

    def _is_seen(self, queries: Longs, keys: Longs) -> NDArray[np.bool_]:
        """Ask the mask whether each query sees the key of the same index."""
        query, key = (torch.from_numpy(each).to(self._device) for each in (queries, keys))
        zero = torch.zeros((), dtype=torch.int64, device=self._device)
        seen = torch.as_tensor(self._sees(zero, zero, query, key), device=self._device)
        found: NDArray[np.bool_] = seen.bool().expand(query.shape).cpu().numpy()
        return found

    def _require_window(self, context: int) -> None:
        """Refuse a mask that is no window for some queries.

        Keys near both ends of the window of each query are compared, and random ones before the query.
        """
        random = np.random.default_rng(0)
        spread = np.geomspace(1, context, _SAMPLED).astype(np.int64) - 1
        queries = np.unique(np.concatenate([np.arange(min(context, _SAMPLED)), spread]))
        first = self._first_seen(queries)
        near = np.arange(-_SAMPLED, _SAMPLED)
        anywhere = (random.random((len(queries), _SAMPLED)) * (queries[:, None] + 1)).astype(np.int64)
        keys = np.concatenate([first[:, None] + near, queries[:, None] + near, anywhere], 1).clip(0)
        found = self._is_seen(np.repeat(queries, keys.shape[1]), keys.ravel()).reshape(keys.shape)
        if ((keys >= first[:, None]) & (keys <= queries[:, None]) != found).any():
            raise UnsupportedMaskError("a query sees other keys than its own token and those right before it")


Window = int | MaskWindow | None
"""Tokens that a query sees, its own among them: a number, a number by the position of the query, or None for all."""

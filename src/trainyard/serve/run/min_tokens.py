"""Answers that do not end before they have a given number of tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.run.sampling import token_mask

__all__ = ["MinTokensConstraint"]


class MinTokensConstraint:
    """Forbids the tokens that end an answer until it has enough other tokens; a `TokenConstraint`.

    Parameters
    ----------
    num : tokens that the answer has before it may end.
    ends : tokens that end it.
    vocabulary : number of tokens that the model knows.
    """

    def __init__(self, num: int, ends: Iterable[int], vocabulary: int) -> None:
        self._num_left = num
        self._mask = ~token_mask(ends, vocabulary)

    def allowed(self) -> NDArray[np.int32] | None:
        """Return the tokens that do not end the answer; None once all may come."""
        return self._mask if self._num_left > 0 else None

    def take(self, token: int) -> None:
        """Take the token that the answer has got."""
        self._num_left -= 1

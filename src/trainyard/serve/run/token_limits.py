"""Constraints on the next token of an answer: bad words, allowed tokens, a form behind reasoning, or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.errors import ServeError
from trainyard.serve.run.reasoning_tokens import ReasoningProgress, ReasoningTokens
from trainyard.serve.run.sampling import token_mask
from trainyard.serve.run.structured_outputs import TokenConstraint

__all__ = ["AllowedTokens", "BadWords", "CombinedConstraint", "ConstraintAfterReasoning"]

Mask = NDArray[np.int32]
_ANY, _NONE = -1, -2  # in the place of tokens that do not matter, or do not exist


class AllowedTokens:
    """Allows some tokens only; a `TokenConstraint`.

    Parameters
    ----------
    tokens : those that may come.
    vocabulary : number of tokens that the model knows.
    """

    def __init__(self, tokens: Iterable[int], vocabulary: int) -> None:
        self._mask = token_mask(tokens, vocabulary)

    def allowed(self) -> Mask:
        """Return the same tokens each time."""
        return self._mask

    def take(self, token: int) -> None:
        """Do nothing: the tokens stay the same."""


class BadWords:
    """Forbids the token that would complete a bad word; a `TokenConstraint`.

    Only tokens of the answer count: a word that begins in the prompt is not a bad word.

    Parameters
    ----------
    words : tokens of each word; none is empty.
    vocabulary : number of tokens that the model knows.
    """

    def __init__(self, words: Sequence[Sequence[int]], vocabulary: int) -> None:
        longest = max(map(len, words)) - 1
        self._beginnings = np.full((len(words), longest), _ANY, np.int64)
        for row, word in zip(self._beginnings, words, strict=True):
            row[longest - len(word) + 1 :] = word[:-1]
        self._lasts = np.array([word[-1] for word in words], np.int64)
        self._vocabulary = vocabulary
        self._newest = np.full(longest, _NONE, np.int64)

    def allowed(self) -> Mask:
        """Return all tokens that complete no bad word."""
        is_begun = ((self._beginnings == self._newest) | (self._beginnings == _ANY)).all(axis=1)
        found: Mask = ~token_mask(self._lasts[is_begun], self._vocabulary)
        return found

    def take(self, token: int) -> None:
        """Take the token that the answer has got."""
        self._newest = np.append(self._newest, token)[1:] if len(self._newest) else self._newest


class ConstraintAfterReasoning:
    """Holds an answer to a form from the end of its reasoning on; a `TokenConstraint`.

    The answer does not end within its reasoning, as it would have no form.

    Parameters
    ----------
    form : that the answer has behind its reasoning.
    reasoning : the tokens around it.
    ends : tokens that end an answer.
    vocabulary : number of tokens that the model knows.
    """

    def __init__(
        self, form: TokenConstraint, reasoning: ReasoningTokens, ends: Iterable[int], vocabulary: int
    ) -> None:
        self._form, self._reasoning = form, ReasoningProgress(reasoning)
        self._in_reasoning = ~token_mask(ends, vocabulary)
        self._begin = token_mask((reasoning.begin,), vocabulary)

    def allowed(self) -> Mask | None:
        """Return all tokens but those that end an answer within the reasoning, and those of the form behind it."""
        if self._reasoning.is_open:
            return self._in_reasoning
        of_form = self._form.allowed()
        return of_form | self._begin if self._reasoning.may_begin and of_form is not None else of_form

    def take(self, token: int) -> None:
        """Take the token that the answer has got."""
        is_reasoning, _ = self._reasoning.take(token)
        if not is_reasoning:
            self._form.take(token)


class CombinedConstraint:
    """Allows the tokens that all of some constraints allow; a `TokenConstraint`."""

    def __init__(self, constraints: Sequence[TokenConstraint]) -> None:
        self._constraints = constraints

    def allowed(self) -> Mask | None:
        """Return the tokens; None for all.

        Raises
        ------
        ServeError
            If no token is left.
        """
        masks = [mask for each in self._constraints if (mask := each.allowed()) is not None]
        if not masks:
            return None
        found = reduce(np.bitwise_and, masks)
        if not found.any():
            raise ServeError(
                "no token may come next: allowed_token_ids, bad_words, min_tokens and the form of the answer leave none; "
                "leave one of these out"
            )
        return found

    def take(self, token: int) -> None:
        """Take the token that the answer has got."""
        for each in self._constraints:
            each.take(token)

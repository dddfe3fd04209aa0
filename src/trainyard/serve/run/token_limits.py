"""Which tokens an answer may have next: bad words, allowed tokens, reasoning before a form, and several of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.errors import ServeError
from trainyard.serve.run.reasoning_tokens import ReasoningTokens
from trainyard.serve.run.sampling import token_mask
from trainyard.serve.run.structured_outputs import TokenConstraint

__all__ = ["AllowedTokens", "BadWords", "CombinedConstraint", "FormAfterReasoning"]

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
        """The tokens."""
        return self._mask

    def take(self, token: int) -> None:
        """Nothing changes."""


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
        """All tokens that complete no bad word."""
        is_begun = ((self._beginnings == self._newest) | (self._beginnings == _ANY)).all(axis=1)
        found: Mask = ~token_mask(self._lasts[is_begun], self._vocabulary)
        return found

    def take(self, token: int) -> None:
        """Hear of the token that came."""
        self._newest = np.append(self._newest, token)[1:] if len(self._newest) else self._newest


class FormAfterReasoning:
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
        self._form, self._reasoning = form, reasoning
        self._is_open, self._is_first = reasoning.is_open, True
        self._in_reasoning = ~token_mask(ends, vocabulary)
        self._begin = token_mask((reasoning.begin,), vocabulary)

    def allowed(self) -> Mask | None:
        """Within the reasoning all tokens but those that end an answer; then those of the form."""
        if self._is_open:
            return self._in_reasoning
        of_form = self._form.allowed()
        return of_form | self._begin if self._is_first and of_form is not None else of_form

    def take(self, token: int) -> None:
        """Hear of the token that came."""
        is_first, self._is_first = self._is_first, False
        if self._is_open:
            self._is_open = token != self._reasoning.end
        elif is_first and token == self._reasoning.begin:
            self._is_open = True
        else:
            self._form.take(token)


class CombinedConstraint:
    """Allows the tokens that all of some constraints allow; a `TokenConstraint`."""

    def __init__(self, constraints: Sequence[TokenConstraint]) -> None:
        self._constraints = constraints

    def allowed(self) -> Mask | None:
        """The tokens; None for all.

        Raises
        ------
        ServeError
            If there is none.
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
        """Hear of the token that came."""
        for each in self._constraints:
            each.take(token)

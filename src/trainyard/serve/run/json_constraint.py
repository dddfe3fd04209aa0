"""Answers that conform to a JSON schema: which tokens may come next, by llguidance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.errors import ServeError
from trainyard.serve.run.sampling import token_mask

__all__ = ["JsonConstraints", "TokenConstraint"]

# Between the parts of a document; without a bound, a model may write nothing else for ever.
_SPACE = r"\n?[ ]{0,16}"


class TokenConstraint(Protocol):
    """Says of one answer which tokens may come next."""

    def allowed(self) -> NDArray[np.int32] | None:
        """The tokens, as `SamplingRow` takes them."""
        ...

    def take(self, token: int) -> None:
        """Hear of the token that came."""
        ...


class JsonConstraints:
    """Makes constraints of JSON schemas, for one tokenizer.

    Parameters
    ----------
    tokenizer : of transformers.
    vocabulary : tokens that the model knows.
    ends : tokens that end an answer.

    Raises
    ------
    ServeError
        If llguidance is not installed, or cannot use the tokenizer.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Iterable[int]) -> None:
        try:
            from llguidance.hf import from_tokenizer
        except ModuleNotFoundError as error:
            raise ServeError(
                "JSON schemas need llguidance, which the server has not: pip install 'trainyard[server]'"
            ) from error
        self._ends = sorted(ends)
        self._end = token_mask(self._ends, vocabulary)
        try:
            self._tokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=self._ends)
        except Exception as error:  # of a library in Rust
            raise ServeError(f"JSON schemas cannot be used with this tokenizer: {error}") from error

    def problem(self, schema: str) -> str:
        """What is wrong with a schema; "" if nothing is."""
        from llguidance import LLMatcher

        try:
            return str(LLMatcher.validate_grammar(_grammar(schema), self._tokenizer))
        except ValueError as error:
            return str(error)

    def of(self, schema: str) -> TokenConstraint:
        """A constraint for one answer, from the text of a schema that has no problem."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, _grammar(schema))
        return _Json(matcher, self._end)


def _grammar(schema: str) -> str:
    from llguidance import LLMatcher

    found: str = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _SPACE})
    return found


class _Json:
    """Where the matcher knows nothing more, the answer ends."""

    def __init__(self, matcher: Any, end: NDArray[np.int32]) -> None:
        self._matcher, self._end = matcher, end
        self._mask = np.zeros((1, len(end)), np.int32)

    def allowed(self) -> NDArray[np.int32]:
        from llguidance.numpy import fill_next_token_bitmask

        if not (self._matcher.is_error() or self._matcher.is_stopped()):
            fill_next_token_bitmask(self._matcher, self._mask, 0)
            if self._mask.any():
                found: NDArray[np.int32] = self._mask[0]
                return found
        return self._end

    def take(self, token: int) -> None:
        if not (self._matcher.is_error() or self._matcher.is_stopped()):
            self._matcher.consume_token(token)

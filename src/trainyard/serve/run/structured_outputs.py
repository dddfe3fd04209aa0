"""Constraints of llguidance on answers that conform to JSON schemas, regular expressions or grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.distribution import install_command
from trainyard.serve.errors import ServeError
from trainyard.serve.run.sampling import OutputForm, token_mask

__all__ = ["StructuredOutputs", "TokenConstraint", "json_rule"]

_MOST_COMPILED = 4
# Between the parts of a document; without a bound, a model may write nothing else for ever.
_SPACE = r"\n?[ ]{0,16}"


class TokenConstraint(Protocol):
    """A constraint on the next token of one answer."""

    def allowed(self) -> NDArray[np.int32] | None:
        """Return the tokens, as `SamplingRow` takes them.

        Raises
        ------
        ServeError
            If no answer can conform.
        """
        ...

    def take(self, token: int) -> None:
        """Take the token that the answer has got."""
        ...


class StructuredOutputs:
    """Makes constraints of the forms that answers are to have, for one tokenizer.

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
                f"JSON schemas and other forms need llguidance, which the server has not: {install_command('server')}"
            ) from error
        self._ends = sorted(ends)
        self._end = token_mask(self._ends, vocabulary)
        # All samples of a request, and requests one after the other with the same schema, have it compiled once.
        self._compiled = lru_cache(_MOST_COMPILED)(self._new_matcher)
        try:
            self._tokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=self._ends)
        except Exception as error:  # of a library in Rust
            raise ServeError(f"forms of answers cannot be used with this tokenizer: {error}") from error

    def problem(self, form: OutputForm) -> str:
        """Return the fault of a form, up to its first token; "" if there is none."""
        from llguidance import LLMatcher

        try:
            problem = str(LLMatcher.validate_grammar(_source(form), self._tokenizer))
            if not problem:
                self.constraint(form).allowed()
            return problem
        except ValueError as error:
            return str(error)

    def constraint(self, form: OutputForm) -> TokenConstraint:
        """Return the constraint that holds one answer to a form, which has no problem."""
        return _Matched(self._compiled(form).deep_copy(), self._end)

    def _new_matcher(self, form: OutputForm) -> Any:
        """A matcher at the beginning of an answer."""
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer, _source(form))


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema as part of a grammar of `OutputForm`."""
    return "%json " + json.dumps({"x-guidance": {"whitespace_pattern": _SPACE}} | dict(schema))


def _source(form: OutputForm) -> str:
    """Write a form of answers for llguidance.

    Raises
    ------
    ValueError
        If a grammar cannot be read.
    """
    from llguidance import LLMatcher, grammar_from

    found: str
    if form.grammar:
        found = grammar_from("grammar", form.grammar)
    elif form.regex:
        found = grammar_from("regex", form.regex)
    elif form.choices:
        # As one word of the grammar: of rules beside each other, llguidance takes 2,000.
        found = grammar_from("regex", "|".join(map(re.escape, form.choices)))
    else:
        found = LLMatcher.grammar_from_json_schema(form.json_schema, overrides={"whitespace_pattern": _SPACE})
    return found


class _Matched:
    """Tokens that a matcher allows; the answer ends where the matcher allows none."""

    def __init__(self, matcher: Any, end: NDArray[np.int32]) -> None:
        self._matcher, self._end = matcher, end
        self._mask = np.zeros((1, len(end)), np.int32)

    def allowed(self) -> NDArray[np.int32]:
        from llguidance.numpy import fill_next_token_bitmask

        if not self._matcher.is_stopped():
            fill_next_token_bitmask(self._matcher, self._mask, 0)
        if (
            self._matcher.is_error()
        ):  # only what comes next may show it, such as a schema that refers to itself
            why = str(self._matcher.get_error()).partition("\n")[0]
            raise ServeError(f"no answer can be made that conforms ({why}); give a simpler form")
        if self._matcher.is_stopped() or not self._mask.any():
            return self._end
        found: NDArray[np.int32] = self._mask[0]
        return found

    def take(self, token: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

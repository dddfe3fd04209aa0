"""Which tokens may come next: bad words as their definition has them, allowed tokens, and forms behind reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainyard.serve.errors import ServeError
from trainyard.serve.run.min_tokens import MinTokensConstraint
from trainyard.serve.run.reasoning_tokens import ReasoningTokens
from trainyard.serve.run.sampling import token_mask
from trainyard.serve.run.token_limits import (
    AllowedTokens,
    BadWords,
    CombinedConstraint,
    ConstraintAfterReasoning,
)

_SIZE = 70  # more than two words of bits
_BEGIN, _END, _STOP = 5, 6, 0


def tokens_in(mask: NDArray[np.int32] | None) -> set[int]:
    if mask is None:
        return set(range(_SIZE))
    return {token for token in range(_SIZE) if mask[token // 32] >> token % 32 & 1}


_TOKENS = st.integers(0, 3)


@given(
    st.lists(st.lists(_TOKENS, min_size=1, max_size=4), min_size=1, max_size=6), st.lists(_TOKENS, max_size=8)
)
def test_a_token_is_forbidden_if_it_completes_a_bad_word(words: Sequence[Sequence[int]], output: list[int]):
    limit = BadWords(words, _SIZE)
    for token in output:
        limit.take(token)
    completes = {
        token for token in range(_SIZE) if any(([*output, token])[-len(word) :] == word for word in words)
    }
    assert tokens_in(limit.allowed()) == set(range(_SIZE)) - completes


@given(st.sets(st.integers(0, _SIZE + 40)))
def test_a_mask_has_the_tokens_of_the_vocabulary(tokens: Iterable[int]):
    assert tokens_in(token_mask(tokens, _SIZE)) == {token for token in tokens if token < _SIZE}
    assert tokens_in(AllowedTokens(tokens, _SIZE).allowed()) == {token for token in tokens if token < _SIZE}


class _Steps:
    """A form that has tokens 10, 11, 12 and so on."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def allowed(self) -> NDArray[np.int32]:
        return token_mask((10 + len(self.seen),), _SIZE)

    def take(self, token: int) -> None:
        self.seen.append(token)


def test_a_form_begins_behind_open_reasoning():
    form = _Steps()
    limit = ConstraintAfterReasoning(form, ReasoningTokens(_BEGIN, _END, is_open=True), (_STOP,), _SIZE)
    for token in (40, _BEGIN, 41):
        assert tokens_in(limit.allowed()) == set(range(_SIZE)) - {_STOP}
        limit.take(token)
    limit.take(_END)
    assert tokens_in(limit.allowed()) == {10}
    limit.take(10)
    assert tokens_in(limit.allowed()) == {11}
    assert form.seen == [10]


def test_an_answer_may_begin_with_reasoning_or_with_its_form():
    reasoning = ReasoningTokens(_BEGIN, _END, is_open=False)
    limit = ConstraintAfterReasoning(_Steps(), reasoning, (_STOP,), _SIZE)
    assert tokens_in(limit.allowed()) == {10, _BEGIN}
    limit.take(10)
    assert tokens_in(limit.allowed()) == {11}
    limit = ConstraintAfterReasoning(_Steps(), reasoning, (_STOP,), _SIZE)
    limit.take(_BEGIN)
    assert tokens_in(limit.allowed()) == set(range(_SIZE)) - {_STOP}
    limit.take(_END)
    assert tokens_in(limit.allowed()) == {10}


def test_several_limits_hold_together_and_none_left_is_an_error():
    limit = CombinedConstraint([AllowedTokens((1, 2, 3), _SIZE), BadWords([[1, 2], [3]], _SIZE)])
    assert tokens_in(limit.allowed()) == {1, 2}
    limit.take(1)
    assert tokens_in(limit.allowed()) == {1}
    none = CombinedConstraint([AllowedTokens((_STOP,), _SIZE), MinTokensConstraint(1, (_STOP,), _SIZE)])
    with pytest.raises(ServeError, match="no token may come next"):
        none.allowed()
    none.take(40)
    assert tokens_in(none.allowed()) == {_STOP}

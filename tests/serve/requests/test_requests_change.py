"""Requests that are cut, and their blocks."""

from __future__ import annotations

import pytest

from trainyard.serve.requests.change import cut, scaled
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest


def traced(*keys: int) -> TracedRequest:
    prefix = PrefixBlocks(keys, 4)
    return TracedRequest(Request("a", 3, 10, 5, prompt_ids=tuple(range(10)), prefix=prefix, parent="b"), 2)


@pytest.mark.parametrize(("prompt_tokens", "num_kept"), [(8, 2), (4, 1), (9, 2), (7, 1), (1, 0)])
def test_whole_blocks_keep_their_keys_and_cut_ones_do_not(prompt_tokens: int, num_kept: int) -> None:
    before = traced(7, 8, 9)
    request, output_tokens = cut(before, prompt_tokens)
    assert (request.prompt_tokens, request.prompt_ids, output_tokens) == (
        prompt_tokens,
        tuple(range(prompt_tokens)),
        2,
    )
    assert request.prefix is not None
    assert request.prefix.keys[:num_kept] == (7, 8, 9)[:num_kept]
    assert not {7, 8, 9} & set(request.prefix.keys[num_kept:])


def test_blocks_cut_at_the_same_token_are_the_same() -> None:
    first, second, other = cut(traced(7, 8, 9), 6), cut(traced(7, 8, 1), 6), cut(traced(7, 8, 9), 5)
    assert first.request.prefix == second.request.prefix
    assert first.request.prefix != other.request.prefix
    assert cut(traced(7, 3, 9), 6).request.prefix != first.request.prefix


def test_what_is_scaled_is_its_time_alone() -> None:
    assert scaled(traced(7, 8, 9), 2).request.arrival_s == 6
    assert scaled(scaled(traced(7, 8, 9), 2), 0.5) == traced(7, 8, 9)

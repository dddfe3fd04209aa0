"""Requests that are drawn: the same by seed, with the means and spreads that were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise

import numpy as np
import pytest

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.generate import (
    ArrivalProcess,
    Constant,
    ConstantGaps,
    Conversations,
    Gamma,
    IndependentLengths,
    LengthPairs,
    LogNormal,
    Poisson,
    SharedPrefixes,
    Uniform,
    WholeNumbers,
    generate_requests,
)

LENGTHS = IndependentLengths(Uniform(1, 50), Uniform(1, 20))


@pytest.mark.parametrize(
    ("arrivals", "cv"), [(Poisson(4), 1), (Gamma(4, 3), 3), (Gamma(4, 0.25), 0.25), (ConstantGaps(0.25), 0)]
)
def test_gaps_have_the_mean_and_the_spread(arrivals: ArrivalProcess, cv: float) -> None:
    gaps_s = np.array(list(islice(arrivals.gaps_s(np.random.default_rng(1)), 40_000)))
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.06)


def test_the_first_request_comes_at_0_and_the_others_in_order() -> None:
    arrivals_s = [each.request.arrival_s for each in generate_requests(5, ConstantGaps(0.5), LENGTHS)]
    assert arrivals_s == [0, 0.5, 1, 1.5, 2]
    arrivals_s = [each.request.arrival_s for each in generate_requests(500, Gamma(2, 4), LENGTHS)]
    assert arrivals_s[0] == 0
    assert all(earlier <= later for earlier, later in pairwise(arrivals_s))
    assert arrivals_s[-1] > 0


@pytest.mark.parametrize(
    ("numbers", "mean", "least", "most"),
    [(Constant(7), 7, 7, 7), (Uniform(3, 9), 6, 3, 9), (LogNormal(200, 0.5, 10_000), 200, 1, 10_000)],
)
def test_numbers(numbers: WholeNumbers, mean: float, least: int, most: int) -> None:
    rng = np.random.default_rng(2)
    drawn = [numbers.draw(rng) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(mean, rel=0.02)
    assert least <= min(drawn) <= max(drawn) <= most
    assert all(type(each) is int for each in drawn)


def test_numbers_reach_their_ends_and_no_further() -> None:
    rng = np.random.default_rng(3)
    assert {Uniform(3, 5).draw(rng) for _ in range(200)} == {3, 4, 5}
    drawn = [LogNormal(2, 3, 10).draw(rng) for _ in range(2000)]
    assert (min(drawn), max(drawn)) == (1, 10)


def test_the_spread_of_logarithms() -> None:
    rng = np.random.default_rng(4)
    drawn = [LogNormal(1000, 0.8, 10**7).draw(rng) for _ in range(40_000)]
    assert np.std(drawn) / np.mean(drawn) == pytest.approx(0.8, rel=0.04)


def test_pairs_stay_together_and_come_equally_often() -> None:
    pairs = ((1, 9), (5, 2), (5, 2), (8, 8))
    found = Counter(
        (each.request.prompt_tokens, each.output_tokens)
        for each in generate_requests(4000, ConstantGaps(0), LengthPairs(pairs), 5)
    )
    assert found.keys() == set(pairs)
    assert found[5, 2] / 4000 == pytest.approx(0.5, abs=0.03)


def test_the_same_seed_gives_the_same_requests_and_parts_do_not_move_each_other() -> None:
    prefixes = SharedPrefixes(5, 32, 16, 1.0)
    first, again, other = (
        list(generate_requests(50, Poisson(1), LENGTHS, seed, prefixes=prefixes)) for seed in (7, 7, 8)
    )
    assert first == again != other
    alone = list(generate_requests(50, Poisson(1), LENGTHS, 7))
    assert [each.request.arrival_s for each in alone] == [each.request.arrival_s for each in first]
    assert [each.request.prompt_tokens + 32 for each in alone] == [
        each.request.prompt_tokens for each in first
    ]
    assert len({each.request.name for each in first}) == 50


def test_outputs_end_where_clients_take_no_more() -> None:
    found = list(
        generate_requests(200, Poisson(1), IndependentLengths(Constant(1), Uniform(1, 20)), max_tokens=8)
    )
    assert {each.request.max_tokens for each in found} == {8}
    assert Counter(each.output_tokens for each in found)[8] > 100
    assert max(each.output_tokens for each in found) == 8


@pytest.mark.parametrize(("exponent", "shares"), [(0, [1 / 3] * 3), (1, [6 / 11, 3 / 11, 2 / 11])])
def test_prefixes_are_shared_as_often_as_they_should(exponent: float, shares: list[float]) -> None:
    prefixes = SharedPrefixes(3, 40, 16, exponent)
    lengths = IndependentLengths(Constant(30), Constant(1))
    found = list(generate_requests(6000, Poisson(1), lengths, 1, prefixes=prefixes))
    begins, ends = Counter[tuple[int, ...]](), list[int]()
    for each in found:
        assert each.request.prefix is not None
        keys, size = each.request.prefix
        assert (each.request.prompt_tokens, size, len(keys)) == (70, 16, 5)
        begins[keys[:2]] += 1
        ends += keys[2:]
    assert sorted(begins) == [(0, 1), (2, 3), (4, 5)]
    assert [begins[key] / 6000 for key in sorted(begins)] == pytest.approx(shares, abs=0.03)
    assert len(set(ends)) == len(ends) == 3 * 6000
    assert min(ends) == 6


def test_conversations_go_on_with_what_was_said() -> None:
    conversations = Conversations(Constant(3), 10, 4)
    lengths = IndependentLengths(Constant(5), Constant(6))
    found = list(generate_requests(8, ConstantGaps(100), lengths, conversations=conversations))
    assert [each.request.parent for each in found] == ["", "0", "1", "", "3", "4", "", "6"]
    assert [each.request.prompt_tokens for each in found] == [5, 16, 27, 5, 16, 27, 5, 16]
    assert [each.request.arrival_s for each in found if not each.request.parent] == [0, 100, 200]
    keys = [each.request.prefix.keys for each in found if each.request.prefix]
    assert list(map(len, keys)) == [2, 4, 7, 2, 4, 7, 2, 4]
    # 5 tokens are a whole block and a part, which the next prompt fills; 16 are whole blocks.
    assert keys[1][0] == keys[0][0]
    assert keys[1][1] != keys[0][1]
    assert keys[2][:4] == keys[1]
    assert not set(keys[2]) & set(keys[5])


def test_conversations_think_as_long_as_they_should_and_share_prefixes() -> None:
    conversations = Conversations(Uniform(1, 5), 10, 16)
    prefixes = SharedPrefixes(1, 16, 16)
    found = list(generate_requests(6000, Poisson(1), LENGTHS, conversations=conversations, prefixes=prefixes))
    thinking_s = [each.request.arrival_s for each in found if each.request.parent]
    assert np.mean(thinking_s) == pytest.approx(10, rel=0.06)
    assert len(thinking_s) / len(found) == pytest.approx(2 / 3, abs=0.02)
    assert {each.request.prefix.keys[0] for each in found if each.request.prefix} == {0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ConstantGaps(-1), "gap_s is -1; allowed is a finite number of at least 0"),
        (lambda: Poisson(0), "rate_per_s is 0; allowed is a finite number above 0"),
        (lambda: Poisson(float("nan")), "rate_per_s is nan"),
        (lambda: Gamma(float("inf"), 1), "rate_per_s is inf"),
        (lambda: Gamma(1, 0), "cv is 0; allowed is a number from 0.001 to 1000"),
        (lambda: Gamma(1, 1e200), "cv is 1e[+]200"),
        (lambda: Uniform(1, 2**70), "most is 1180591620717411303424; allowed is a whole number from 1 to 10000000"),
        (lambda: LengthPairs(((1, 2), (3, 2**70))), "the largest length of pairs is 1180591620717411303424"),
        (lambda: Constant(0), "value is 0; allowed is a whole number from 1 to 10000000"),
        (lambda: Constant(1.5), r"value is 1\.5; allowed is a whole number"),  # type: ignore[arg-type]
        (lambda: Uniform(0, 2), "least is 0; allowed is a whole number from 1 to 10000000"),
        (lambda: Uniform(3, 2), "most is 2; allowed is a whole number from 3 to 10000000"),
        (lambda: LogNormal(0, 1, 9), "mean is 0"),
        (lambda: LogNormal(1, -1, 9), "cv is -1"),
        (lambda: LogNormal(1, 1, 0), "most is 0"),
        (lambda: LengthPairs(()), "pairs is empty; allowed is 1 pair of lengths or more"),
        (lambda: LengthPairs(((1, 2), (3, 0))), "the least length of pairs is 0"),
        (lambda: SharedPrefixes(0, 1, 1), "num_prefixes is 0"),
        (lambda: SharedPrefixes(1, 0, 1), "prefix_tokens is 0"),
        (lambda: SharedPrefixes(1, 1, 0), "tokens_per_block is 0"),
        (lambda: SharedPrefixes(1, 1, 1, -0.1), r"exponent is -0\.1; allowed is a finite number of at least 0"),
        (lambda: Conversations(Constant(1), -1, 1), "mean_thinking_s is -1"),
        (lambda: Conversations(Constant(1), 1, 0), "tokens_per_block is 0"),
        (lambda: generate_requests(0, Poisson(1), LENGTHS), "num_requests is 0"),
        (lambda: generate_requests(1, Poisson(1), LENGTHS, -1), "seed is -1; allowed is a whole number from 0 to 9007"),
        (lambda: generate_requests(1, Poisson(1), LENGTHS, max_tokens=0), "max_tokens is 0"),
        (
            lambda: generate_requests(
                1, Poisson(1), LENGTHS,
                prefixes=SharedPrefixes(1, 1, 8), conversations=Conversations(Constant(1), 1, 16),
            ),
            "tokens_per_block is 8 and 16; allowed is one, the same for prefixes and conversations",
        ),
    ],
)  # fmt: skip
def test_numbers_out_of_range(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ServeError, match=said):
        make()

"""Tokens that are chosen, beside a plain sort of all probabilities and the processors of transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.serve.errors import ServeError
from trainyard.serve.run.sampling import NO_TOKEN, SamplingParams, SamplingRow, sample, seed_of

GREEDY = SamplingParams(temperature=0.0)


def row(params, seed=0, prompt=(), output=(), allowed=None):
    return SamplingRow(params, seed, prompt, list(output), allowed)


def probabilities(logits, params):
    """Of one row, after a sort of all tokens; equal ones by number."""
    scaled = logits.double() / params.temperature
    weights = torch.exp(scaled - scaled.max())
    weights[weights < params.min_p] = 0.0
    order = torch.argsort(weights, descending=True, stable=True)
    if params.top_k > 0:
        weights[order[params.top_k :]] = 0.0
    ordered = weights[order] / weights.sum()
    weights[order[ordered.cumsum(0) - ordered >= params.top_p - 1e-12]] = 0.0
    return (weights / weights.sum()).numpy()


def drawn(logits, params, num):
    """Tokens of as many places of one request's output."""
    rows = [row(params, 7, output=range(i)) for i in range(num)]
    return sample(logits.expand(num, -1).contiguous(), rows).tokens


def check_draws(logits, params, num=4000):
    """Only tokens that may be drawn are, as often as they should be."""
    wanted = probabilities(logits, params)
    counts = np.bincount(drawn(logits, params, num), minlength=len(wanted))
    assert not counts[wanted == 0.0].any()
    often = wanted * num > 5
    chi_square = ((counts - wanted * num)[often] ** 2 / (wanted * num)[often]).sum()
    assert chi_square < often.sum() + 5 * np.sqrt(2 * often.sum())


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(top_k=5),
    SamplingParams(top_k=1),
    SamplingParams(top_p=0.8),
    SamplingParams(top_p=0.01),
    SamplingParams(min_p=0.2),
    SamplingParams(top_k=12, top_p=0.7, temperature=1.5),
    SamplingParams(top_k=30, top_p=0.9, min_p=0.03),
]


@pytest.mark.parametrize("params", FILTERS)
@pytest.mark.parametrize("size", [3, 60, 700])
def test_draws_follow_the_probabilities(params, size):
    logits = 2.0 * torch.randn(size, generator=torch.Generator().manual_seed(size))
    check_draws(logits, params)


@pytest.mark.parametrize("params", FILTERS)
def test_of_equal_logits_the_first_are_kept(params):
    check_draws(torch.zeros(50), params)
    check_draws(torch.tensor([0.0, 1.0, 1.0, -torch.inf, 1.0, 0.0, 1.0] * 9), params)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(-24, 8), min_size=1, max_size=400),
    st.sampled_from([-1, 1, 2, 7, 50]),
    st.sampled_from([1.0, 0.97, 0.61, 0.3, 0.02]),
    st.sampled_from([0.0, 0.011, 0.3]),
)
def test_what_is_kept_is_what_a_sort_keeps(quarters, top_k, top_p, min_p):
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    logits = torch.tensor(quarters) / 4.0
    wanted = probabilities(logits, params)
    num = 300
    assert (wanted[drawn(logits, params, num)] > 0.0).all()
    # The last token is kept, too: it is drawn, where that is likely enough.
    last = np.flatnonzero(wanted > 0.0)[-1]
    shares = np.cumsum(wanted)[last - 1] if last else 0.0
    if 1.0 - shares > 0.1:
        assert last in drawn(logits, params, num)


def test_a_large_vocabulary_is_cut_where_a_sort_cuts_it():
    logits = 3.0 * torch.randn(2, 32000, generator=torch.Generator().manual_seed(1))
    for params in (
        SamplingParams(top_p=0.95),
        SamplingParams(top_k=50),
        SamplingParams(top_k=900, top_p=0.5),
    ):
        for each in logits:
            wanted = probabilities(each, params)
            assert (wanted[drawn(each, params, 200)] > 0.0).all()


def test_a_draw_depends_on_seed_and_place_alone():
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(2))
    params = [FILTERS[i % len(FILTERS)] for i in range(40)]
    rows = [row(each, seed=i, output=range(i % 5)) for i, each in enumerate(params)]
    together = sample(logits, rows).tokens
    assert together.tolist() == [sample(logits[i : i + 1], [rows[i]]).tokens[0] for i in range(40)]
    other = sample(logits, [replace(each, seed=each.seed + 1000) for each in rows]).tokens
    later = sample(logits, [replace(each, output=[0, *each.output]) for each in rows]).tokens
    assert (together != other).any()
    assert (together != later).any()


def test_greedy_takes_the_first_of_the_likeliest():
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(3))
    logits[4, [700, 300]] = 9.0
    assert sample(logits, [row(GREEDY)] * 5).tokens.tolist() == [*logits[:4].argmax(-1).tolist(), 300]


def test_penalties_are_those_of_transformers_and_openai():
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(4))
    prompt, output = [3, 4, 4, 9], [9, 9, 12, 3]
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    found = logits.clone()
    sample(found, [row(replace(GREEDY, repetition_penalty=1.3), prompt=prompt, output=output)])
    torch.testing.assert_close(found, wanted)
    for token in output:
        wanted[0, token] -= 0.25
    for token in set(output):
        wanted[0, token] -= 0.5
    found = logits.clone()
    params = replace(GREEDY, repetition_penalty=1.3, frequency_penalty=0.25, presence_penalty=0.5)
    sample(found, [row(params, prompt=prompt, output=output)])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("params", [each for each in FILTERS if not each.min_p])
def test_kept_tokens_are_those_of_transformers(params):
    """Without equal logits, which all stay there, and min_p, which comes after top_p there."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(5))
    scores = TemperatureLogitsWarper(params.temperature)(None, logits)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    scores = TopPLogitsWarper(params.top_p)(None, scores)
    assert np.allclose(probabilities(logits[0], params), scores[0].softmax(-1).numpy(), atol=1e-6)
    assert (scores[0][drawn(logits[0], params, 500)] > -torch.inf).all()


def test_bias_and_allowed_tokens():
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(6))
    bits = np.zeros(3, np.int32)
    bits[1], bits[2] = 1 << 4, 1 << 3
    only = np.full(2, -1, np.int32)
    only[1] = -(2**31)
    rows = [
        row(replace(GREEDY, logit_bias={11: 100.0})),
        row(SamplingParams(), 1, allowed=bits),
        row(replace(GREEDY, logit_bias=dict.fromkeys(range(32), -100.0)), allowed=only),
    ]
    found = sample(logits, rows).tokens
    assert found[0] == 11
    assert found[1] in (36, 67)
    assert found[2] == 63


def test_logprobs_are_of_the_logits_as_they_come():
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(8))
    wanted = logits.double().log_softmax(-1)
    rows = [
        row(replace(GREEDY, logprobs=20, logit_bias={5: 100.0})),
        row(SamplingParams(temperature=0.5, logprobs=0), 3),
        row(SamplingParams(), 3),
    ]
    found = sample(logits, rows)
    first, second, third = found.logprobs
    top = wanted[0].topk(20)
    assert found.tokens[0] == 5
    assert first.top.tolist() == top.indices.tolist()
    assert np.allclose(first.logprobs, top.values, atol=1e-5)
    assert first.chosen == pytest.approx(wanted[0, 5].item(), abs=1e-5)
    assert len(second.top) == 0
    assert second.chosen == pytest.approx(wanted[1, found.tokens[1]].item(), abs=1e-5)
    assert third is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": 2.1}, "temperature is 2.1; allowed is 0 to 2"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0; allowed is above 0, up to 1"),
        ({"top_k": 0}, "top_k is 0; allowed is 1 to"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty is 3; allowed is -2 to 2"),
        ({"top_k": 2**63}, "top_k is 9223372036854775808; allowed is 1 to 2147483647"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; allowed is 0.001 to 1000"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"logprobs": 21}, "logprobs is 21; allowed is 0 to 20"),
        ({"logit_bias": {3: 101}}, "logit_bias of token 3 is 101"),
    ],
)
def test_parameters_that_are_not_allowed(given, said):
    with pytest.raises(ServeError, match=said):
        SamplingParams(**given)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=3)])
def test_rows_without_a_token_to_choose(params):
    given = torch.zeros(3, 40)
    given[2] = torch.nan
    found = sample(
        given, [row(params, allowed=np.zeros(2, np.int32)), row(params), row(replace(params, logprobs=1))]
    )
    assert [token == NO_TOKEN for token in found.tokens] == [True, False, True]
    with pytest.raises(ServeError, match="vocabulary"):
        sample(torch.zeros(1, 40).double(), [row(params)])
    with pytest.raises(ServeError, match="allowed is 0 to 39"):
        sample(torch.zeros(1, 40), [row(replace(params, presence_penalty=1.0), output=[40])])


def test_seeds():
    assert seed_of(SamplingParams(seed=-3)) == -3
    assert seed_of(SamplingParams()) != seed_of(SamplingParams())
    assert sample(torch.zeros(1, 9), [row(SamplingParams(), seed=-3)]).tokens[0] in range(9)

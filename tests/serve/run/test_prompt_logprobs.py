"""Log-probabilities of prompts: those of transformers, however a prompt is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.serve.run.tiny_models import VOCABULARY, drawn_prompts, made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run import prompt_logprobs
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.prompt_logprobs import PromptLogprobs, PromptLogprobsCollector
from trainyard.serve.run.sampling import SamplingParams

_SCORED = SamplingParams(temperature=0.0, prompt_logprobs=3)
_PLAIN = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return CausalModel(made("llama"), "llama")


def new_engine(model: CausalModel, policy: str = "vllm", num_blocks: int = 100) -> Engine:
    ((_, chosen),) = parse_policies(policy)
    return Engine(model, chosen, EngineOptions(num_blocks, block_tokens=8))


def add(engine: Engine, prompt: Sequence[int], sampling: SamplingParams, **more: object) -> int:
    given = {"max_tokens": 4, "reads_cache": sampling.prompt_logprobs is None} | more
    return engine.add(Request("r", 0.0, len(prompt), prompt_ids=tuple(prompt), **given), sampling)  # type: ignore[arg-type]


def outputs(engine: Engine) -> dict[int, list[NewToken]]:
    found: dict[int, list[NewToken]] = {}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            found.setdefault(out.request, []).append(out)
    return found


def expected(prompt: Sequence[int]) -> np.ndarray:
    """Of all tokens after each of the prompt but the last, by transformers."""
    with torch.inference_mode():
        logits = made("llama")(torch.tensor([prompt])).logits[0, :-1].double()
    found: np.ndarray = torch.log_softmax(logits, -1).numpy()
    return found


def check(told: PromptLogprobs | None, prompt: Sequence[int]) -> None:
    assert told is not None
    right, rows = expected(prompt), np.arange(len(prompt) - 1)
    chosen = right[rows, list(prompt[1:])]
    np.testing.assert_allclose(told.chosen, chosen, atol=2e-4)
    np.testing.assert_allclose(told.logprobs, -np.sort(-right, axis=1)[:, :3], atol=2e-4)
    np.testing.assert_allclose(right[rows[:, None], told.top], told.logprobs, atol=2e-4)
    # A rank may differ only where tokens are as likely but for rounding.
    least = (right >= chosen[:, None] + 4e-4).sum(1) + 1
    most = (right >= chosen[:, None] - 4e-4).sum(1)
    assert ((least <= told.ranks) & (told.ranks <= most)).all()


@pytest.mark.parametrize(
    ("policy", "most_rows"),
    [
        ("vllm", None),
        ("vllm", 7),
        ("vllm", 1),
        ("sarathi(chunk_tokens=16)", None),
        ("sarathi(chunk_tokens=16)", 5),
    ],
)
def test_they_are_those_of_transformers_beside_other_requests(model, monkeypatch, policy, most_rows):
    if most_rows:
        monkeypatch.setattr(prompt_logprobs, "_MOST_SCORE_BYTES", most_rows * 4 * VOCABULARY)
    prompts = drawn_prompts(6)
    plain = new_engine(model, policy)
    for prompt in prompts:
        add(plain, prompt, _PLAIN)
    alone = [[new.token for new in each] for each in outputs(plain).values()]
    engine = new_engine(model, policy)
    numbers = [add(engine, prompt, _PLAIN if i % 3 == 1 else _SCORED) for i, prompt in enumerate(prompts)]
    found = outputs(engine)
    for i, (number, prompt) in enumerate(zip(numbers, prompts, strict=True)):
        if i % 3 == 1:
            assert all(new.prompt_logprobs is None for new in found[number])
        else:
            check(found[number][0].prompt_logprobs, prompt)
            assert all(new.prompt_logprobs is None for new in found[number][1:])
    assert [[new.token for new in found[number]] for number in numbers] == alone


def test_scores_of_a_step_are_bounded(model, monkeypatch):
    monkeypatch.setattr(prompt_logprobs, "_MOST_SCORE_BYTES", 10 * 4 * VOCABULARY)
    compute, sizes = model.logits, []

    def seen(items, requests, rows):
        sizes.append(len(rows))
        return compute(items, requests, rows)

    monkeypatch.setattr(model, "logits", seen)
    engine, prompt = new_engine(model), list(range(3, 103))
    add(engine, prompt, _SCORED)
    check(outputs(engine)[0][0].prompt_logprobs, prompt)
    assert max(sizes) <= 10
    assert sum(sizes[:10]) == len(prompt)


def test_a_cached_prompt_has_them_all(model):
    engine, prompt = new_engine(model), drawn_prompts(1)[0] * 2
    add(engine, prompt, _PLAIN)
    outputs(engine)
    number = add(engine, prompt, _SCORED)
    (first, *_) = outputs(engine)[number]
    check(first.prompt_logprobs, prompt)
    assert first.num_cached_tokens == 0
    number = add(engine, prompt, _PLAIN)
    assert outputs(engine)[number][0].num_cached_tokens > 0


def test_all_samples_and_preempted_requests_have_them_once(model):
    prompts = drawn_prompts(8)
    engine = new_engine(model, num_blocks=32)
    numbers = [add(engine, prompt, _SCORED, max_tokens=24, num_samples=2) for prompt in prompts]
    found = outputs(engine)
    assert engine.state.num_preemptions > 0
    for number, prompt in zip(numbers, prompts, strict=True):
        told = [new for new in found[number] if new.prompt_logprobs is not None]
        assert len(told) == 1
        assert told[0] is found[number][0]
        check(told[0].prompt_logprobs, prompt)


def test_a_prompt_of_one_token_has_none(model):
    engine = new_engine(model)
    add(engine, [5], _SCORED)
    told = outputs(engine)[0][0].prompt_logprobs
    assert told is not None
    assert len(told.chosen) == 0


def test_they_do_not_go_with_a_cached_prefix(model):
    with pytest.raises(ServeError, match="reads_cache"):
        add(new_engine(model), [5, 6], _SCORED, reads_cache=True)


def test_a_prompt_that_is_begun_anew_goes_on_where_it_was():
    prompt, scores = (3, 1, 2, 0, 3), np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    whole, cut = PromptLogprobsCollector(prompt, 2, 5), PromptLogprobsCollector(prompt, 2, 5)
    assert whole.wanted(0, 5) == range(4)
    whole.add(scores)
    assert cut.wanted(0, 2) == range(2)
    cut.add(scores[:2])
    assert cut.wanted(0, 1) == range(2, 1)  # after a preemption
    assert cut.wanted(0, 5) == range(2, 4)
    cut.add(scores[2:])
    assert not cut.wanted(0, 9)
    for name in ("chosen", "ranks", "top", "logprobs"):
        np.testing.assert_array_equal(getattr(cut.found, name), getattr(whole.found, name))

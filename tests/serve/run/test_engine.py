"""Requests of an engine: how they end, are cancelled and are refused, and that one does not change another's tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from tests.serve.run.tiny_models import CONTEXT, VOCABULARY, drawn_prompts, made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policies.vtc import VTC
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel, load_causal_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken, Refused
from trainyard.serve.run.sampling import SamplingParams

_OPTIONS = EngineOptions(num_blocks=40, block_tokens=8, num_host_blocks=80)
_GREEDY = SamplingParams(temperature=0.0)
_POLICIES = (
    "vllm",
    "vllm_v0(preempt='swap')",
    "sarathi(chunk_tokens=16)",
    "orca(max_requests=6)",
    "vllm + vtc",
    "vllm + longest_prefix",
    "vllm + shortest_prompt",
)


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return CausalModel(made("llama"), "llama")


def engine(model: CausalModel, policy: str = "vllm", options: EngineOptions = _OPTIONS) -> Engine:
    ((_, chosen),) = parse_policies(policy)
    return Engine(model, chosen, options)


def request(prompt: Iterable[int], max_tokens: int = 10, name: str = "r", **more: object) -> Request:
    ids = tuple(prompt)
    return Request(name, 0.0, len(ids), max_tokens, prompt_ids=ids, **more)  # type: ignore[arg-type]


def tokens_of(found: Engine) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    while found.has_work:
        for out in found.step():
            assert isinstance(out, NewToken)
            tokens.setdefault(out.request, []).append(out.token)
    return tokens


@pytest.fixture(scope="module")
def alone(model: CausalModel) -> dict[tuple[int, ...], list[int]]:
    """Tokens of prompts, each served by itself."""
    found = {}
    for prompt in drawn_prompts(16):
        by_itself = engine(model)
        by_itself.add(request(prompt, 24), _GREEDY)
        (found[prompt],) = tokens_of(by_itself).values()
    return found


@pytest.mark.parametrize("policy", _POLICIES)
def test_cancelled_requests_leave_nothing_behind(
    model: CausalModel, alone: dict[tuple[int, ...], list[int]], policy: str
):
    """Whether they wait, run or are swapped out; the others get what they would get anyway."""
    prompts, rng = tuple(alone), random.Random(1)
    found = engine(model, policy)
    numbers = {}
    for i, prompt in enumerate(prompts):
        samples = 2 if i % 5 == 0 else 1
        number = found.add(
            request(prompt, 24, str(i), client=f"client {i % 3}", num_samples=samples), _GREEDY
        )
        numbers[number] = prompt
    tokens: dict[int, list[int]] = {}
    cancelled: set[int] = set()
    while found.has_work:
        for out in found.step():
            assert isinstance(out, NewToken)
            assert out.request not in cancelled
            if out.sample == 0:
                tokens.setdefault(out.request, []).append(out.token)
        if rng.random() < 0.3 and len(cancelled) < len(prompts) // 2:
            number = rng.choice(sorted(numbers))
            found.cancel(number)
            if len(tokens.get(number, [])) < 24:
                cancelled.add(number)
    assert cancelled
    assert found.num_free_blocks == _OPTIONS.num_blocks
    assert (found.state.num_waiting, found.state.num_running, found.state.num_swapped) == (0, 0, 0)
    for number, prompt in numbers.items():
        if number not in cancelled:
            assert tokens[number] == alone[prompt]


def test_seeded_draws_are_the_same_alone_and_beside_others(model: CausalModel):
    drawn = SamplingParams(temperature=1.0, top_p=0.95, seed=7)
    prompts = drawn_prompts(8)
    found = engine(model, "sarathi(chunk_tokens=16)")
    beside = found.add(request(prompts[0], 20, num_samples=2), drawn)
    for i, prompt in enumerate(prompts[1:]):
        found.add(request(prompt, 20, f"other {i}"), SamplingParams(temperature=1.0, seed=i))
    samples: dict[int, list[int]] = {0: [], 1: []}
    while found.has_work:
        for out in found.step():
            assert isinstance(out, NewToken)
            if out.request == beside:
                samples[out.sample].append(out.token)
    alone = engine(model)
    alone.add(request(prompts[0], 20), drawn)
    assert tokens_of(alone) == {0: samples[0]}
    assert samples[0] != samples[1]


def test_an_answer_ends_at_a_stop_token_or_the_longest_sequence(model: CausalModel):
    prompt = drawn_prompts(1)[0]
    whole = engine(model)
    whole.add(request(prompt, 20), _GREEDY)
    (tokens,) = tokens_of(whole).values()
    stop = tokens[4]
    found = engine(model)
    found.add(request(prompt, 20), _GREEDY, frozenset({stop}))
    reasons = []
    while found.has_work:
        reasons += [(out.token, out.finish_reason) for out in found.step() if isinstance(out, NewToken)]
    assert reasons[-1] == (stop, "stop")
    assert len(reasons) == tokens.index(stop) + 1
    short = engine(model, options=EngineOptions(num_blocks=40, block_tokens=8, max_model_len=len(prompt) + 3))
    short.add(request(prompt, 20), _GREEDY)
    assert tokens_of(short) == {0: tokens[:3]}


@pytest.mark.parametrize("policy", _POLICIES)
def test_no_answer_ends_before_its_least_tokens(model: CausalModel, policy: str):
    """Also not where it is preempted, or is one of several answers."""
    found, ends = engine(model, policy), frozenset(range(VOCABULARY)) - {7}
    least = {}
    for i, prompt in enumerate(drawn_prompts(16)):
        sampling = SamplingParams(min_tokens=i, seed=i, logit_bias={7: -100.0})
        least[found.add(request(prompt, 24, str(i), num_samples=1 + i % 2), sampling, ends)] = i
    tokens: dict[tuple[int, int], list[int]] = {}
    while found.has_work:
        for out in found.step():
            assert isinstance(out, NewToken)
            tokens.setdefault((out.request, out.sample), []).append(out.token)
    assert len(tokens) == 16 + 8
    for (number, _), answer in tokens.items():
        assert answer[:-1] == [7] * least[number]
        assert answer[-1] != 7
    with pytest.raises(ServeError, match="all tokens end it"):
        found.add(request([1]), SamplingParams(min_tokens=1), frozenset(range(VOCABULARY)))


def test_what_cannot_be_served_is_refused(model: CausalModel):
    found = engine(model)
    with pytest.raises(ServeError, match="has no prompt_ids"):
        found.add(Request("r", 0.0, 5, 5))
    with pytest.raises(ServeError, match=f"allowed are 0 to {VOCABULARY - 1}"):
        found.add(request([VOCABULARY]))
    with pytest.raises(ServeError, match="a prompt of 300 tokens; prompt and answer have at most 256"):
        found.add(request([1] * 300))
    assert not found.has_work
    with pytest.raises(ServeError, match=f"max_model_len {CONTEXT + 1}; llama supports at most {CONTEXT}"):
        engine(model, options=EngineOptions(100, max_model_len=CONTEXT + 1))
    with pytest.raises(ServeError, match="computes each step to its end"):
        Engine(model, _StopsSteps(), _OPTIONS)
    with pytest.raises(ServeError, match="has to know how long outputs will be"):
        Engine(model, vllm(admission=VTC(predict="oracle")), _OPTIONS)
    with pytest.raises(ServeError, match="max_model_len 100; allowed is 2 to 64"):
        engine(model, options=EngineOptions(4, 16, max_model_len=100))


class _StopsSteps(TokenBudget):
    """Every request that arrives stops the step that runs."""

    def stops(self, arrived: RequestState, computed: Sequence[RequestState], state: Any) -> bool:
        return True


class _ShortOnly:
    """A policy that refuses long prompts."""

    repeats = "never"

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: None) -> None:
        for each in [*draft.running, *draft.waiting]:
            if each.request.prompt_tokens > 10:
                draft.refuse(each, "too long")
            else:
                draft.compute(each, draft.num_left(each))


def test_a_request_that_the_policy_refuses_is_told(model: CausalModel):
    found = Engine(model, _ShortOnly(), _OPTIONS)
    found.add(request(range(5), 2))
    number = found.add(request(range(20), 2, "long"), _GREEDY)
    outs = found.step()
    assert [out for out in outs if isinstance(out, Refused)] == [Refused(number, "too long")]
    assert len(tokens_of(found)[0]) == 1


def test_folders_without_a_model_are_refused(tmp_path):
    with pytest.raises(ServeError, match=r"has no config\.json"):
        load_causal_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ServeError, match="no weights as safetensors"):
        load_causal_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(8) + b"nothing")
    with pytest.raises(ServeError, match="cannot be read"):
        load_causal_model(tmp_path)

"""An engine generates what `generate` of transformers does, whatever the policy does with the cache meanwhile."""

from __future__ import annotations

import pytest
import torch
from tests.serve.run.tiny_models import NAMES, drawn_prompts, generated, made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken, StepRecord
from trainyard.serve.run.sampling import SamplingParams

_NUM, _TOKENS, _CLOSE = 32, 20, 1e-4

ROOMY = EngineOptions(num_blocks=400, block_tokens=8)
TIGHT = EngineOptions(num_blocks=24, block_tokens=8)
HOSTED = EngineOptions(num_blocks=24, block_tokens=8, num_host_blocks=120)
UNSHARED = EngineOptions(num_blocks=40, block_tokens=8, prefix_caching=False)

RUNS = {
    "vllm": ("vllm(max_requests=12)", ROOMY),
    "recomputing": ("vllm", TIGHT),
    "swapping": ("vllm_v0(preempt='swap')", HOSTED),
    "prompts first": ("vllm_v0", TIGHT),
    "chunks": ("sarathi(chunk_tokens=16)", TIGHT),
    "no prefixes": ("sarathi(chunk_tokens=16)", UNSHARED),
    "reservations": ("orca(max_requests=12)", ROOMY),
    "by client": ("vllm + vtc", TIGHT),
    "longest prefix": ("vllm + sglang", TIGHT),
    "shortest prompt": ("vllm + shortest_prompt", TIGHT),
}


def served(
    model: CausalModel, policy: str, options: EngineOptions
) -> tuple[dict[int, list[int]], list[StepRecord]]:
    """Tokens of every request, by its place, and the steps."""
    steps: list[StepRecord] = []
    ((_, chosen),) = parse_policies(policy)
    engine = Engine(model, chosen, options, seen=steps.append)
    places = {}
    for i, prompt in enumerate(drawn_prompts(_NUM)):
        request = Request(str(i), 0.0, len(prompt), _TOKENS, client=f"client {i % 4}", prompt_ids=prompt)
        places[engine.add(request, SamplingParams(temperature=0.0))] = i
    found: dict[int, list[int]] = {i: [] for i in range(_NUM)}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            found[places[out.request]].append(out.token)
            assert out.finish_reason == ("length" if len(found[places[out.request]]) == _TOKENS else "")
    assert engine.num_free_blocks == options.num_blocks
    return found, steps


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str) -> CausalModel:
    return CausalModel(made(name), name)


@pytest.mark.parametrize("run", RUNS)
def test_tokens_are_those_of_generate(name: str, model: CausalModel, run: str):
    found, steps = served(model, *RUNS[run])
    reference = generated(name, tuple(drawn_prompts(_NUM)), _TOKENS)
    num_close = 0
    for i, (tokens, gaps) in enumerate(reference):
        first = next((k for k in range(_TOKENS) if found[i][k] != tokens[k]), None)
        if first is not None:
            assert gaps[first] < _CLOSE, f"request {i}, token {first}"
            num_close += 1
    assert num_close <= _NUM // 100
    ops = [op.kind for step in steps for op in step.batch.cache_ops]
    num_preempted = sum(len(step.batch.preempted) for step in steps)
    if run in ("recomputing", "swapping", "prompts first", "chunks"):
        assert num_preempted > 0
    assert ("swap in" in ops) == (run == "swapping")
    assert ("share" in ops) == (run != "no prefixes")
    if run in ("chunks", "no prefixes"):
        assert max(step.batch.num_tokens for step in steps) <= 16


def test_samples_of_a_prompt_share_it_until_they_write(model: CausalModel, name: str):
    """Copies on write: each answer is what it would be alone."""
    ((_, policy),) = parse_policies("vllm")
    (prompt,) = drawn_prompts(1)
    reference = generated(name, tuple(drawn_prompts(_NUM)), _TOKENS)[0][0]
    steps: list[StepRecord] = []
    engine = Engine(model, policy, ROOMY, seen=steps.append)
    engine.add(
        Request("n", 0.0, len(prompt), _TOKENS, prompt_ids=prompt, num_samples=3),
        SamplingParams(temperature=0.0),
    )
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            found[out.sample].append(out.token)
    assert found == dict.fromkeys(range(3), reference)
    assert any(op.kind == "copy" for step in steps for op in step.batch.cache_ops)
    assert engine.num_free_blocks == ROOMY.num_blocks


def test_a_model_with_its_own_attention_is_refused():
    from transformers import BloomConfig, BloomForCausalLM

    from trainyard.serve.errors import ServeError

    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(ServeError, match="attention"):
        CausalModel(model, "bloom")

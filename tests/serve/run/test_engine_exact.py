"""An engine generates what `generate` of transformers does, whatever the policy does with the cache meanwhile."""

from __future__ import annotations

import pytest
import torch
from tests.serve.run.exact_runs import NUM, ROOMY, RUNS, TOKENS, check_exact, served
from tests.serve.run.tiny_models import NAMES, drawn_prompts, generated, made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine
from trainyard.serve.run.outputs import NewToken, StepRecord
from trainyard.serve.run.sampling import SamplingParams


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str) -> CausalModel:
    return CausalModel(made(name), name)


# What a policy does with the cache is the same for all models but those with a window: the others have the rest of the
# policies among the slow tests.
_ALL_RUNS, _OF_ALL_MODELS = ("llama", "mistral with a window"), ("chunks", "swapping", "longest prefix")


@pytest.mark.parametrize(
    ("name", "run"),
    [
        pytest.param(
            name, run, marks=[pytest.mark.slow] * (name not in _ALL_RUNS and run not in _OF_ALL_MODELS)
        )
        for name in NAMES
        for run in RUNS
    ],
    indirect=["name"],
    scope="module",
)
def test_tokens_are_those_of_generate(name: str, model: CausalModel, run: str):
    found, steps = served(model, *RUNS[run])
    check_exact(name, found)
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
    reference = generated(name, tuple(drawn_prompts(NUM)), TOKENS)[0][0]
    steps: list[StepRecord] = []
    engine = Engine(model, policy, ROOMY, seen=steps.append)
    engine.add(
        Request("n", 0.0, len(prompt), TOKENS, prompt_ids=prompt, num_samples=3),
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

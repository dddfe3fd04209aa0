"""vLLM itself makes the batches that a policy decides, and generates what transformers do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.serve.run.tiny_models import CONTEXT, drawn_prompts, generated, made
from tests.serve.run.vllm.vllm_environment import SOURCE, vllm_python

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import StepRecord
from trainyard.serve.run.sampling import SamplingParams

_NUM, _TOKENS, _CLOSE, _BLOCK_TOKENS = 32, 40, 1e-4, 32
_NAME = "llama with wide heads"
_TIGHT, _ROOMY = 12, 200
_CLIENTS = [f"client {i % 4}" for i in range(_NUM)]
_PROMPTS = tuple(tuple(range(40)) + prompt for prompt in drawn_prompts(_NUM))  # more than a block is shared


def _engine_steps(policy: str, num_blocks: int, prefix_caching: bool) -> list[StepRecord]:
    """The same requests on our engine."""
    steps: list[StepRecord] = []
    ((_, chosen),) = parse_policies(policy)
    options = EngineOptions(num_blocks, _BLOCK_TOKENS, prefix_caching=prefix_caching)
    engine = Engine(CausalModel(made(_NAME), _NAME), chosen, options, seen=steps.append)
    for i, prompt in enumerate(_PROMPTS):
        request = Request(str(i), 0.0, len(prompt), _TOKENS, client=_CLIENTS[i], prompt_ids=prompt)
        engine.add(request, SamplingParams(temperature=0.0))
    while engine.has_work:
        engine.step()
    return steps


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "num_blocks", "prefix_caching"),
    [
        ("vllm", _ROOMY, True),
        ("vllm(max_requests=12)", _TIGHT, False),
        ("vllm_v0(preempt='recompute')", _TIGHT, False),
        ("sarathi(chunk_tokens=40)", _TIGHT, False),
        ("orca(max_requests=8)", _TIGHT, False),
        ("vllm + vtc", _TIGHT, False),
        ("vllm + longest_prefix", _TIGHT, True),
    ],
)
def test_batches_are_those_of_the_policy_and_tokens_those_of_transformers(
    tmp_path, policy, num_blocks, prefix_caching
):
    python = vllm_python()
    made(_NAME).save_pretrained(tmp_path / "model")
    told = {
        "model": str(tmp_path / "model"),
        "policy": policy,
        "num_blocks": num_blocks,
        "prefix_caching": prefix_caching,
        "block_tokens": _BLOCK_TOKENS,
        "max_model_len": CONTEXT,
        "num_tokens": _TOKENS,
        "prompts": _PROMPTS,
        "extra_args": [{"client": client} for client in _CLIENTS],
    }
    script = Path(__file__).parent / "driven_vllm.py"
    ran = subprocess.run(
        [python, script, tmp_path / "found"],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    for i, (tokens, gaps) in enumerate(generated(_NAME, _PROMPTS, _TOKENS)):
        first = next((k for k in range(_TOKENS) if found["tokens"][i][k] != tokens[k]), None)
        assert first is None or gaps[first] < _CLOSE, f"request {i}, token {first}"
    assert found["num_free"] == num_blocks
    for step in found["steps"]:
        assert step["of_vllm"] == [stop - start for _, start, stop in step["items"]]
    if (
        num_blocks == _ROOMY or not prefix_caching
    ):  # else vLLM finds what several requests computed for longer
        ours = _engine_steps(policy, num_blocks, prefix_caching)
        assert [step["items"] for step in found["steps"]] == [
            [list(item) for item in step.batch.items] for step in ours
        ]
        assert [step["preempted"] for step in found["steps"]] == [list(step.batch.preempted) for step in ours]
    assert any(step["preempted"] for step in found["steps"]) == (
        num_blocks == _TIGHT and "orca" not in policy
    )
    assert any(found["cached"]) == prefix_caching

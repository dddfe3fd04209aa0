"""What an engine generates for prompts that come together, and whether it is what `generate` of transformers does."""

from __future__ import annotations

from tests.serve.run.tiny_models import drawn_prompts, generated

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken, StepRecord
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.step_model import StepModel

NUM, TOKENS, _CLOSE = 32, 20, 1e-4

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
    "longest prefix": ("vllm + longest_prefix", TIGHT),
    "shortest prompt": ("vllm + shortest_prompt", TIGHT),
}


def served(
    model: StepModel, policy: str, options: EngineOptions, num: int = NUM
) -> tuple[dict[int, list[int]], list[StepRecord]]:
    """Tokens of the first requests, by the place of each, and the steps."""
    steps: list[StepRecord] = []
    ((_, chosen),) = parse_policies(policy)
    engine = Engine(model, chosen, options, seen=steps.append)
    places = {}
    for i, prompt in enumerate(drawn_prompts(NUM)[:num]):
        request = Request(str(i), 0.0, len(prompt), TOKENS, client=f"client {i % 4}", prompt_ids=prompt)
        places[engine.add(request, SamplingParams(temperature=0.0))] = i
    found: dict[int, list[int]] = {i: [] for i in range(num)}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            found[places[out.request]].append(out.token)
            assert out.finish_reason == ("length" if len(found[places[out.request]]) == TOKENS else "")
    assert engine.num_free_blocks == options.num_blocks
    return found, steps


def check_exact(name: str, found: dict[int, list[int]]) -> None:
    """Tokens differ only after one that was hardly better than the next best."""
    num_close = 0
    references = generated(name, tuple(drawn_prompts(NUM)), TOKENS)
    for i in found:
        tokens, gaps = references[i]
        first = next((k for k in range(TOKENS) if found[i][k] != tokens[k]), None)
        if first is not None:
            assert gaps[first] < _CLOSE, f"request {i}, token {first}"
            num_close += 1
    assert num_close <= NUM // 100

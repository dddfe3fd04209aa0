"""What is simulated is what is run: with the same arrivals and step times, the simulator decides on the same batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.serve.run.tiny_models import VOCABULARY, drawn_prompts, made

from trainyard.serve.batch import Batch, CacheOp, WorkItem
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.instance import Instance
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken, StepRecord
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.simulate_requests import simulate_requests

_OPTIONS = EngineOptions(num_blocks=30, block_tokens=8, num_host_blocks=60, max_model_len=100)
_NUM = 24


class _Recorded:
    """Times of steps that were measured, in their order."""

    def __init__(self, steps: list[StepRecord], idle_after: set[int]) -> None:
        """A step lasts until the next one, or ends by itself where nothing was left to do."""
        starts = [step.start_s for step in steps]
        ends = [step.end_s if i in idle_after else starts[i + 1] for i, step in enumerate(steps)]
        self._seconds = iter([end - start for start, end in zip(starts, ends, strict=True)])

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        return next(self._seconds)

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> np.ndarray:
        raise AssertionError("steps are decided one by one")

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        return 0.0


class _Clock:
    """Time that goes on by a random amount whenever it is asked for, in binary fractions, so that sums are exact."""

    def __init__(self) -> None:
        self.now_s, self._rng = 0.0, np.random.default_rng(0)

    def __call__(self) -> float:
        self.now_s += int(self._rng.integers(1, 64)) / 4096
        return self.now_s


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return CausalModel(made("llama"), "llama")


@pytest.mark.parametrize(
    "text",
    ["vllm", "vllm_v0(preempt='swap')", "sarathi(chunk_tokens=16)", "orca(max_requests=6)", "vllm + vtc"],
)
def test_batches_are_the_same(model: CausalModel, text: str):
    ((_, policy),) = parse_policies(text)
    steps: list[StepRecord] = []
    clock = _Clock()
    engine = Engine(model, policy, _OPTIONS, clock, steps.append)
    coming = [
        Request(f"r{i}", 0.0, len(prompt), 30, client=f"client {i % 3}", prompt_ids=prompt)
        for i, prompt in enumerate(drawn_prompts(_NUM))
    ]
    greedy, stops = SamplingParams(temperature=0.0), frozenset(range(0, VOCABULARY, 12))
    tokens: dict[int, list[int]] = {}
    arrived: list[Request] = []
    idle_after: set[int] = set()
    while coming or engine.has_work:
        taken = []
        while coming and (not engine.has_work or len(steps) >= 3 * (len(arrived) + len(taken))):
            tokens[engine.add(coming[0], greedy, stops)] = []
            taken.append(coming.pop(0))
        for out in engine.step():
            assert isinstance(out, NewToken)
            tokens[out.request].append(out.token)
        arrived += [replace(request, arrival_s=steps[-1].start_s) for request in taken]
        if not engine.has_work:
            idle_after.add(len(steps) - 1)
    assert any(step.batch.preempted for step in steps) or "orca" in text

    traced = [TracedRequest(request, len(tokens[i])) for i, request in enumerate(arrived)]
    cache = BlockCache(_OPTIONS.num_blocks, _OPTIONS.block_tokens, _OPTIONS.num_host_blocks)
    simulated: list[tuple[float, Batch]] = []
    results = simulate_requests(
        traced,
        [Instance(policy, cache, _OPTIONS.max_model_len)],
        _Recorded(steps, idle_after),
        seen=lambda number, start_s, batch: simulated.append((start_s, batch)),
        next_token=lambda state: tokens[state.number][state.num_generated],
    )
    assert len(results.served) == _NUM
    assert [batch for _, batch in simulated] == [step.batch for step in steps]
    assert [start_s for start_s, _ in simulated] == [step.start_s for step in steps]

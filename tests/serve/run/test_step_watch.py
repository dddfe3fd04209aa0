"""An engine that has work and does no step is noticed, ended and started again; its requests are begun anew or fail."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from tests.serve.run.tiny_encoders import save_encoder
from tests.serve.run.tiny_models import drawn_prompts, generated, made
from transformers import AutoConfig

from trainyard.processes import ProcessLimits
from trainyard.serve.catalog import parse_policies
from trainyard.serve.policies.turbotransformers.batching import TurboTransformers
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.embedding_cost import PaddedBatchCost
from trainyard.serve.run.embedding_engine import EmbeddingEngine
from trainyard.serve.run.embedding_model import load_embedding_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.engine_client import EngineClient, EngineLostError
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.routed_engines import RoutedEngines
from trainyard.serve.run.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
_LIMITS = ProcessLimits(cpu_s=1.0, idle_s=600.0)
_POISON = 299  # the first token of a prompt over which an engine of these tests computes for ever


@dataclass(frozen=True)
class StickingSpec(EngineSpec):
    """An engine whose first process sticks in the prompts that are poison, or all of them do.

    Attributes
    ----------
    mark : file that the first process leaves; None if all processes stick.
    """

    mark: Path | None = None

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        sticks = self.mark is None or not self.mark.exists()
        if self.mark is not None:
            self.mark.touch()
        decide = engine._instance.decide

        def decide_or_stick(now_s: float):
            while sticks and any(
                entry.state.request.prompt_ids[0] == _POISON for entry in engine._entries.values()
            ):
                pass
            return decide(now_s)

        engine._instance.decide = decide_or_stick  # type: ignore[method-assign]
        return engine


@asynccontextmanager
async def _engines(spec: EngineSpec, num: int = 1, max_retries: int = 0) -> AsyncIterator[RoutedEngines]:
    clients = [EngineClient(spec.make_engine, _LIMITS) for _ in range(num)]
    engines = RoutedEngines(clients, max_retries=max_retries)
    await engines.start()
    try:
        yield engines
    finally:
        await engines.close()


async def _tokens(engines: RoutedEngines, prompt: tuple[int, ...]) -> list[int]:
    request = Request("r", 0.0, len(prompt), 10, prompt_ids=prompt)
    return [each.token async for each in engines.generate(request, _GREEDY)]


def _options() -> EngineOptions:
    return EngineOptions(num_blocks=100, block_tokens=8)


@pytest.mark.slow
def test_engine_that_does_no_step_fails_the_request_and_serves_the_next(folder: Path, runner: asyncio.Runner):
    poison, good = (_POISON, 1, 2), drawn_prompts(1)[0]

    async def run() -> list[int]:
        async with _engines(StickingSpec(folder, "vllm", _options())) as engines:
            (replica,) = engines.replicas
            sticking = asyncio.create_task(_tokens(engines, poison))
            while replica.is_ready:
                await asyncio.sleep(0.05)
            assert not engines.is_ready
            with pytest.raises(EngineLostError, match=r"did no step: its process used .* CPU seconds"):
                await sticking
            found = await _tokens(engines, good)
            assert (replica.num_stuck, replica.num_restarts) == (1, 1)
        return found

    assert runner.run(run()) == generated("llama", (good,), 10)[0][0]


def test_requests_of_a_stuck_engine_are_begun_anew(folder: Path, tmp_path: Path, runner: asyncio.Runner):
    prompts = ((_POISON, 1, 2), drawn_prompts(1)[0])

    async def run() -> list[list[int]]:
        spec = StickingSpec(folder, "vllm", _options(), mark=tmp_path / "began")
        async with _engines(spec, max_retries=1) as engines:
            found = await asyncio.gather(*(_tokens(engines, prompt) for prompt in prompts))
            assert engines.replicas[0].num_stuck == 1
        return found

    assert runner.run(run()) == [tokens for tokens, _ in generated("llama", prompts, 10)]


@pytest.mark.slow
def test_stopped_engine_is_noticed_by_the_clock_and_an_idle_one_is_left_alone(
    folder: Path, runner: asyncio.Runner
):
    (prompt,) = drawn_prompts(1)

    async def run() -> list[int]:
        spec = EngineSpec(folder, "vllm", _options())
        client = EngineClient(spec.make_engine, ProcessLimits(cpu_s=1000.0, idle_s=0.5))
        await client.start()
        engines = RoutedEngines([client], max_retries=1)
        await asyncio.sleep(4.0)  # several looks at an engine without work
        assert client.num_stuck == 0
        os.kill(client.process_id, signal.SIGSTOP)
        found = await _tokens(engines, prompt)
        assert client.num_stuck == 1
        await engines.close()
        return found

    assert runner.run(run()) == generated("llama", (prompt,), 10)[0][0]


def slow_in_layers(folder: Path) -> Engine:
    """An engine whose every step takes more CPU than a limit, but none of its layers."""
    engine = EngineSpec(folder, "vllm", _options()).make_engine()
    report_progress = engine.report_progress

    def report_slowly(report):
        def wait_and_report() -> None:
            end_s = time.process_time() + 0.6
            while time.process_time() < end_s:
                pass
            report()

        report_progress(wait_and_report)

    engine.report_progress = report_slowly  # type: ignore[method-assign]
    return engine


@pytest.mark.slow
def test_long_step_whose_layers_go_on_is_not_ended(folder: Path, runner: asyncio.Runner):
    async def run() -> int:
        client = EngineClient(partial(slow_in_layers, folder), _LIMITS)
        await client.start()
        engines = RoutedEngines([client])
        request = Request("r", 0.0, 3, 2, prompt_ids=(1, 2, 3))
        assert len([each async for each in engines.generate(request, _GREEDY)]) == 2
        await engines.close()
        return client.num_stuck

    assert runner.run(run()) == 0


def test_layers_and_chosen_tokens_are_progress() -> None:
    model = CausalModel(made("llama"))
    engine = Engine(model, parse_policies("vllm")[0][1], _options())
    reports = count()
    engine.report_progress(lambda: next(reports))
    engine.add(Request("r", 0.0, 3, 2, prompt_ids=(1, 2, 3)), _GREEDY)
    num_steps = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
    assert (num_steps, next(reports)) == (2, 2 * (len(model.shapes) + 1))


def test_layers_of_an_encoder_are_progress(tmp_path: Path) -> None:
    policy = TurboTransformers(PaddedBatchCost(50.0, 1.0), 6)
    engine = EmbeddingEngine(load_embedding_model(save_encoder(tmp_path)), policy)
    reports = count()
    engine.report_progress(lambda: next(reports))
    engine.add(Request("r", 0.0, 3, 1, prompt_ids=(5, 6, 7)))
    engine.step()
    assert next(reports) == AutoConfig.from_pretrained(tmp_path).num_hidden_layers

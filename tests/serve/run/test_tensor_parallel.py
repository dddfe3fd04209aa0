"""Processes that share a model generate what one does; when one of them ends, all are started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tests.serve.run.exact_runs import RUNS, check_exact, served
from tests.serve.run.tiny_models import drawn_prompts, generated, made

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_client import EngineClient
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.model_shards import model_shards
from trainyard.serve.run.routed_engines import RoutedEngines
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.tensor_parallel import TensorParallelModel

_TESTED = [
    "llama",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "mixtral")),
    pytest.param("qwen2", marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=_TESTED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorParallelModel]:
    folder = tmp_path_factory.mktemp(name)
    made(name).save_pretrained(folder)
    found = TensorParallelModel(folder, torch.float32, model_shards(folder, 2))
    yield found
    found.close()


@pytest.mark.parametrize(
    "run",
    [
        "chunks",
        *(
            pytest.param(run, marks=pytest.mark.slow)
            for run in ("vllm", "recomputing", "swapping", "no prefixes")
        ),
    ],
)
def test_tokens_are_those_of_generate(name: str, model: TensorParallelModel, run: str):
    found, steps = served(model, *RUNS[run])
    check_exact(name, found)
    num_preempted = sum(len(step.batch.preempted) for step in steps)
    assert (num_preempted > 0) == (run != "vllm")


def test_adapters_are_refused(model: TensorParallelModel, tmp_path: Path):
    with pytest.raises(ServeError, match="such models have no adapters"):
        model.load_adapter("some", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("whom", [pytest.param("first", marks=pytest.mark.long), "other"])
def test_when_a_process_is_killed_all_are_started_again(tmp_path: Path, whom: str):
    made("llama").save_pretrained(tmp_path)
    (prompt,) = drawn_prompts(1)
    options = EngineOptions(num_blocks=100, block_tokens=8)
    spec = EngineSpec(tmp_path, "vllm", options, shards=model_shards(tmp_path, 2))

    async def run() -> list[int]:
        client = EngineClient(spec.make_engine)
        engines = RoutedEngines([client], max_retries=1)
        await engines.start()
        first = psutil.Process(client.process_id)
        (other,) = (each for each in first.children() if "spawn_main" in " ".join(each.cmdline()))
        request, found = Request("r", 0.0, len(prompt), 190, prompt_ids=prompt), list[int]()
        async for each in engines.generate(request, SamplingParams(temperature=0.0)):
            found.append(each.token)
            if len(found) == 5:
                os.kill((first if whom == "first" else other).pid, signal.SIGKILL)
        assert client.num_restarts == 1
        await engines.close()
        _, alive = psutil.wait_procs([first, other], timeout=10)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        return found

    assert asyncio.run(run()) == generated("llama", (prompt,), 190)[0][0]

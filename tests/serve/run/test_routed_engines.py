"""Replicas of a model, each in a process of its own, between which a router of the simulator chooses."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.serve.run.tiny_adapters import merged, save_adapter
from tests.serve.run.tiny_models import drawn_prompts, generated, generated_by, made
from tests.serve.served import STEP

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.router import Router, least_requests, round_robin
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_adapters import AdapterUnloadedError
from trainyard.serve.run.engine_client import EngineClient, EngineLostError
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.routed_engines import RoutedEngines
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.simulate_requests import simulate_requests

_GREEDY = SamplingParams(temperature=0.0)
_OPTIONS = EngineOptions(num_blocks=100, block_tokens=8)
_PROMPTS = tuple(drawn_prompts(6))


class _Recording(EngineClient):
    """Notes the names of the requests that it is sent."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec.make_engine)
        self.names: list[str] = []

    def generate(self, request: Request, *more: Any) -> AsyncGenerator[NewToken, None]:
        self.names.append(request.name)
        return super().generate(request, *more)


class _Two:
    """Two replicas that are there for all tests, in the loop of a thread."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        spec = EngineSpec(folder, "vllm", _OPTIONS)
        self.clients = tuple(_Recording(spec) for _ in range(2))
        self.run(self._start())

    async def _start(self) -> None:
        await RoutedEngines(self.clients).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(600)

    def engines(self, router: Router = round_robin, max_retries: int = 0) -> RoutedEngines:
        """Of the two, when both are ready, as if nothing had been asked before."""
        self.run(self._both_ready())
        for client in self.clients:
            client.names = []
            client.num_restarts = client.num_stuck = 0
        return RoutedEngines(self.clients, router, max_retries)

    async def _both_ready(self) -> None:
        while not all(client.is_ready for client in self.clients):
            await asyncio.sleep(0.01)

    @property
    def names(self) -> list[list[str]]:
        return [client.names for client in self.clients]


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[_Two]:
    found = _Two(folder)
    yield found
    found.run(RoutedEngines(found.clients).close())
    found.loop.call_soon_threadsafe(found.loop.stop)


def _request(prompt: Sequence[int], num: int, name: str = "r", **more: Any) -> Request:
    return Request(name, 0.0, len(prompt), num, prompt_ids=tuple(prompt), **more)


async def _tokens(
    engines: RoutedEngines, prompt: Sequence[int], num: int, name: str = "r", **more: Any
) -> list[int]:
    return [each.token async for each in engines.generate(_request(prompt, num, name, **more), _GREEDY)]


def test_two_replicas_answer_like_one_and_take_the_requests_that_the_simulator_says(two: _Two):
    engines = two.engines()

    async def run() -> list[list[int]]:
        return await asyncio.gather(
            *(_tokens(engines, prompt, 10, f"{i}") for i, prompt in enumerate(_PROMPTS))
        )

    assert two.run(run()) == [tokens for tokens, _ in generated("llama", _PROMPTS, 10)]
    simulated: list[list[str]] = [[], []]
    requests = [TracedRequest(_request(prompt, 10, f"{i}"), 10) for i, prompt in enumerate(_PROMPTS)]
    names = [each.request.name for each in requests]

    def seen(number: int, start_s: float, batch: Any) -> None:
        new = [names[item.request] for item in batch.items if names[item.request] not in simulated[number]]
        simulated[number] += new

    ((_, policy),) = parse_policies("vllm")
    instances = [Instance(policy, BlockCache(100, 8), 256) for _ in range(2)]
    simulate_requests(requests, instances, STEP, round_robin, seen)
    assert two.names == simulated == [["0", "2", "4"], ["1", "3", "5"]]
    assert engines.max_model_len == 256
    assert [each.num_requests for each in engines.replicas] == [0, 0]


def test_the_replica_with_the_fewest_requests_and_samples_is_next(two: _Two):
    engines = two.engines(least_requests)
    nums = []

    async def run() -> None:
        first = engines.generate(_request(_PROMPTS[0], 200, "three samples", num_samples=3), _GREEDY)
        await anext(first)
        nums.append([each.num_requests for each in engines.replicas])
        second = engines.generate(_request(_PROMPTS[1], 200, "second"), _GREEDY)
        third = engines.generate(_request(_PROMPTS[2], 200, "third"), _GREEDY)
        await anext(second)
        await anext(third)
        nums.append([each.num_requests for each in engines.replicas])
        await first.aclose()
        nums.append([each.num_requests for each in engines.replicas])
        await _tokens(engines, _PROMPTS[3], 3, "fourth")
        await second.aclose()
        await third.aclose()

    two.run(run())
    assert two.names == [["three samples", "fourth"], ["second", "third"]]
    assert nums == [[3, 0], [3, 2], [0, 2]]
    assert [each.num_requests for each in engines.replicas] == [0, 0]


def test_a_sample_that_ends_counts_no_longer(two: _Two):
    engines = two.engines(least_requests)

    async def run() -> list[int]:
        stream = engines.generate(
            _request(_PROMPTS[0], 200, num_samples=3),
            SamplingParams(seed=1),
            is_last=lambda new: new.sample < 2,
        )
        nums = []
        async for _ in stream:
            nums.append(engines.replicas[0].num_requests)
            if len(nums) == 5:
                break
        await stream.aclose()
        return [*nums, engines.replicas[0].num_requests]

    assert two.run(run()) == [2, 1, 1, 1, 1, 0]


def _until_killed(two: _Two, engines: RoutedEngines) -> list[int]:
    """The tokens of an answer of the first replica, which is killed after five; -1 for an error."""
    found: list[int] = []

    async def run() -> None:
        async for each in engines.generate(_request(_PROMPTS[0], 190), _GREEDY):
            found.append(each.token)
            if len(found) == 5:
                os.kill(two.clients[0].process_id, signal.SIGKILL)

    try:
        two.run(run())
    except EngineLostError:
        found.append(-1)
    return found


def test_requests_of_a_replica_that_is_lost_go_on_in_another(two: _Two):
    engines = two.engines(max_retries=1)
    tokens = generated("llama", _PROMPTS[:1], 190)[0][0]
    assert _until_killed(two, engines) == tokens
    assert two.names == [["r"], ["r"]]
    assert engines.is_ready
    assert two.run(_tokens(engines, _PROMPTS[0], 10, "next")) == tokens[:10]
    two.run(two._both_ready())
    assert [each.num_restarts for each in engines.replicas] == [1, 0]
    assert two.run(_tokens(engines, _PROMPTS[0], 10, "to the new process")) == tokens[:10]
    assert two.names[0][-1] == "to the new process"


@pytest.mark.slow
def test_without_retries_they_end_with_an_error_and_new_requests_go_to_the_other(two: _Two):
    engines = two.engines()
    tokens = generated("llama", _PROMPTS[:1], 190)[0][0]
    found = _until_killed(two, engines)
    assert found == [*tokens[: len(found) - 1], -1]
    assert engines.is_ready
    assert not two.clients[0].is_ready
    assert two.run(_tokens(engines, _PROMPTS[0], 10, "a")) == tokens[:10]
    assert two.run(_tokens(engines, _PROMPTS[0], 10, "b")) == tokens[:10]
    assert two.names == [["r"], ["a", "b"]]


def test_an_answer_that_has_ended_goes_on_in_no_other_process(two: _Two):
    """Of two samples, one ends by what its client says, then the process is killed: only the other is needed."""
    engines = two.engines(max_retries=1)

    async def run() -> dict[int, int]:
        num = {0: 0, 1: 0}
        async for each in engines.generate(
            _request(_PROMPTS[0], 190, num_samples=2),
            SamplingParams(seed=1),
            is_last=lambda new: num[new.sample] == (39, 3)[new.sample],
        ):
            num[each.sample] += 1
            if num[0] == 20 and two.clients[0].is_ready:
                os.kill(two.clients[0].process_id, signal.SIGKILL)
                while two.clients[0].is_ready:
                    await asyncio.sleep(0.01)
        await two._both_ready()
        await _tokens(engines, _PROMPTS[0], 3)
        await _tokens(engines, _PROMPTS[0], 3)
        return num

    assert two.run(run()) == {0: 40, 1: 4}
    assert not any(each.state.has_requests for each in engines.replicas)


@pytest.mark.slow
def test_a_request_that_ends_every_process_is_given_up(two: _Two):
    engines = two.engines(max_retries=1)

    async def run() -> None:
        async for _ in engines.generate(_request(_PROMPTS[0], 190), _GREEDY):
            os.kill(two.clients[len(two.names[1])].process_id, signal.SIGKILL)
            await asyncio.sleep(0.2)

    with pytest.raises(EngineLostError, match="send it again"):
        two.run(run())
    assert two.names == [["r"], ["r"]]


@pytest.mark.slow
def test_all_replicas_have_an_adapter_or_none(two: _Two, tmp_path: Path):
    engines = two.engines()
    folder = save_adapter(tmp_path / "a", made("llama"), seed=1)
    expected = generated_by(merged(made("llama"), folder), _PROMPTS[:1], 10)[0][0]

    async def begin(name: str) -> asyncio.Task[str]:
        return asyncio.create_task(engines.load_adapter(name, folder))

    async def of(task: asyncio.Task[str]) -> str:
        return await task

    adapter = two.run(engines.load_adapter("x", folder))
    assert [two.run(_tokens(engines, _PROMPTS[0], 10, adapter=adapter)) for _ in range(2)] == [expected] * 2
    engines.unload_adapter(adapter)
    with pytest.raises(ServeError, match="has no adapter_config"):
        two.run(engines.load_adapter("x", tmp_path))

    os.kill(two.clients[1].process_id, signal.SIGSTOP)
    loading = two.run(begin("x"))
    os.kill(two.clients[1].process_id, signal.SIGKILL)
    with pytest.raises(ServeError, match="before it had read the adapter"):
        two.run(of(loading))
    two.run(two._both_ready())
    for client in two.clients:
        with pytest.raises(AdapterUnloadedError, match="'x' was unloaded"):
            two.run(_tokens(RoutedEngines([client]), _PROMPTS[0], 3, adapter="x#2"))

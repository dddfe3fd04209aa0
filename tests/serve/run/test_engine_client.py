"""An engine in a process of its own: what asyncio sees of it, also when that process is killed."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.serve.run.tiny_models import drawn_prompts, generated

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.engine_client import EngineClient, EngineLostError
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.outputs import EngineState, NewToken
from trainyard.serve.run.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
_OPTIONS = EngineOptions(num_blocks=100, block_tokens=8)


@pytest.fixture(scope="module")
def client(folder: Path, runner: asyncio.Runner) -> Iterator[EngineClient]:
    """One for several tests: its process takes seconds to start. It is started again where a test kills it."""
    client = EngineClient(EngineSpec(folder, "vllm", _OPTIONS).make_engine)
    runner.run(client.start())
    yield client
    runner.run(client.close())


async def _tokens(client: EngineClient, prompt: tuple[int, ...], num: int, name: str = "r") -> list[int]:
    request = Request(name, 0.0, len(prompt), num, prompt_ids=prompt)
    return [each.token async for each in client.generate(request, _GREEDY)]


def test_requests_are_served_beside_each_other(client: EngineClient, runner: asyncio.Runner):
    prompts = tuple(drawn_prompts(6))

    async def run() -> list[list[int]]:
        assert client.max_model_len == 256
        found = await asyncio.gather(
            *(_tokens(client, prompt, 10, f"{i}") for i, prompt in enumerate(prompts))
        )
        with pytest.raises(ServeError, match="a prompt of 400 tokens"):
            await _tokens(client, (1,) * 400, 5)
        with pytest.raises(ServeError, match="allowed are 0 to 299"):
            await _tokens(client, (300,), 5)
        return found

    assert runner.run(run()) == [tokens for tokens, _ in generated("llama", prompts, 10)]


def test_a_request_that_is_closed_frees_its_cache(client: EngineClient, runner: asyncio.Runner):
    async def run() -> None:
        request = Request("r", 0.0, 3, 200, prompt_ids=(1, 2, 3))
        stream = client.generate(request, _GREEDY)
        await anext(stream)
        await stream.aclose()
        assert len(await _tokens(client, (4, 5), 3)) == 3
        assert (client.state.num_running, client.state.cache_use) == (0, 0.0)

    runner.run(run())


def test_an_answer_ends_where_its_client_says_so_and_the_others_go_on(
    client: EngineClient, runner: asyncio.Runner
):
    (prompt,) = drawn_prompts(1)

    async def run() -> dict[int, list[int]]:
        request = Request("r", 0.0, len(prompt), 30, prompt_ids=prompt, num_samples=2)
        found: dict[int, list[int]] = {0: [], 1: []}

        def is_last(new: NewToken) -> bool:
            return new.sample == 1 and len(found[1]) == 4

        async for each in client.generate(request, SamplingParams(seed=1), is_last=is_last):
            found[each.sample].append(each.token)
        assert len(await _tokens(client, (4, 5), 3)) == 3
        assert not client.state.has_requests
        return found

    found = runner.run(run())
    assert [len(each) for each in found.values()] == [30, 5]


def test_a_process_that_is_killed_is_started_again(client: EngineClient, runner: asyncio.Runner):
    (prompt,) = drawn_prompts(1)
    num_restarts = client.num_restarts

    async def run() -> list[int]:
        stream = client.generate(Request("r", 0.0, len(prompt), 190, prompt_ids=prompt), _GREEDY)
        await anext(stream)
        os.kill(client.process_id, signal.SIGKILL)
        with pytest.raises(EngineLostError, match="send it again"):
            async for _ in stream:
                pass
        assert client.state == EngineState()  # what the process that ended had is gone
        return await _tokens(client, prompt, 10)

    assert runner.run(run()) == generated("llama", (prompt,), 10)[0][0]
    assert client.num_restarts == num_restarts + 1
    assert not client.state.has_requests
    assert not any(each.status() == psutil.STATUS_ZOMBIE for each in psutil.Process().children())


def test_process_is_started_again_when_there_is_room_for_it(
    client: EngineClient, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
):
    async def run() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no other file can be opened
        try:
            os.kill(client.process_id, signal.SIGKILL)
            while "it is tried again" not in caplog.text:
                await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(await _tokens(client, (1, 2, 3), 4)) == 4

    runner.run(run())


@pytest.mark.slow
def test_process_that_cannot_serve_any_more_is_given_up(folder: Path, tmp_path: Path):
    served = shutil.copytree(folder, tmp_path / "served")

    async def run() -> None:
        client = EngineClient(EngineSpec(served, "vllm", _OPTIONS).make_engine)
        await client.start()
        (served / "config.json").unlink()
        os.kill(client.process_id, signal.SIGKILL)
        while not client.has_failed:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineLostError, match=r"has no config\.json|ended before it could serve"):
            await _tokens(client, (1, 2, 3), 4)
        await client.close()

    asyncio.run(run())


def test_what_cannot_start_says_why(tmp_path: Path):
    async def run() -> None:
        client = EngineClient(EngineSpec(tmp_path, "vllm", _OPTIONS).make_engine)
        with pytest.raises(ServeError, match=r"has no config\.json"):
            await client.start()

    asyncio.run(run())


def ending() -> Engine:
    os._exit(7)


def test_a_process_that_ends_before_it_can_serve_is_not_started_again():
    async def run() -> None:
        client = EngineClient(ending)
        with pytest.raises(ServeError, match="ended before it could serve"):
            await client.start()
        assert client.num_restarts == 0
        await client.close()

    asyncio.run(run())


def test_weights_that_are_none_are_told(folder: Path, tmp_path: Path):
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(8) + b"no weights")
    with pytest.raises(ServeError, match="cannot be read"):
        load_causal_model(tmp_path)

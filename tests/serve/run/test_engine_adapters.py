"""Adapters of an engine in a process of its own, also when that process is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import pytest
from tests.serve.run.tiny_adapters import merged, save_adapter
from tests.serve.run.tiny_models import drawn_prompts, generated_by, made

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_adapters import (
    AdapterStatus,
    AdapterUnloadedError,
    EngineAdapters,
    EngineLostError,
    LoadAdapter,
    UnloadAdapter,
    unique_adapter,
)
from trainyard.serve.run.engine_client import EngineClient
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.sampling import SamplingParams

_PROMPT = drawn_prompts(1)[0]
_NUM = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A model, and two adapters of it."""
    path = tmp_path_factory.mktemp("llama")
    made("llama").save_pretrained(path / "model")
    return {"model": path / "model"} | {
        name: save_adapter(path / name, made("llama"), seed=seed) for seed, name in enumerate("ab")
    }


@pytest.fixture(scope="module")
def expected(folders) -> Mapping[str, list[int]]:
    """What is generated without an adapter, and with each."""
    models = {"": made("llama")} | {name: merged(made("llama"), folders[name]) for name in "ab"}
    return {name: generated_by(model, [_PROMPT], _NUM)[0][0] for name, model in models.items()}


async def _tokens(client: EngineClient, adapter: str = "", num: int = _NUM) -> list[int]:
    request = Request("r", 0.0, len(_PROMPT), num, prompt_ids=_PROMPT, adapter=adapter)
    return [each.token async for each in client.generate(request, SamplingParams(temperature=0.0))]


def _with_client(folder: Path, work: Callable[[EngineClient], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        client = EngineClient(EngineSpec(folder, "vllm", EngineOptions(100, 8)).make_engine)
        await client.start()
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(run())


@pytest.mark.slow
def test_adapters_come_and_go_and_names_are_used_again(folders, expected):
    async def work(client: EngineClient) -> None:
        first, second = (unique_adapter("x", number) for number in range(2))
        await client.load_adapter(first, folders["a"])
        assert await asyncio.gather(_tokens(client), _tokens(client, first)) == [expected[""], expected["a"]]
        request = Request("r", 0.0, len(_PROMPT), _NUM, prompt_ids=_PROMPT, adapter=first)
        found = []
        async for each in client.generate(request, SamplingParams(temperature=0.0)):
            if not found:
                client.unload_adapter(first)
            found.append(each.token)
        assert found == expected["a"]  # who uses it is served to the end
        await client.load_adapter(second, folders["b"])
        assert await _tokens(client, second) == expected["b"]
        with pytest.raises(AdapterUnloadedError, match="'x' was unloaded"):
            await _tokens(client, first)
        with pytest.raises(ServeError, match="has no adapter_config"):
            await client.load_adapter("y#2", folders["model"])
        assert await _tokens(client) == expected[""]

    _with_client(folders["model"], work)


@pytest.mark.slow
def test_a_process_that_is_started_again_has_its_adapters(folders, expected):
    async def work(client: EngineClient) -> None:
        gone, kept, late = "a#0", "b#1", "a#2"
        await client.load_adapter(gone, folders["a"])
        await client.load_adapter(kept, folders["b"])
        client.unload_adapter(gone)
        os.kill(client.process_id, signal.SIGKILL)
        while client.is_ready:
            await asyncio.sleep(0.01)
        await client.load_adapter(late, folders["a"])  # while there is no process
        assert await asyncio.gather(_tokens(client, kept), _tokens(client, late)) == [
            expected["b"],
            expected["a"],
        ]
        with pytest.raises(AdapterUnloadedError, match="'a' was unloaded"):
            await _tokens(client, gone)
        assert client.num_restarts == 1

    _with_client(folders["model"], work)


def test_an_adapter_at_which_the_process_ends_is_not_read_again():
    async def run() -> None:
        sent: list[LoadAdapter | UnloadAdapter] = []
        adapters = EngineAdapters(sent.append)
        good = asyncio.create_task(adapters.load("x#0", Path("good")))
        await asyncio.sleep(0)
        adapters.take(AdapterStatus("x#0", ""))
        await good
        bad = asyncio.create_task(adapters.load("x#1", Path("bad")))
        await asyncio.sleep(0)
        adapters.end()
        with pytest.raises(EngineLostError, match="before it had read the adapter"):
            await bad
        sent.clear()
        adapters.begin_anew()
        assert sent == [LoadAdapter("x#0", Path("good"))]

    asyncio.run(run())

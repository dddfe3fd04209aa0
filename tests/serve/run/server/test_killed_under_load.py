"""Processes of a server that are killed while many clients ask: each gets its own answer, whole, or an error."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.serve.run.server.served_api import COMPLETION
from tests.serve.run.server.test_serve_run_command import is_engine, serving

_CLIENTS, _KILLS = 20, 4


async def _answer(http: httpx2.AsyncClient, number: int, *, streams: bool) -> tuple[str, bool]:
    """The text for a client, and whether it is whole; it is not where an error says so."""
    body = COMPLETION | {
        "prompt": f"client {number} has",
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    if not streams:
        answer = await http.post("/v1/completions", json=body)
        if answer.status_code == 200:
            return answer.json()["choices"][0]["text"], True
        assert answer.json()["error"]["code"] in ("engine_lost", "not_ready", "tokenizer_busy")
        return "", False
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    if answer.status_code != 200:
        assert answer.status_code == 503
        return "", False
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    is_whole = lines[-1] == "[DONE]" and "error" not in events[-1]
    assert is_whole or "error" in events[-1]
    return "".join(each["choices"][0]["text"] for each in events if "error" not in each), is_whole


def _engines(server: psutil.Process) -> Sequence[psutil.Process]:
    return [each for each in server.children() if is_engine(each)]


def _of_tokenizers(server: psutil.Process) -> Sequence[psutil.Process]:
    """These, and the fork server that starts them."""
    found = [(each, each.as_dict(["cmdline"])["cmdline"]) for each in server.children(recursive=True)]
    return [each for each, words in found if "forkserver" in " ".join(words or ())]


@pytest.mark.long
@pytest.mark.parametrize(
    ("victims", "retries"),
    [(_engines, 0), (_engines, _KILLS), (_of_tokenizers, 0)],
    ids=["engine", "retried", "tokenizer"],
)
def test_clients_get_their_own_whole_answers_or_errors(
    folder: Path, victims: Callable[[psutil.Process], Sequence[psutil.Process]], retries: int
):
    rng = random.Random(0)

    async def run(server: psutil.Process, url: str) -> tuple[list[str], list[tuple[int, str, bool]]]:
        found, is_over = list[tuple[int, str, bool]](), asyncio.Event()

        async def client(http: httpx2.AsyncClient, number: int) -> None:
            while not is_over.is_set():
                text, is_whole = await _answer(http, number, streams=bool(number % 2))
                found.append((number, text, is_whole))
                if not is_whole:
                    await asyncio.sleep(0.2)

        async with httpx2.AsyncClient(base_url=url, timeout=600) as http:
            expected = [(await _answer(http, number, streams=False))[0] for number in range(_CLIENTS)]
            clients = [asyncio.create_task(client(http, number)) for number in range(_CLIENTS)]
            for _ in range(_KILLS):
                await asyncio.sleep(rng.uniform(0.1, 1))
                rng.choice(victims(server)).kill()
                while (await http.get("/ready")).status_code != 200:
                    await asyncio.sleep(0.05)
            is_over.set()
            await asyncio.gather(*clients)
            return expected, found

    with serving(str(folder), "--max-retries", str(retries), stderr=subprocess.DEVNULL) as (server, ready):
        expected, found = asyncio.run(run(psutil.Process(server.pid), ready["address"]))
    assert all(text == expected[number] for number, text, is_whole in found if is_whole)
    assert all(expected[number].startswith(text) for number, text, _ in found)
    assert {number for number, _, is_whole in found if is_whole} == set(range(_CLIENTS))
    assert not retries or all(is_whole for _, _, is_whole in found)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--tp", "2")], ids=["one", "shared"])
def test_server_that_is_killed_leaves_no_process(folder: Path, options: tuple[str, ...]):
    with serving(str(folder), *options, stderr=subprocess.DEVNULL) as (server, ready):
        body = COMPLETION | {"max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{ready['address']}/v1/completions", json=body, timeout=600) as answer:
            next(answer.iter_raw())
            processes = psutil.Process(server.pid).children(recursive=True)
            server.kill()
    _, left = psutil.wait_procs(processes, 60)
    assert len(processes) >= 4  # the engine, a tokenizer, and what multiprocessing has
    assert left == []

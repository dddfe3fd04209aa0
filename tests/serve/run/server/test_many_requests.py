"""Thousands of requests of all kinds leave nothing behind: no memory, descriptors, threads or metrics."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.serve.run.server.served_api import CHAT, COMPLETION
from tests.serve.run.server.test_api_survival import is_idle, until
from tests.serve.run.server.test_serve_run_command import is_engine, serving, stopped

_WARM_UP, _REQUESTS, _CLIENTS = 2_000, 10_000, 16
# Buffers of steps have many sizes, and malloc keeps what they leave free: up to 80 MB, also after 12,000 requests.
_MOST_GROWTH_BYTES, _MOST_GROWTH_OF_ENGINE_BYTES = 15 << 20, 100 << 20


def _body(number: int) -> tuple[str, dict[str, Any]]:
    """A request unlike those before it, and its path."""
    body = COMPLETION | {"prompt": f"request {number} has", "max_tokens": 1, "user": f"user {number}"}
    schema = {"type": "object", "properties": {f"field{number}": {"enum": [number]}}}
    json_schema = {"type": "json_schema", "json_schema": {"schema": schema}}
    more: tuple[Mapping[str, Any], ...] = (
        {"cache_salt": f"salt {number}"},
        {"stream": True, "max_tokens": 60, "ignore_eos": True},
        {"response_format": json_schema, "max_tokens": 2},
        {"stop": [f"stop {number}", "other"], "logprobs": 3, "max_tokens": 3},
        {"n": 2, "stream": True, "seed": number},
        {"model": f"model {number}"},
        {"temperature": -number - 1},
    )
    if number % (len(more) + 1) == len(more):
        return "/v1/chat/completions", CHAT | {"max_tokens": 1, "user": f"user {number}"}
    return "/v1/completions", body | more[number % (len(more) + 1)]


async def _ask(url: str, numbers: range) -> set[int]:
    """Send requests of some clients at once, and leave long streams at once; return the statuses."""
    waiting, statuses = iter(numbers), set[int]()

    async def client(http: httpx2.AsyncClient) -> None:
        for number in waiting:
            path, body = _body(number)
            async with http.stream("POST", path, json=body) as answer:
                statuses.add(answer.status_code)
                async for _ in answer.aiter_lines():
                    if body["max_tokens"] == 60:
                        break

    async with httpx2.AsyncClient(base_url=url, timeout=600) as http:
        await asyncio.gather(*(client(http) for _ in range(_CLIENTS)))
    return statuses


def _held(pid: int, url: str) -> dict[int, tuple[int, int, int]]:
    """Bytes, descriptors and threads of each process of a server, when all requests have ended."""
    until(lambda: is_idle(url))
    server = psutil.Process(pid)
    return {
        each.pid: (each.memory_info().rss, each.num_fds(), each.num_threads())
        for each in (server, *server.children(recursive=True))
    }


@pytest.mark.long
def test_many_requests_leave_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch):
    # PyTorch keeps kernels for each size of a step, by default so many that it takes far more requests to have them all.
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    with serving(str(folder), stderr=subprocess.DEVNULL) as (server, ready):
        url = ready["address"]
        statuses = asyncio.run(_ask(url, range(_WARM_UP)))
        before, metrics = _held(server.pid, url), httpx2.get(f"{url}/metrics").text
        asyncio.run(_ask(url, range(_WARM_UP, _WARM_UP + _REQUESTS)))
        after, more_metrics = _held(server.pid, url), httpx2.get(f"{url}/metrics").text
        engines = {each.pid for each in psutil.Process(server.pid).children() if is_engine(each)}
        stopped(server)
    assert statuses == {200, 400, 404}
    assert set(after) == set(before)  # no process was started again
    grown = {pid: [now - then for now, then in zip(after[pid], before[pid], strict=True)] for pid in before}
    for pid, (num_bytes, _, _) in grown.items():
        assert num_bytes < (_MOST_GROWTH_OF_ENGINE_BYTES if pid in engines else _MOST_GROWTH_BYTES), grown
    assert all(num_fds <= 2 and num_threads <= 2 for _, num_fds, num_threads in grown.values()), grown
    assert more_metrics.count("\n") < metrics.count("\n") + 20  # whatever names clients give

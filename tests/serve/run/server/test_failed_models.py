"""A model that cannot be loaded does not end the others of its server."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.serve.run.server.served_api import COMPLETION

from trainyard.cli.serve.possible_models import made_for_each
from trainyard.serve.errors import ServeError
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_client import EngineClient
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.routed_engines import RoutedEngines
from trainyard.serve.run.server.api_server import ApiServer
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.served_models import NamedAdapter
from trainyard.serve.run.server.server import _start

_OPTIONS = EngineOptions(num_blocks=100, block_tokens=8)


def engine_of(folder: Path) -> RoutedEngines:
    return RoutedEngines([EngineClient(EngineSpec(folder, "vllm", _OPTIONS).make_engine)])


def test_other_models_are_served(
    folder: Path, tokenizer: ModelTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answers() -> tuple[Any, Any, Any, Any]:
        engines = {"tiny": engine_of(folder), "broken": engine_of(tmp_path)}
        api = ApiServer({name: HostedModel(name, tokenizer, engine) for name, engine in engines.items()})
        api.served.awaited.add("adapter")
        await _start(engines, api.served, (NamedAdapter("adapter", tmp_path, "broken"),))
        transport = httpx2.ASGITransport(api.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            asked = [
                await client.post("/v1/completions", json=COMPLETION | {"model": name}) for name in engines
            ]
            ready, models = await client.get("/ready"), await client.get("/v1/models")
        await asyncio.gather(*(engine.close() for engine in engines.values()))
        return *asked, ready, models

    with caplog.at_level(logging.ERROR):
        served, failed, ready, models = asyncio.run(answers())
    assert served.status_code == 200
    assert (failed.status_code, failed.headers.get("retry-after")) == (503, None)
    error = failed.json()["error"]
    assert error["code"] == "model_not_loaded"
    assert error["message"].startswith("broken could not be loaded: ")
    assert "has no config.json" in error["message"]
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "failed": ["broken"]})
    assert [each["id"] for each in models.json()["data"]] == ["tiny"]
    assert "broken is not served, the other models are: " in caplog.text


def test_a_server_without_any_model_does_not_start(tokenizer: ModelTokenizer, tmp_path: Path) -> None:
    async def started() -> None:
        engines = {"broken": engine_of(tmp_path)}
        await _start(
            engines, ApiServer({"broken": HostedModel("broken", tokenizer, engines["broken"])}).served, ()
        )

    with pytest.raises(ServeError, match=r"has no config\.json"):
        asyncio.run(started())


def test_what_fails_for_some_models_leaves_them_out() -> None:
    def made(name: str, model: str) -> str:
        if model != "good":
            raise ServeError(f"{name} is {model}")
        return name.upper()

    failed = {"before": "its checkpoint is damaged"}
    models = {"a": "bad", "b": "good", "before": "good", "c": "worse"}
    assert made_for_each(models, made, failed) == {"b": "B"}
    assert failed == {"before": "its checkpoint is damaged", "a": "a is bad", "c": "c is worse"}
    with pytest.raises(ServeError, match="a is bad"):
        made_for_each({"a": "bad", "c": "worse"}, made, {})

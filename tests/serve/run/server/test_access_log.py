"""What the log of a server says of requests."""

from __future__ import annotations

import logging

import pytest
from tests.serve.run.server.served_api import COMPLETION, FakeEngine, call_api


@pytest.mark.parametrize("is_ready", [True, False])
def test_polls_are_not_logged(tokenizer, caplog, is_ready):
    caplog.set_level(logging.INFO, "trainyard.server")
    engine = FakeEngine([5])
    engine.is_ready = is_ready

    async def work(client, api):
        for path in ("/health", "/ready", "/metrics"):
            await client.get(path)
        await client.post("/ready")
        await client.post("/v1/completions", json=COMPLETION)
        await client.get("/v1/models")

    call_api(tokenizer, engine, work)
    logged = [
        " ".join(record.getMessage().split()[:3])
        for record in caplog.records
        if record.name == "trainyard.server"
    ]
    status = 200 if is_ready else 503
    assert logged == ["POST '/ready' 405", f"POST '/v1/completions' {status}", "GET '/v1/models' 200"]

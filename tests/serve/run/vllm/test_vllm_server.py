"""`trainyard serve run --engine vllm`: vLLM's server under a policy, from begin to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from tests.serve.run.server.served_api import save_tiny
from tests.serve.run.vllm.vllm_environment import vllm_python

from trainyard.serve.errors import ServeError
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.vllm.server import VllmServer, serve_vllm


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_server_of_vllm_from_begin_to_end(tmp_path):
    python = vllm_python()
    folder = save_tiny(tmp_path / "tiny", head_dim=32)
    command = [sys.executable, "-c", "from trainyard.cli.main import run; run()", "serve", "run"]
    options = ["--engine", "vllm", "--vllm-python", str(python), "--policy", "sarathi(chunk_tokens=16)+vtc"]
    options += [
        "--port",
        "0",
        "--json",
        "--cache-blocks",
        "20",
        "--threads",
        "1",
        "--api-key",
        "ann=secret-key",
    ]
    log = (tmp_path / "log").open("w")
    with subprocess.Popen(
        [*command, f"own={folder}", *options], stdout=subprocess.PIPE, stderr=log, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            assert line, (tmp_path / "log").read_text()[-3000:]
            ready = json.loads(line)
            url = f"{ready['address']}/v1/completions"
            key = {"Authorization": "Bearer secret-key"}
            body = {"model": "own", "prompt": "The cluster has", "max_tokens": 20, "temperature": 0}
            body |= {"ignore_eos": True}
            assert httpx2.post(url, json=body, timeout=600).status_code == 401

            def ask(client: int) -> str:
                named = body | {"vllm_xargs": {"client": str(client % 2)}}
                return httpx2.post(url, json=named, timeout=600, headers=key).json()["choices"][0]["text"]

            with ThreadPoolExecutor(8) as pool:
                texts = list(pool.map(ask, range(8)))
        finally:
            server.send_signal(signal.SIGTERM)
        out, _ = server.communicate(timeout=600)
    assert ready["max_model_len"] == {"own": 512}
    assert len(set(texts)) == 1
    assert json.loads(out) == {"drained": True}
    assert server.returncode == 0


def test_an_environment_without_vllm_is_told(tmp_path):
    spec = EngineSpec(save_tiny(tmp_path / "tiny"), "vllm", EngineOptions(20, 32, max_model_len=64))
    with pytest.raises(ServeError, match="lacks vllm; make vLLM's environment: make vllm"):
        serve_vllm(VllmServer(Path(sys.executable), "tiny", spec, "127.0.0.1", 1), lambda address: None)


def test_limits_of_vllm_are_those_that_the_policy_needs(tmp_path):
    options = EngineOptions(20, 32, max_model_len=64)
    spec = EngineSpec(save_tiny(tmp_path / "tiny"), "sarathi(chunk_tokens=8, max_requests=16)", options)
    config = VllmServer(Path("python"), "tiny", spec, "127.0.0.1", 1, ("key",), 5.0).config
    assert (config["max-num-seqs"], config["max-num-batched-tokens"]) == (16, 16)
    assert config["num-gpu-blocks-override"] == 21
    assert (
        config["kv-cache-memory-bytes"] == 21 * 2 * 2 * 32 * 2 * 16 * 4
    )  # layers, keys and values, tokens, heads
    assert config["additional-config"] == {"trainyard_policy": "sarathi(chunk_tokens=8, max_requests=16)"}
    assert config["api-key"] == ["key"]

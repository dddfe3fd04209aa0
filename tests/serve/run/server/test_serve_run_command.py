"""The command `trainyard serve run`: what it refuses before anything starts, and one server from begin to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import psutil
import pytest
from tests.serve.run.server.served_api import COMPLETION

from trainyard.cli.main import main


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "--api-key NAME=KEY"),
        (["--cache-blocks", "2", "--max-model-len", "100"], "--cache-blocks 7 or more"),
        (["--cache-memory", "1kB"], "has 0 blocks"),
        (["--cache-blocks", "2", "--cache-memory", "1GB"], "give one"),
        (["--max-model-len", "1000"], "at most 512"),
        (["--policy", "vllm,orca"], "names several"),
        (["--policy", "nonsense"], "nonsense"),
        (
            ["--policy", "vllm_v0", "--chunk", "64"],
            "vllm_v0 has no option that says how many tokens a step has",
        ),
        (["--policy", "sarathi(chunk_tokens=9)", "--chunk", "64"], "says already how many tokens a step has"),
        (["--policy", "vtc(predict='oracle')"], "has to know how long outputs will be"),
        (["--api-key", "short"], "NAME=KEY"),
        (["--deadline", "soon"], "--deadline"),
        (["--step-cpu", "much"], "--step-cpu"),
        (["--step-idle", "0s"], "--step-idle"),
        (["--dtype", "int8"], "--dtype"),
        (["--tool-call-parser", "other"], "known are hermes"),
        (["--reasoning-parser", "other"], "known are deepseek_r1"),
        (["--device", "cuda", "--engine", "simulated"], "--engine simulated has no --device"),
        (["--tp", "3"], "cannot be served in 3 shards"),
        (["--engine", "simulated"], "--engine simulated and --cluster go together"),
        (["--cluster", "1xH100"], "--engine simulated and --cluster go together"),
        (["--engine", "vllm", "--policy", "vllm_v0"], "vllm_v0 does not drive vLLM: it swaps"),
        (["--engine", "vllm", "--deadline", "1s"], "does not do"),
        (["--engine", "vllm", "--step-cpu", "1s"], "does not do"),
        (["--engine", "vllm", "--host-cache-memory", "1GB"], "leave --host-cache-memory out"),
        (["--engine", "vllm", "--vllm-python", "no/python"], "make vllm"),
        (["--vllm-python", "no/python"], "goes with --engine vllm"),
        (["--router", "prefill_decode"], "'prefill_decode' moves requests between replicas"),
        (["--router", "nearest"], "unknown router 'nearest'"),
        (["--engine", "vllm", "--replicas", "2"], "leave --tp, --replicas and --placement out"),
        (["--engine", "vllm", "--router", "least_requests"], "does not do"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_before_anything_starts(folder, capsys, options, says):
    assert main(["serve", "run", str(folder), *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "there", "says"),
    [
        ([], False, "torch finds no such device"),
        (["--tp", "2"], True, "leave --tp out"),
        ([], True, "give --cache-memory"),
        (["--cache-memory", "1GiB", "--replicas", "2"], True, "device 1, and torch finds 1"),
    ],
)
def test_a_gpu_is_asked_for(folder, capsys, monkeypatch, options, there, says):
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert main(["serve", "run", str(folder), "--device", "cuda", *options]) == 2
    assert says in capsys.readouterr().err


def test_models_have_names_of_their_own(folder, capsys):
    assert main(["serve", "run", str(folder), str(folder)]) == 2
    assert "two models are called 'tiny'" in capsys.readouterr().err


def test_vllm_serves_one_model(folder, capsys):
    assert main(["serve", "run", str(folder), f"other={folder}", "--engine", "vllm"]) == 2
    assert "serves one model; given are tiny, other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere", "there is no folder nowhere"),
        ("llama-tiny", "llama-tiny knows 128 tokens"),
        ("gpt-oss-20b", "gpt-oss-20b cannot be served"),
        ("megatron-1t", "1.84 TiB of weights"),
    ],
)
def test_what_cannot_have_random_weights_is_refused(capsys, name, says):
    assert main(["serve", "run", name, "--dtype", "bfloat16"]) == 2
    assert says in capsys.readouterr().err


@contextmanager
def serving(
    *options: str, stderr: int = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server, and what it says once it can be asked."""
    command = [sys.executable, "-c", "from trainyard.cli.main import run; run()", "serve", "run"]
    small = ["--port", "0", "--json", "--cache-blocks", "50", "--threads", "1"]
    with subprocess.Popen(
        [*command, *options, *small], stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server, json.loads(server.stdout.readline())
        finally:
            server.kill()


def stopped(server: subprocess.Popen[str]) -> tuple[str, str]:
    """What a server says that is told to stop."""
    server.send_signal(signal.SIGTERM)
    return server.communicate(timeout=600)


@pytest.mark.slow
def test_requests_of_a_process_that_is_killed_go_on_in_the_next_one(folder):
    body = COMPLETION | {"temperature": 0, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with serving(str(folder), "--max-retries", "1") as (server, ready):
        url = f"{ready['address']}/v1/completions"

        def text(kills: bool) -> str:
            parts = []
            with httpx2.stream("POST", url, json=body, timeout=600) as answer:
                for line in answer.iter_lines():
                    if kills and len(parts) == 3:
                        (engine,) = [p for p in psutil.Process(server.pid).children() if is_engine(p)]
                        engine.kill()
                        kills = False
                    if line.startswith("data: {"):
                        parts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
            return "".join(parts)

        found = text(kills=True), text(kills=False)
        restarts = httpx2.get(f"{ready['address']}/metrics").text
        stopped(server)
    assert found[0] == found[1] != ""
    assert 'trainyard:engine_restarts_total{engine="0",model_name="tiny"} 1.0' in restarts


@pytest.mark.slow
def test_engine_that_is_stopped_is_not_ready_counted_and_started_again(folder):
    body = COMPLETION | {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    with serving(str(folder), "--step-idle", "1s", "--max-retries", "1") as (server, ready):
        url = ready["address"]
        before = httpx2.post(f"{url}/v1/completions", json=body, timeout=600).json()["choices"]
        (engine,) = [each for each in psutil.Process(server.pid).children() if is_engine(each)]
        engine.suspend()
        with ThreadPoolExecutor(1) as others:
            answering = others.submit(httpx2.post, f"{url}/v1/completions", json=body, timeout=600)
            while httpx2.get(f"{url}/ready", timeout=600).status_code == 200:
                time.sleep(0.05)
            assert httpx2.get(f"{url}/health", timeout=600).status_code == 200
            after = answering.result().json()["choices"]
        metrics = httpx2.get(f"{url}/metrics", timeout=600).text
        stopped(server)
    assert after == before
    assert 'trainyard:engine_stuck_total{engine="0",model_name="tiny"} 1.0' in metrics
    assert 'trainyard:engine_ready{engine="0",model_name="tiny"} 1.0' in metrics


@pytest.mark.slow
def test_a_server_with_replicas_goes_on_when_one_of_them_is_killed(folder):
    body = COMPLETION | {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    with serving(str(folder), "--replicas", "2", "--router", "least_requests") as (server, ready):
        url = ready["address"]

        def text() -> str:
            answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=600)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["text"]

        before = text()
        engines = [each for each in psutil.Process(server.pid).children() if is_engine(each)]
        assert len(engines) == 2
        engines[0].kill()
        engines[0].wait(60)
        while (
            'engine_restarts_total{engine="0",model_name="tiny"} 1.0' not in httpx2.get(f"{url}/metrics").text
        ):
            time.sleep(0.1)
        found = [httpx2.get(f"{url}{path}").status_code for path in ("/ready", "/health")]
        after = text()
        metrics = httpx2.get(f"{url}/metrics").text
        out, _ = stopped(server)
    assert found == [200, 200]
    assert after == before
    assert 'engine_restarts_total{engine="1",model_name="tiny"} 0.0' in metrics
    assert json.loads(out) == {"drained": True}


def is_engine(process: psutil.Process) -> bool:
    """Whether it is none of those that multiprocessing itself has."""
    return any("spawn_main" in word for word in process.cmdline())


def test_a_server_from_begin_to_end(folder):
    with serving(f"own={folder}", "--policy", "sarathi+vtc") as (server, ready):
        body = COMPLETION | {"model": "own", "prompt": "very secret"}
        found = httpx2.post(f"{ready['address']}/v1/completions", json=body, timeout=600)
        out, err = stopped(server)
    assert ready["max_model_len"] == {"own": 512}
    assert found.status_code == 200
    assert json.loads(out) == {"drained": True}
    assert server.returncode == 0
    assert "secret" not in err
    assert "POST '/v1/completions' 200" in err


@pytest.mark.slow
def test_a_name_of_the_zoo_is_served_with_random_weights(folder):
    with serving("gpt2", str(folder), "--dtype", "bfloat16") as (server, ready):
        url, body = f"{ready['address']}/v1/completions", COMPLETION | {"ignore_eos": True}
        found = [httpx2.post(url, json=body | {"model": name}, timeout=600) for name in ("gpt2", "tiny")]
        _, err = stopped(server)
    assert ready["max_model_len"] == {"gpt2": 800, "tiny": 512}
    assert [each.status_code for each in found] == [200, 200]
    assert found[0].json()["choices"][0]["text"]
    assert "answers mean nothing: gpt2\n" in err


@pytest.mark.slow
def test_a_server_of_embeddings_and_of_text(folder, encoder):
    command = [sys.executable, "-c", "from trainyard.cli.main import run; run()", "serve", "run"]
    options = ["--port", "0", "--json", "--cache-blocks", "50", "--threads", "1"]
    with subprocess.Popen(
        [*command, str(folder), str(encoder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            ready = json.loads(server.stdout.readline())
            url, body = ready["address"], {"model": "tiny-encoder", "input": ["very secret", "x"]}
            found = httpx2.post(f"{url}/v1/embeddings", json=body, timeout=600)
            text = httpx2.post(f"{url}/v1/completions", json=COMPLETION, timeout=600)
        finally:
            server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=600)
    assert ready["max_model_len"] == {"tiny": 512, "tiny-encoder": 96}
    assert [len(each["embedding"]) for each in found.json()["data"]] == [64, 64]
    assert text.status_code == 200
    assert json.loads(out) == {"drained": True}
    assert server.returncode == 0
    assert "secret" not in err


@pytest.mark.slow
def test_a_text_longer_than_an_encoder_takes_is_refused(encoder, capsys):
    assert main(["serve", "run", str(encoder), "--max-model-len", "97", "--port", "0"]) == 2
    assert "at most 96 tokens" in capsys.readouterr().err

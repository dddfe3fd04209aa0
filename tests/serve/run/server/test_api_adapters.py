"""LoRA adapters as models of a real server: loaded, asked, listed and unloaded while it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai.types import Model
from safetensors.torch import load_file
from tests.serve.run.server.served_api import CHAT, COMPLETION, FakeEngine, Servers, call_api
from tests.serve.run.tiny_adapters import WEIGHTS, merged, save_adapter, save_tensors
from tests.serve.run.tiny_models import generated_by
from transformers import AutoModelForCausalLM

from trainyard.cli.main import main
from trainyard.serve.run.lora_adapter import ADAPTER_FILES
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.server.api_server import ApiServer, ServerLimits


@pytest.fixture(scope="module")
def root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapters, one with values too large, links, and ways out of their folder."""
    path, outside = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("outside") / "c"
    for seed, name in enumerate("ab"):
        save_adapter(path / name, AutoModelForCausalLM.from_pretrained(folder), seed=seed)
    wild = {name: tensor * 1e30 for name, tensor in load_file(path / "a" / WEIGHTS).items()}
    save_tensors(path / "wild", wild, r=4)
    (path / "way out").symlink_to(folder.parent)
    (path / "link").symlink_to(path / "a")
    shutil.copytree(path / "a", outside)
    for name, linked in (("inside", path / "a"), ("config out", outside), ("weights out", outside)):
        shutil.copytree(path / "a", path / name)
        for file in ADAPTER_FILES if name == "inside" else (ADAPTER_FILES[name == "weights out"],):
            (path / name / file).unlink()
            (path / name / file).symlink_to(linked / file)
    for place, file in enumerate(ADAPTER_FILES):
        shutil.copytree(path / "a", path / f"pipe {place}")
        (path / f"pipe {place}" / file).unlink()
        os.mkfifo(path / f"pipe {place}" / file)
    shutil.copytree(path / "a", path / "huge")
    (path / "huge" / WEIGHTS).write_bytes(struct.pack("<Q", 2**40) + b"{}")
    shutil.copytree(path / "a", path / "device")
    (path / "device" / ADAPTER_FILES[0]).unlink()
    (path / "device" / ADAPTER_FILES[0]).symlink_to("/dev/zero")
    shutil.copytree(path / "a", path / "circle")
    (path / "circle" / ADAPTER_FILES[0]).unlink()
    (path / "circle" / ADAPTER_FILES[0]).symlink_to(ADAPTER_FILES[0])
    return path


@pytest.fixture
def url(servers: Servers, root: Path) -> Iterator[str]:
    found = servers.url(ServerLimits(max_adapters=2), adapter_root=root)
    yield found
    for card in httpx2.get(f"{found}/v1/models").json()["data"]:
        if card["parent"]:
            assert _unload(found, card["id"]).status_code == 200


def _load(url: str, name: str, path: str, **more: Any) -> httpx2.Response:
    body = {"lora_name": name, "lora_path": path, **more}
    return httpx2.post(f"{url}/v1/load_lora_adapter", json=body, timeout=600)


def _unload(url: str, name: str) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=600)


def _complete(url: str, model: str, **more: Any) -> httpx2.Response:
    body = COMPLETION | {"model": model, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | more
    return httpx2.post(f"{url}/v1/completions", json=body, timeout=600)


def _text(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@pytest.fixture(scope="module")
def expected(folder: Path, root: Path, tokenizer: ModelTokenizer) -> dict[str, str]:
    """What is answered without an adapter, and with each."""

    def answer(adapter: str) -> str:
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.generation_config.eos_token_id = None
        prompt = tokenizer.encode(COMPLETION["prompt"])
        ((tokens, _),) = generated_by(merged(model, root / adapter) if adapter else model, [prompt], 12)
        return tokenizer.decode(tokens)

    return {adapter: answer(adapter) for adapter in ("", "a", "b")}


def test_adapters_are_models_from_when_they_are_loaded_until_they_are_unloaded(url, root, expected):
    assert _text(_complete(url, "tiny")) == expected[""]
    assert _complete(url, "sql").status_code == 404
    assert _load(url, "sql", "a").text == "Success: LoRA adapter 'sql' added successfully."
    assert _load(url, "second", str(root / "b"), base_model_name="tiny").status_code == 200
    cards = httpx2.get(f"{url}/v1/models").json()["data"]
    assert [(Model.model_validate(card).id, card["parent"]) for card in cards] == [
        ("tiny", None),
        ("sql", "tiny"),
        ("second", "tiny"),
    ]
    assert httpx2.get(f"{url}/v1/models/sql").json() == cards[1]
    answers = {name: _complete(url, model) for name, model in (("a", "sql"), ("b", "second"), ("", "tiny"))}
    assert {name: _text(answer) for name, answer in answers.items()} == expected
    assert answers["a"].json()["model"] == "sql"
    assert _unload(url, "sql").text == "Success: LoRA adapter 'sql' removed successfully."
    assert _complete(url, "sql").status_code == 404
    assert (
        _load(url, "sql", "b").status_code == 200
    )  # blocks of the same prompt with the other one are cached
    assert _text(_complete(url, "sql")) == expected["b"]


def test_chats_streams_and_tokens_are_those_of_adapters_too(url):
    assert _load(url, "sql", "a").status_code == 200
    body = CHAT | {"model": "sql", "max_tokens": 5, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert json.loads(events[0])["model"] == "sql"
    assert events[-1] == "[DONE]"
    found = [
        httpx2.post(f"{url}/tokenize", json={"prompt": "a b"} | model).json()
        for model in ({}, {"model": "sql"}, {"model": "tiny"})
    ]
    assert found[0] == found[1] == found[2]
    metrics = httpx2.get(f"{url}/metrics").text
    assert 'model_name="tiny"' in metrics
    assert "sql" not in metrics  # adapters come and go, and are counted with their model


@pytest.mark.parametrize(
    ("name", "path", "more", "says"),
    [
        ("x", "none", {}, "has no adapter_config.json"),
        ("x", "..", {}, "allowed are folders below the --lora-root"),
        ("x", ".", {}, "allowed are folders below the --lora-root"),
        ("x", "/etc", {}, "allowed are folders below the --lora-root"),
        ("x", "way out/tiny", {}, "allowed are folders below the --lora-root"),
        ("x", "a\0", {}, "allowed are folders below the --lora-root"),
        (
            "x",
            "config out",
            {},
            "adapter_config.json of lora_path 'config out' is a link out of the --lora-root",
        ),
        ("x", "weights out", {}, "adapter_model.safetensors of lora_path 'weights out' is a link out of"),
        ("x", "device", {}, "adapter_config.json of lora_path 'device' is a link out of the --lora-root"),
        ("x", "circle", {}, "adapter_config.json of lora_path 'circle' is a link out of the --lora-root"),
        ("x", "pipe 0", {}, "has no adapter_config.json"),
        ("x", "huge", {}, "its header has 1,099,511,627,776 bytes; allowed are 16,777,216"),
        ("x", "pipe 1", {}, "has no adapter_model.safetensors"),
        ("x", "a" * 4000, {}, "has no adapter_config.json"),
        ("tiny", "a", {}, "'tiny' is served already"),
        ("a\nb", "a", {}, "lora_name"),
        ("x", "a", {"base_model_name": "other"}, "no model 'other' takes adapters here; known are tiny"),
        ("x", "a", {"load_inplace": True}, "load_inplace"),
        ("x", "a", {"lora_path": 1}, "lora_path is 1"),
    ],
)
def test_what_cannot_be_loaded_is_refused(url, name, path, more, says):
    answer = _load(url, name, path, **more)
    assert answer.status_code in (400, 404)
    assert says in answer.json()["error"]["message"]
    assert len(httpx2.get(f"{url}/v1/models").json()["data"]) == 1


@pytest.mark.parametrize("path", ["link", "inside"])
def test_links_may_lead_to_what_lies_below_the_root(url, expected, path):
    assert _load(url, "linked", path).status_code == 200
    assert _text(_complete(url, "linked")) == expected["a"]


def test_what_a_model_cannot_compute_is_no_fault_of_the_request(url, caplog):
    assert _load(url, "wild", "wild").status_code == 200
    for streams in (False, True):
        answer = _complete(url, "wild", stream=streams)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "model_fault"
        assert "not finite numbers" in answer.json()["error"]["message"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2
    assert all("not finite numbers" in each for each in told)
    assert _complete(url, "tiny").status_code == 200


def test_adapters_are_not_more_than_allowed_and_have_names_of_their_own(url):
    assert _load(url, "one", "a").status_code == 200
    assert "'one' is served already" in _load(url, "one", "b").text
    assert "'one' takes adapters" in _load(url, "two", "a", base_model_name="one").text  # it is one itself
    assert _load(url, "two", "a").status_code == 200
    assert "2 adapters are loaded, which is the most" in _load(url, "three", "a").text
    assert _unload(url, "three").status_code == 404
    assert _unload(url, "tiny").status_code == 404


def test_clients_load_and_unload_only_where_that_is_allowed(servers):
    url = servers.url()
    for answer in (_load(url, "x", "a"), _unload(url, "x")):
        assert answer.status_code == 403
        assert "--lora-root" in answer.json()["error"]["message"]


def test_a_server_is_ready_when_it_has_what_it_begins_with(tokenizer, root):
    async def work(client: httpx2.AsyncClient, api: ApiServer) -> list[httpx2.Response]:
        api.served.awaited.add("first")
        body = {"lora_name": "first", "lora_path": "a"}
        return [await client.get("/ready"), await client.post("/v1/load_lora_adapter", json=body)]

    for answer in call_api(tokenizer, FakeEngine([5]), work, adapter_root=root):
        assert answer.status_code == 503
        assert "first" in answer.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lora-modules", "a"], "NAME=FOLDER"),
        (["--lora-modules", "a=none"], "none has no adapter_config.json"),
        (["--lora-modules", "tiny=ROOT/a"], "two models are called 'tiny'"),
        (["--lora-modules", "x=ROOT/a,x=ROOT/b"], "two models are called 'x'"),
        (["FOLDER2", "--lora-modules", "x=ROOT/a"], "does not say for which model"),
        (["--lora-root", "ROOT/none"], "is no folder"),
        (
            ["--engine", "simulated", "--cluster", "1xH100", "--lora-root", "ROOT"],
            "adapters are for --engine torch",
        ),
        (["--tp", "2", "--lora-modules", "x=ROOT/a"], "without --tp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_refuses_before_anything_starts(folder, root, capsys, options, says):
    given = [each.replace("ROOT", str(root)).replace("FOLDER2", f"second={folder}") for each in options]
    assert main(["serve", "run", str(folder), *given]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_begins_with_adapters_or_says_why_not(folder, root, expected, tmp_path):
    command = [
        sys.executable,
        "-c",
        "from trainyard.cli.main import run; run()",
        "serve",
        "run",
        f"own={folder}",
    ]
    options = ["--port", "0", "--json", "--cache-blocks", "50", "--threads", "1"]
    modules = f"a={root}/a,b=own:{root}/b"
    with subprocess.Popen(
        [*command, *options, "--lora-modules", modules], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            url = json.loads(server.stdout.readline())["address"]
            assert {name: _text(_complete(url, name or "own")) for name in expected} == expected
        finally:
            server.send_signal(signal.SIGTERM)
        server.communicate(timeout=600)
    shutil.copytree(root / "a", tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").unlink()
    failed = subprocess.run(
        [*command, *options, "--lora-modules", f"a={tmp_path}/a"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert failed.returncode == 2
    assert "has no adapter_model.safetensors" in failed.stderr
    assert "Traceback" not in failed.stderr

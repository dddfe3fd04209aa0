"""`trainyard serve bench`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from refused_commands import check_refused
from tests.serve.run.bench.bench_server import FakeServer, running

from trainyard.cli import main as cli

_TRACE = """name,arrival_s,prompt_tokens,output_tokens,client
first,0,300,4,alice
second,0.05,200,6,429
<b>,0.1,100,2,alice
"""
_URL = ("--url", "http://127.0.0.1:9")
_DRAWN = ("--rate", "100", "--num", "5", "--output-tokens", "4")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "requests.csv"
    path.write_text(_TRACE)
    return path


BAD = {
    "no url": (("--rate", "1"), ("--url",)),
    "wrong url": (
        ("--url", "localhost:8000", "--rate", "1"),
        ("'localhost:8000'", "such as http://127.0.0.1:8000"),
    ),
    "no requests": (_URL, ("--requests FILE", "neither is given")),
    "timeout without a unit": ((*_URL, "--rate", "1", "--timeout", "5"), ("--timeout", "'5'")),
    "no concurrency": ((*_URL, "--rate", "1", "--max-concurrency", "0"), ("--max-concurrency 0", "1 to")),
    "unknown endpoint": ((*_URL, "--rate", "1", "--endpoint", "embeddings"), ("completions", "chat")),
    "turns": (
        (*_URL, "--rate", "1", "--turns", "2"),
        ("--turns 2: serve bench sends each request", "leave it out"),
    ),
    "no server": ((*_URL, "--rate", "1"), ("http://127.0.0.1:9 cannot be reached", "is the server running")),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input(arguments: tuple[str, ...], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    check_refused(("serve", "bench", *arguments), said, capsys)


def test_documents_and_tables_say_the_same(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = tmp_path / "rows.csv"
    with running(FakeServer(refuses=("ignore_eos",))) as server:
        asked = ("serve", "bench", "--url", server.url, "--requests", str(trace), "--e2e", "60s")
        assert cli.main((*asked, "--json")) == 0
        document = json.loads(capsys.readouterr().out)
        assert cli.main((*asked, "--csv", str(rows))) == 0
    printed = capsys.readouterr().out
    assert (document["completed"], document["failed"], document["num_prompts"]) == (2, 1, 3)
    assert (document["model_id"], document["url"], document["endpoint"]) == ("m", server.url, "completions")
    assert (document["prompts_are_tokens"], document["ignore_eos"]) == (True, False)
    assert document["failures"] == [{"kind": "HTTP 429", "num": 1, "first_message": "status 429 was wanted"}]
    assert document["output_lens"] == [4, 0, 2]
    assert document["objectives"] == {"e2e_s": 60.0}
    assert document["request_goodput"] == pytest.approx(document["request_throughput"])
    assert "requests.csv: 3 requests, sent to m at" in printed
    assert "2 of 3 requests" in printed
    assert "refuses ignore_eos" in printed
    assert "HTTP 429" in printed
    table = list(csv.DictReader(rows.open()))
    assert [row["name"] for row in table] == ["first", "second", "<b>"]
    assert [row["output_tokens"] for row in table] == ["4", "", "2"]
    assert [row["failure"] for row in table] == ["", "HTTP 429", ""]
    assert [row["meets_objectives"] for row in table] == ["True", "False", "True"]
    assert float(table[0]["ttft_s"]) <= float(table[0]["e2e_s"])


def test_a_run_without_an_answer_fails(trace: Path, capsys: pytest.CaptureFixture[str]):
    trace.write_text(_TRACE.replace("alice", "503"))
    with running(FakeServer()) as server:
        code = cli.main(("serve", "bench", "--url", server.url, "--requests", str(trace)))
    out, err = capsys.readouterr()
    assert code == 1
    assert "0 of 3 requests" in out
    assert err == "error: no request was answered; HTTP 503: status 503 was wanted\n"


def test_drawn_requests_and_the_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TRAINYARD_API_KEY", "secret")
    with running(FakeServer()) as server:
        assert cli.main(("serve", "bench", "--url", server.url, *_DRAWN, "--json")) == 0
        document = json.loads(capsys.readouterr().out)
    assert document["requests"]["rate_per_s"] == 100.0
    assert document["completed"] == 5
    assert server.keys == {"Bearer secret"}
    assert "secret" not in json.dumps(document)

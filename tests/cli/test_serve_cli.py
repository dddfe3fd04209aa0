"""`trainyard serve`: what it refuses, and that documents, tables and pages say what was simulated."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from refused_commands import check_refused
from shared_data import DATA, needs_data

from trainyard.cli import main as cli
from trainyard.reading.download import GITHUB
from trainyard.serve.requests.download import TRACES
from trainyard.serve.requests.read import FORMATS

_TRACE = """name,arrival_s,prompt_tokens,output_tokens,client
first,0,300,40,alice
second,0.1,200,60,bob
long,0.2,9000,10,bob
<b>,0.3,100,1,alice
"""
PLACE = (
    "--model",
    "llama3-8b",
    "--cluster",
    "1x2xA100-80G",
    "--cache-blocks",
    "400",
    "--max-model-len",
    "4096",
)
DRAWN = ("serve", "simulate", "--rate", "5", "--num", "20", *PLACE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requests.csv").write_text(_TRACE)
    (tmp_path / "l.csv").write_text("num_prefill_tokens,num_decode_tokens\n100,5\nx,5\n50,9\n70,0\n")
    return tmp_path


def traced(*rest: str) -> tuple[str, ...]:
    return ("serve", "simulate", "--requests", "requests.csv", *PLACE, *rest)


BAD = {
    "unknown policy": (traced("--policy", "vlm"), ("vlm", "known: vllm")),
    "policy that places models": (traced("--policy", "alpaserve"), ("alpaserve", "vllm")),
    "unknown option of a policy": (traced("--policy", "vllm(tokens=3)"), ("tokens", "max_batch_tokens")),
    "missing trace": (("serve", "simulate", "--requests", "no.csv", *PLACE), ("cannot read no.csv", "No such file")),
    "trace and rate": (traced("--rate", "3"), ("--requests FILE", "--rate R", "both are given")),
    "neither trace nor rate": (("serve", "simulate", *PLACE), ("--requests FILE", "--rate R", "neither is given")),
    "limit without a trace": ((*DRAWN, "--limit", "3"), ("--limit does not apply to drawn requests",)),
    "seed of a trace": (traced("--seed", "0"), ("--seed does not apply to a trace", "leave it out")),
    "turns of a trace": (traced("--turns", "2"), ("--turns does not apply to a trace",)),
    "prefix of a trace": (traced("--prefix-tokens", "9"), ("--prefix-tokens does not apply to a trace",)),
    "lengths of a trace": (traced("--lengths", "l.csv"), ("--lengths does not apply to a trace",)),
    "prefixes without length": ((*DRAWN, "--num-prefixes", "2"), ("--num-prefixes does not apply", "--prefix-tokens")),
    "thinking without turns": ((*DRAWN, "--think-time", "2s"), ("--think-time does not apply", "--turns")),
    "time without a unit": ((*DRAWN, "--turns", "2", "--think-time", "2"), ("--think-time: '2'", "ms, s")),
    "two lengths": ((*DRAWN, "--lengths", "l.csv", "--prompt-tokens", "9"), ("--prompt-tokens does not apply",)),
    "no lengths": ((*DRAWN, "--lengths", "requests.csv"), ("no column num_prefill_tokens, num_decode_tokens",)),
    "lengths as a trace": (
        ("serve", "simulate", "--requests", "l.csv", *PLACE), ("l.csv has lengths", "--lengths FILE with --rate R")
    ),
    "strict lengths": ((*DRAWN, "--lengths", "l.csv", "--strict"), ("l.csv, line 3", "got 'x'")),
    "rate of nothing": (("serve", "simulate", "--rate", "0", *PLACE), ("--rate 0.0", "1e-06 to 1e+06")),
    "a number that is too large": (
        traced("--policy", "sarathi(chunk_tokens=1e30)"), ("chunk_tokens of sarathi", "allowed are numbers from -2^63 to")
    ),
    "no requests": ((*DRAWN, "--num", "0"), ("--num 0", "1 to 10,000,000")),
    "objective without a unit": (traced("--ttft", "500"), ("--ttft: '500'", "us, ms, s, min, h", "500ms")),
    "objective of no time": (traced("--e2e", "0s"), ("--e2e: '0s'", "above 0")),
    "objective below 0": (traced("--tpot=-1ms",), ("--tpot: '-1ms'", "above 0")),
    "memory without a unit": (traced("--cache-memory", "40"), ("--cache-memory: '40'", "GB", "40GB")),
    "cache twice": (traced("--cache-memory", "40GB"), ("--cache-blocks and --cache-memory", "give one")),
    "unknown router": (traced("--router", "random"), ("unknown router 'random'", "least_requests")),
    "unknown baseline": (traced("--baseline", "orca"), ("'orca' is not among the policies: vllm",)),
    "unknown request": (traced("--follow", "third"), ("no request 'third'", "there are first, second, long, <b>")),
    "unknown format": (traced("--format", "pdf"), ("unknown trace format 'pdf'", "azure")),
    "page in no folder": (traced("--html", "no/page.html"), ("--html no/page.html", "no folder no")),
    "page and table in one file": (traced("--html", "x", "--csv", "./x"), ("--html and --csv are both x", "of its own")),
    "no chunk": (traced("--policy", "sarathi(chunk_tokens=0)"), ("sarathi(chunk_tokens=0): chunk_tokens is 0; allowed",)),
    "no chunks": (traced("--policy", "vllm,orca", "--chunk", "64"), ("orca has no option", "vllm, sarathi")),
    "a sequence without an answer": (
        (*traced()[:-1], "1"), ("max_model_len 1; allowed is 2 or more, for a prompt",)
    ),
    "after all time": (traced("--time-scale", "1e12"), ("'second': arrival_s is 100000000000.0", "from 0 s to 1e+10 s")),
    "unknown trace": (("serve", "download", "azure"), ("no trace 'azure' to download", "azure-conv")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = BAD[case]
    check_refused(arguments, said, capsys)


def test_the_document_has_every_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = "vllm,sarathi(chunk_tokens=128)"
    given = traced("--policy", policies, "--baseline", "vllm", "--e2e", "1ms", "--follow", "second", "--json")
    assert cli.main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == {"trace": "requests.csv"}
    assert found["objectives"] == {"e2e_s": 0.001}
    assert (found["deployment"]["num_replicas"], found["deployment"]["num_blocks"]) == (2, 400)
    assert (found["rows"]["num_rows"], found["baseline"]) == (4, "vllm")
    assert {run["policy"] for run in found["runs"]} == {"vllm", "sarathi(chunk_tokens=128)"}
    sums_s = {run["policy"]: sum(run["requests"]["e2e_s"][:3]) for run in found["runs"]}
    for run in found["runs"]:
        assert (run["num_served"], run["num_refused"], run["slo_attainment"]) == (3, 1, 0.0)
        assert run["to_baseline"] == pytest.approx(sums_s[run["policy"]] / sums_s["vllm"])
        assert run["refused"][0]["request"] == "long"
        assert sorted(run["requests"]["name"]) == sorted(("first", "second", "long", "<b>"))
        ends = run["requests"]["finished_s"]
        assert ends[:3] == sorted(ends[:3])
        assert ends[3] is None
        assert {each["client"]: each["num_served"] for each in run["clients"]} == {"alice": 2, "bob": 1}
    assert [each["policy"] for each in found["followed"]] == [run["policy"] for run in found["runs"]]
    for each in found["followed"]:
        assert each["request"] == "second"
        decoded = sum(step["num_tokens"] for step in each["steps"] if step["kind"] == "decode")
        assert decoded == 59


def test_a_chunk_is_that_of_all_policies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(traced("--policy", "vllm,sarathi", "--chunk", "128", "--baseline", "vllm", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert {run["policy"] for run in found["runs"]} == {
        "vllm(max_batch_tokens=128)",
        "sarathi(chunk_tokens=128)",
    }
    assert found["baseline"] == "vllm(max_batch_tokens=128)"


def test_tables_and_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(traced("--policy", "vllm,orca", "--ttft", "10s", "--html", "p.html", "--csv", "r.csv"))
    out, err = capsys.readouterr()
    assert code == 0
    assert "requests.csv: 4 requests; 2 replicas of llama3-8b" in out
    assert "refused 1 of 4 requests: long (a prompt of 9000 tokens" in out
    assert "SLO met" in out
    assert "fairness" in out
    assert err == "page written to p.html\nrequests written to r.csv\n"
    assert "Timeline of request" in (folder / "p.html").read_text()
    with (folder / "r.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "policy", "name", "client", "prompt_tokens", "arrival_s", "output_tokens", "scheduled_s", "first_token_s",
        "finished_s", "ttft_s", "tpot_s", "e2e_s", "num_preemptions", "cached_tokens", "meets_objectives", "refused",
    ]  # fmt: skip
    by_name = {(row["policy"], row["name"]): row for row in rows}
    assert len(by_name) == len(rows) == 8
    long = by_name["orca", "long"]
    assert (long["arrival_s"], long["finished_s"], long["meets_objectives"]) == ("0.2", "", "False")
    assert "a prompt of 9000 tokens" in long["refused"]
    first = by_name["vllm", "first"]
    assert (first["output_tokens"], first["meets_objectives"], first["refused"]) == ("40", "True", "")
    assert float(first["e2e_s"]) == pytest.approx(float(first["finished_s"]) - float(first["arrival_s"]))
    assert float(first["ttft_s"]) < float(first["e2e_s"])


def test_without_objectives_none_are_met(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all requests, or of those of one client."""
    assert cli.main(traced("--json")) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert [run["slo_attainment"], run["goodput_per_s"]] == [None, None]
    (folder / "mixed.csv").write_text(
        "name,arrival_s,prompt_tokens,output_tokens,client,e2e_s\na,0,300,40,alice,60\nb,0.1,200,60,bob,\n"
    )
    given = ("serve", "simulate", "--requests", "mixed.csv", *PLACE, "--html", "p.html", "--json")
    assert cli.main(given) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert {each["client"]: each["slo_attainment"] for each in run["clients"]} == {"alice": 1.0, "bob": None}
    assert run["slo_attainment"] == 1.0
    assert re.search(r"<tr><td>bob</td>.*<td[^>]*>-</td></tr>", (folder / "p.html").read_text())


def test_a_refused_request_is_not_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(traced("--follow", "long")) == 0
    assert "request 'long' is not followed: every policy refused it" in capsys.readouterr().err


def test_drawn_requests_are_those_of_their_seed(capsys: pytest.CaptureFixture[str]) -> None:
    def document(*rest: str) -> dict[str, object]:
        assert cli.main((*DRAWN, "--prompt-tokens", "200", "--output-tokens", "20", "--json", *rest)) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    first = document()
    assert first == document("--seed", "0")
    assert first["requests"] == {
        "rate_per_s": 5.0, "num": 20, "prompt_tokens": 200, "output_tokens": 20, "burstiness": 1.0, "seed": 0,
    }  # fmt: skip
    assert first["rows"] is None
    assert document("--seed", "1")["runs"] != first["runs"]
    assert document("--burstiness", "3")["runs"] != first["runs"]


def _simulated(capsys: pytest.CaptureFixture[str], *rest: str) -> dict[str, Any]:
    assert cli.main((*DRAWN, *rest, "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_lengths_are_drawn_from_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each policy serves the same; rows that give none are counted."""
    found = _simulated(capsys, "--lengths", "l.csv", "--policy", "vllm, orca")
    assert found["requests"] == {
        "rate_per_s": 5.0,
        "num": 20,
        "lengths": "l.csv",
        "burstiness": 1.0,
        "seed": 0,
    }
    assert (found["rows"]["num_rows"], found["rows"]["num_lengths"]) == (4, 2)
    assert [each["reason"] for each in found["rows"]["left_out"]][1:] == ["has no output"]
    served = [
        {name: (a, b) for name, a, b in zip(*(run["requests"][key] for key in keys), strict=True)}
        for run in found["runs"]
        for keys in [("name", "prompt_tokens", "output_tokens")]
    ]
    assert served[0] == served[1]
    assert set(served[0].values()) == {(100, 5), (50, 9)}
    assert cli.main((*DRAWN, "--lengths", "l.csv")) == 0
    assert "left out: 2 of 4 rows" in capsys.readouterr().out


def test_prompts_share_prefixes(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 30 tokens one block of 16 is found in the cache, of all requests but the first with each prefix."""
    given = ("--prefix-tokens", "30", "--num-prefixes", "2", "--prompt-tokens", "10", "--output-tokens", "2")
    found = _simulated(capsys, *given, "--replicas", "1")
    assert {name: found["requests"][name] for name in ("prefix_tokens", "num_prefixes")} == {
        "prefix_tokens": 30, "num_prefixes": 2,
    }  # fmt: skip
    requests = found["runs"][0]["requests"]
    assert min(requests["prompt_tokens"]) > 30
    assert sorted(requests["cached_tokens"]) == [0, 0, *(16,) * 18]


def test_conversations_go_on_after_their_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Each turn begins with the prompt and the answer of the one before, some time after its end."""
    given = ("--turns", "4", "--think-time", "2s", "--prompt-tokens", "50", "--output-tokens", "20")
    found = _simulated(capsys, *given, "--replicas", "1")
    assert (found["requests"]["turns"], found["requests"]["think_time_s"]) == (4, 2.0)
    columns = found["runs"][0]["requests"]
    rows = {int(row[0]): row[1:] for row in zip(*(columns[name] for name in (
        "name", "arrival_s", "finished_s", "prompt_tokens", "output_tokens", "cached_tokens")), strict=True)}  # fmt: skip
    assert sorted(rows) == list(range(20))
    for number in (each for each in range(20) if each % 4):
        _, end_s, context_tokens, new_tokens, _ = rows[number - 1]
        arrival_s, _, prompt_tokens, _, cached = rows[number]
        assert arrival_s > end_s
        assert prompt_tokens > context_tokens + new_tokens
        assert cached >= context_tokens // 16 * 16 > 0
    assert cli.main((*DRAWN, *given)) == 0
    assert capsys.readouterr().out.startswith("20 requests drawn in conversations of 4 at 5/s; ")


def test_nobody_is_served(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "requests.csv").write_text("name,arrival_s,prompt_tokens,output_tokens\nlong,0,9000,10\n")
    assert cli.main(traced("--html", "p.html")) == 1
    assert "error: no request was served: vllm refused 1 of 1 requests: long" in capsys.readouterr().err
    assert (folder / "p.html").exists()


def test_public_traces_have_readers_and_stay_what_they_are() -> None:
    assert len(TRACES) > 1
    for trace in TRACES.values():
        assert trace.format in FORMATS
        assert trace.url.startswith(f"{GITHUB}/")
        assert len(trace.url.removeprefix(f"{GITHUB}/").split("/")[2]) == 40, "not of a commit"
        assert len(trace.sha256) == 64


_LOCAL = DATA / "serving"


@needs_data(_LOCAL)
@pytest.mark.parametrize("name", TRACES)
def test_public_traces_are_those_that_are_known(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = _LOCAL.rglob(TRACES[name].file_name)
    assert cli.main(("serve", "download", name, "--folder", str(path.parent))) == 0
    out = capsys.readouterr().out
    assert TRACES[name].about in out
    assert f"trainyard serve simulate --requests {path} " in out


def test_requests_for_other_models_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "two.csv").write_text(
        "name,arrival_s,prompt_tokens,output_tokens,model\na,0,10,2,llama3-8b\nb,0.1,10,2,mistral-7b\nc,0.2,10,2,\n"
    )
    assert cli.main(("serve", "simulate", "--requests", "two.csv", *PLACE)) == 0
    assert (
        "warning: requests of the trace are for mistral-7b; all are served by llama3-8b"
        in capsys.readouterr().err
    )
    assert cli.main(traced()) == 0
    assert "served by" not in capsys.readouterr().err


def test_options_without_effect_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swaps, host = ("--policy", "vllm_v0(preempt='swap')"), ("--host-cache-memory", "1GB")
    for given, said in (
        (swaps, "without --host-cache-memory nothing is swapped out by vllm_v0(preempt='swap')"),
        (host, "--host-cache-memory has no effect: no policy of 'vllm' swaps"),
        ((*swaps, *host), ""),
    ):
        assert cli.main(traced(*given)) == 0
        err = capsys.readouterr().err
        assert said in err if said else "warning" not in err


def test_one_request_is_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(traced("--limit", "1")) == 0
    assert capsys.readouterr().out.startswith("requests.csv: 1 request; ")


def test_a_policy_that_is_named_twice_runs_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(traced("--policy", "vllm, sarathi, vllm", "--json")) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert sorted(run["policy"] for run in runs) == ["sarathi", "vllm"]
    assert all(
        (each["tpot_s"] is None) == (each["output_tokens"] in (None, 1))
        for run in runs
        for each in _rows(run)
    )


def _rows(run: dict) -> list[dict]:
    columns = run["requests"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_drawn_lengths_may_be_as_long_as_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*DRAWN, "--prompt-tokens", "10000000")) == 1
    assert (
        "no request was served: vllm refused 20 of 20 requests: 0 (a prompt of 10000000 tokens"
        in capsys.readouterr().err
    )

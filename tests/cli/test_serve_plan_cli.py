"""`trainyard serve plan`: what it refuses, and that documents, tables and pages say what was planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refused_commands import check_refused
from splits_of_tests import split_of

from trainyard.cli import main as cli
from trainyard.serve import deploy
from trainyard.serve.catalog import parse_policies
from trainyard.serve.deployment import ServedModel
from trainyard.serve.placement_document import load_placement

DRAWN = (
    "--rate",
    "20",
    "--num",
    "80",
    "--prompt-tokens",
    "400",
    "--output-tokens",
    "40",
    "--max-tokens",
    "500",
)
WANTED = ("--ttft", "300ms", "--tpot", "20ms")
PLAN = (
    "serve",
    "plan",
    "llama3-8b",
    "--cluster",
    "1x4xA100-80G",
    "--policy",
    "vllm,sarathi(chunk_tokens=256)",
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder, where the seconds of all models are those of a small one."""
    split = split_of()

    def served_model(
        model: str, cluster: object, *, tensor_parallel: int, pipeline_stages: int, **more: object
    ) -> ServedModel:
        return split(tensor_parallel, pipeline_stages)

    monkeypatch.setattr(deploy, "served_model", served_model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


BAD = {
    "no objective": ((*PLAN, *DRAWN), ("give an objective, such as --ttft 500ms",)),
    "no requests": ((*PLAN, *WANTED), ("--requests FILE", "--rate R", "neither is given")),
    "share without a unit": ((*PLAN, *DRAWN, *WANTED, "--share", "0.99"), ("--share '0.99'", "such as 99%")),
    "share of more than all": ((*PLAN, *DRAWN, *WANTED, "--share", "101%"), ("up to 100%",)),
    "unknown policy": ((*PLAN[:-1], "vlm", *DRAWN, *WANTED), ("unknown policy 'vlm'",)),
    "unknown router": ((*PLAN, *DRAWN, *WANTED, "--router", "random"), ("unknown router 'random'", "least_requests")),
    "unlike devices": (
        ("serve", "plan", "llama3-8b", "--cluster", "1x4xA100-80G+1x4xT4", *DRAWN, *WANTED),
        ("different devices, or nodes of different sizes",),
    ),
    "page in no folder": ((*PLAN, *DRAWN, *WANTED, "--html", "no/page.html"), ("no folder no",)),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = BAD[case]
    check_refused(arguments, said, capsys)


def test_the_document_says_what_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*PLAN, *DRAWN, *WANTED, "--share", "95%", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_met"], found["share"]) == (True, 0.95)
    assert found["objectives"] == {"ttft_s": 0.3, "tpot_s": 0.02}
    best = found["best"]
    assert best["num_devices"] == best["num_replicas"] * best["tensor_parallel"] * best["pipeline_stages"]
    assert parse_policies(best["policy"])
    assert best["summary"]["slo_attainment"] >= 0.95
    assert found["runners_up"]
    assert all(each["num_devices"] >= best["num_devices"] for each in found["runners_up"])
    assert any(each["is_best"] for each in found["frontier"])
    assert found["closest"]["num_devices"] < best["num_devices"]
    assert len(found["bottlenecks"]) == 4


def test_tables_and_page(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*PLAN, *DRAWN, *WANTED, "--share", "95%", "--html", "p.html")) == 0
    out, err = capsys.readouterr()
    assert err == "page written to p.html\n"
    said = " ".join(out.split())
    title = "llama3-8b on 1x4xA100-80G: 80 requests drawn at 20/s"
    for part in (title, "of the requests meet", "Pareto frontier", "bottleneck"):
        assert part in said
    assert "Throughput per device against speed for one user" in (small / "p.html").read_text()


def test_the_placement_can_be_saved(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*PLAN, *DRAWN, *WANTED, "--share", "95%", "--json", "--save", "placement.json")) == 0
    out, err = capsys.readouterr()
    assert err == "placement written to placement.json\n"
    best, placed = json.loads(out)["best"], load_placement(small / "placement.json")
    assert len(placed.groups) == best["num_replicas"]
    split = best["pipeline_stages"], best["tensor_parallel"]
    assert {(r.pipeline_stages, r.tensor_parallel) for group in placed.groups for r in group.replicas} == {
        split
    }


def test_objectives_that_cannot_be_met_are_told(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*PLAN, *DRAWN, "--tpot", "1ms", "--save", "placement.json")) == 1
    assert not (small / "placement.json").exists()
    out, err = capsys.readouterr()
    assert err.startswith(
        "error: no deployment on these devices meets the objectives for 99.0 % of the requests"
    )
    assert "even if each request is served alone, only 0.0 %" in " ".join(out.split())
    assert "none of those examined" in out


def test_a_model_that_fits_nowhere_is_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of `trainyard plan`: exit code 1, and a document that says so."""
    split = split_of(usable_bytes=1e9)
    monkeypatch.setattr(
        deploy,
        "served_model",
        lambda *_, tensor_parallel, pipeline_stages, **__: split(tensor_parallel, pipeline_stages),
    )
    assert cli.main((*PLAN, *DRAWN, *WANTED, "--json")) == 1
    out, err = capsys.readouterr()
    assert json.loads(err)["error"].startswith(
        "the model fits nowhere: tp 1: made with tp 1 does not fit: a device has 1 GB"
    )
    found = json.loads(out)
    assert (found["fits"], found["is_met"], found["model"]) == (False, False, "llama3-8b")
    assert found["reason"].startswith("the model fits nowhere")


def test_a_trace_comes_at_the_rate(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"r{n},{10 * n},300,20" for n in range(40)]
    (small / "r.csv").write_text("\n".join(["name,arrival_s,prompt_tokens,output_tokens", *rows]))

    def devices(*rate: str) -> int:
        assert cli.main((*PLAN, "--requests", "r.csv", *WANTED, "--json", *rate)) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["requests"].get("rate_per_s") == (float(rate[1]) if rate else None)
        num: int = found["best"]["num_devices"]
        return num

    assert devices() == 1
    assert devices("--rate", "100") > 1
    assert cli.main((*PLAN, "--requests", "r.csv", *WANTED, "--rate", "5", "--time-scale", "2")) == 2
    assert "--rate and --time-scale" in capsys.readouterr().err

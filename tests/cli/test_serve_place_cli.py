"""`trainyard serve place`: what it refuses, and that documents, tables and pages say what was placed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from refused_commands import check_refused

from trainyard.cli import main as cli
from trainyard.serve.placement_document import load_placement
from trainyard.serve.placing import forward_pass

PLACE = ("serve", "place", "resnet-tiny:2000/s:50ms,gpt-tiny:1000/s:20ms", "--cluster", "1x2xA100-80G")
TRACE = "name,arrival_s,prompt_tokens,output_tokens,model"
BAD = {
    "no objective": (("resnet-tiny:20/s",), ("give an objective, as resnet-tiny:50ms, or --e2e",)),
    "no rate": (("resnet-tiny:50ms",), ("resnet-tiny:200/s, or --requests",)),
    "rate of 0": (("resnet-tiny:0/s:50ms",), ("'resnet-tiny:0/s:50ms'", "such as resnet50:200/s:50ms")),
    "rate of too many": (("resnet-tiny:1e7/s:50ms",), ("requests per second (1e-06 to 1e+06)", "resnet50:200/s:50ms")),
    "two rates": (("resnet-tiny:1/s:2/s",), ("allowed are a name",)),
    "no unit": (("resnet-tiny:20/s:50",), ("model resnet-tiny: '50'", "such as 500ms")),
    "twice": (("gpt-tiny:1/s:1s,gpt-tiny:2/s:1s",), ("one stands there twice",)),
    "unknown model": (("resnet-tony:1/s:1s",), ("unknown model 'resnet-tony'; known: resnet-tiny",)),
    "unknown policy": (("gpt-tiny:1/s:1s", "--policy", "nexsu"), ("unknown policy 'nexsu'; known: nexus",)),
    "option of a trace": (("gpt-tiny:1/s:1s", "--limit", "5"), ("--limit says nothing of drawn requests",)),
    "rate and trace": (("gpt-tiny:1/s:1s", "--requests", "r.csv"), ("leave its rate out",)),
    "draws of a trace": (
        ("gpt-tiny:1s", "--requests", "r.csv", "--num", "5"), ("--num says nothing of a trace",)
    ),
    "model not placed": (("gpt-tiny:1s", "--requests", "r.csv"), ("asks for model 'resnet-tiny'",)),
    "no file": (("no.txt:1/s:1s",), ("no.txt",)),
    "unlike devices": (
        ("gpt-tiny:1/s:1s", "--cluster", "1x4xA100-80G+1x4xT4"), ("devices that are not alike",)
    ),
    "device of unknown speed": (("gpt-tiny:1/s:1s", "--cluster", "1x2xFoo"), ("unknown device 'Foo'; known: A100",)),
    "dtype": (("gpt-tiny:1/s:1s", "--dtype", "int8"), ("float32, float16, bfloat16",)),
    "more than the memory": (
        ("gpt-tiny:1/s:1s", "--weight-memory", "1TB"), ("--weight-memory 1TB", "at most", "a device has, 79.1 GiB")
    ),
    "page in no folder": (("gpt-tiny:1/s:1s", "--html", "no/page.html"), ("no folder no",)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a trace of two models."""
    rows = [f"r{n},{n / 100},1,1,{('resnet-tiny', 'gpt-tiny')[n % 3 == 0]}" for n in range(300)]
    (tmp_path / "r.csv").write_text("\n".join([TRACE, *rows]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    (models, *more), said = BAD[case]
    cluster = () if "--cluster" in more else ("--cluster", "1x2xA100-80G")
    check_refused(("serve", "place", models, *cluster, *more), said, capsys)


def test_the_document_says_what_is_placed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*PLACE, "--json", "--num", "500", "--weight-memory", "1GB")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_devices"], found["device_bytes"]) == (2, 1e9)
    assert [(m["name"], m["objective_s"]) for m in found["models"]] == [
        ("resnet-tiny", 0.05), ("gpt-tiny", 0.02),
    ]  # fmt: skip
    assert sorted(run["policy"] for run in found["runs"]) == ["alpaserve", "auto", "nexus", "replicate"]
    shapes = [(each["pipeline_stages"], each["tensor_parallel"]) for each in found["models"][1]["splits"]]
    assert shapes == [(1, 1), (2, 1), (1, 2)]
    for run in found["runs"]:
        assert {each["model"] for each in run["replicas"]} == {"resnet-tiny", "gpt-tiny"}
        assert run["slo_attainment"] == sum(run["num_good"]) / sum(run["num_asked"])
        for each in run["replicas"]:
            plan = yaml.safe_load(each["plan"])
            assert (plan["model"], len(plan["stages"])) == (each["model"], each["pipeline_stages"])
    (nexus,) = (run for run in found["runs"] if run["policy"] == "nexus")
    assert all(each["batch"] >= 1 and each["cycle_s"] > 0 for each in nexus["replicas"])
    assert found["cannot_place"] == []


def test_tables_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--html", "p.html", "--save", "placement.json")
    assert cli.main((*PLACE, "--num", "500", *files, "--policy", "nexus(headroom=2)")) == 0
    out, err = capsys.readouterr()
    assert err == "page written to p.html\nplacement written to placement.json\n"
    placed = load_placement(folder / "placement.json")
    assert {model for group in placed.groups for model in group.models} == {"resnet-tiny", "gpt-tiny"}
    said = " ".join(out.split())
    for part in ("2 models on 1x2xA100-80G", "policies, best first", "placed by nexus(headroom=2)"):
        assert part in said
    page = (folder / "p.html").read_text()
    assert re.findall("<h2[^>]*>([^<]*)", page)[3:] == [
        "Devices and models",
        "Load of devices",
        "On which devices: nexus(headroom=2)",
    ]


def test_requests_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    trace = ("resnet-tiny,gpt-tiny:5ms", "--e2e", "30ms", "--requests", "r.csv", "--cluster", "1x2xA100-80G")
    assert cli.main(("serve", "place", *trace, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == "r.csv: 300 requests"
    assert [m["objective_s"] for m in found["models"]] == [0.03, 0.005]
    assert [run["num_asked"] for run in found["runs"]] == [[200, 100]] * 4


def test_profiles_of_nexus_are_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = "batch,latency(us),std(us),memory(B)\n1,1000,0,5e8\n2,1500,0,6e8\n"
    (folder / "net.txt").write_text(f"net\nGPU\nForward latency\n{table}")
    models = "net.txt:100/s:50ms"
    assert cli.main(("serve", "place", models, "--cluster", "1x2xT4", "--policy", "nexus", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["plan"] for each in found["runs"][0]["replicas"]} == {""}
    (model,) = found["models"]
    assert (model["name"], model["weight_bytes"]) == ("net", 5e8)
    assert model["latency_s"] == pytest.approx([1.15e-3, 1.725e-3])


def test_no_placement_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    models = "gpt-tiny:100/s:100us"
    assert cli.main(("serve", "place", models, "--cluster", "1x1xA100-80G", "--policy", "nexus")) == 1
    out, err = capsys.readouterr()
    assert err.startswith("error: no policy could place the models: nexus: session 'gpt-tiny'")
    assert "cannot place" in out


def test_models_that_fit_nowhere_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    models = ("resnet-tiny:100/s:1s,gpt-tiny:100/s:1s", "--cluster", "1x2xA100-80G", "--policy", "replicate")
    small = ("serve", "place", *models, "--num", "100", "--weight-memory")
    assert cli.main((*small, "20kB", "--json")) == 1
    out, err = capsys.readouterr()
    assert json.loads(err) == {
        "error": "no policy has a place for gpt-tiny; give devices with more memory, or more of them"
    }
    (run,) = json.loads(out)["runs"]
    assert {each["model"] for each in run["replicas"]} == {"resnet-tiny"}
    assert cli.main((*small, "1kB", "--json")) == 1
    out, err = capsys.readouterr()
    assert json.loads(err)["error"].startswith(
        "no policy could place the models: replicate: no model fits on any group"
    )
    assert json.loads(out)["runs"] == []


def test_bad_input_is_refused_before_models_are_captured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured: list[str] = []
    monkeypatch.setattr(forward_pass, "forward_pass", lambda model, *_: captured.append(model))
    for more, said in (
        (("--weight-memory", "1TB"), "at most what a device has"),
        (("--num", "1"), "have no rate"),
    ):
        check_refused(
            ("serve", "place", "gpt-tiny:1/s:1s", "--cluster", "1x2xA100-80G", *more), (said,), capsys
        )
    assert not captured


def test_requests_that_are_all_late_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = ("resnet-tiny:100/s:1us", "--cluster", "1x2xA100-80G", "--num", "100", "--policy", "replicate")
    assert cli.main(("serve", "place", *late, "--json", "--save", "placement.json")) == 1
    assert not (folder / "placement.json").exists()
    out, err = capsys.readouterr()
    assert json.loads(err)["error"].startswith("no request meets its objective under any policy; give longer")
    (run,) = json.loads(out)["runs"]
    assert (run["slo_attainment"], run["mean_latency_s"]) == (0.0, None)
    assert cli.main(("serve", "place", *late)) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(" replicate "))
    assert row.split() == ["replicate", "0.0", "%", "2", "of", "2", "2"]

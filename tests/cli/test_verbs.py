"""The verbs on a small model: documents, files and pages that they write."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from trainyard.cli import main as cli
from trainyard.cli.screen import plain
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.hardware.parse import parse_cluster
from trainyard.job.plan import load_plan
from trainyard.report.comparison_page import comparison_page
from trainyard.report.league import Contender, league_table, ranked

CLUSTER = ("--cluster", "1x2xA100-80G")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GIB = 2**30


def document(*arguments, capsys):
    code = cli.main((*arguments, "--json"))
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def saved(tmp_path, capsys):
    """A saved plan and the document that was printed with it."""
    path = tmp_path / "plan.yaml"
    arguments = ("plan", "gpt-tiny", *CLUSTER, "--strategies", "megatron(tensor=2)", "--save", str(path))
    return path, document(*arguments, capsys=capsys)


def test_plan_is_saved_as_it_is_printed(saved):
    path, printed = saved
    assert printed["plan"] == path.read_text()
    plan = load_plan(path)
    assert plan.mesh_text == "2 tensor"
    assert printed["mesh"] == {"tensor": 2}
    assert printed["made_by"] == ["megatron(tensor=2)"]
    prediction = printed["prediction"]
    assert prediction["fits"] is True
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["step_s"])
    assert sum(prediction["memory_bytes"][0].values()) == prediction["peak_bytes"][0]


@pytest.fixture
def small_cluster(tmp_path):
    """The path of a cluster whose devices have 100 kB."""
    path = tmp_path / "small.yaml"
    (node,) = parse_cluster("1x2xT4").nodes
    small = tuple(replace(d, memory_bytes=100_000, overhead=NO_OVERHEAD) for d in node.devices)
    path.write_text(Cluster("small", (replace(node, devices=small),)).to_yaml())
    return str(path)


@pytest.mark.parametrize("strategies", ["data_parallel", "auto"])
def test_a_plan_that_does_not_fit_fails(strategies, small_cluster, capsys):
    arguments = ("plan", "gpt-tiny", "--cluster", small_cluster, "--strategies", strategies, "--json")
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["fits"] is False
    assert re.search(r"does not fit.*MiB", json.loads(err)["error"])


def test_compare_says_what_is_short_in_a_row(small_cluster, capsys):
    arguments = ("compare", "gpt-tiny", "--cluster", small_cluster, "--strategies", "data_parallel")
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert "does not fit: 2 data. a device needs" in " ".join(out.split())
    assert "none of the strategies has a plan that fits" in err


def test_simulate_agrees_with_plan_and_writes_files(saved, tmp_path, capsys):
    path, printed = saved
    page, trace = tmp_path / "step.html", tmp_path / "step.json"
    files = ("--html", str(page), "--perfetto", str(trace))
    found = document("simulate", str(path), *files, capsys=capsys)
    assert found["step_s"] == printed["prediction"]["step_s"]
    assert "2 tensor" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]


def test_simulate_on_a_slower_cluster_takes_longer(saved, capsys):
    path, printed = saved
    found = document("simulate", str(path), "--cluster", "1x2xK80", capsys=capsys)
    assert found["step_s"] > printed["prediction"]["step_s"]
    assert cli.main(("simulate", str(path), "--cluster", "1x2xK80")) == 0
    assert capsys.readouterr().out.startswith("Simulated on 1x2xK80, not on the cluster of the plan.")


def test_what_ranks_of_a_saved_plan_run_is_shown(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    document(
        "plan", "gpt-tiny", *CLUSTER, "--strategies", "data_parallel", "--save", str(path), capsys=capsys
    )
    text = path.read_text()
    assert "{data: 2}" in text
    path.write_text(text.replace("{data: 2}", "{data: [3, 1]}"))
    found = document("simulate", str(path), "--show", "routines", capsys=capsys)
    assert [share["parts"] for share in found["shares"]] == [f"{n} of 4 parts along data" for n in (3, 1)]
    shown = [line for line in found["routines"].splitlines() if line.startswith("pipeline rank")]
    assert shown == [f"pipeline rank 0: 2 data (3:1), with {n} of 4 parts along data" for n in (3, 1)]
    assert cli.main(("simulate", str(path), "--show", "choices")) == 0
    out = capsys.readouterr().out
    assert "with 1 of 4 parts along data" in out
    assert "\nchoices:\n" in out


def test_auto_is_not_worse_and_names_runners_up(saved, tmp_path, capsys):
    _, printed = saved
    page = tmp_path / "plan.html"
    found = document("plan", "gpt-tiny", *CLUSTER, "--html", str(page), capsys=capsys)
    for heading in ("Timeline", "Why this plan", "Also considered"):
        assert f"<h2>{heading}</h2>" in page.read_text()
    assert found["prediction"]["step_s"] <= printed["prediction"]["step_s"]
    assert found["runners_up"]
    assert cli.main(("plan", "gpt-tiny", *CLUSTER)) == 0
    out, _ = capsys.readouterr()
    for word in ("predicted", "step time", "MFU", "memory per device", "also considered"):
        assert word in out


def test_compare_ranks_and_explains_what_has_no_plan(tmp_path, capsys):
    page = tmp_path / "compare.html"
    strategies = ("--strategies", "gpipe(stages=2, microbatches=2),data_parallel,expert_parallel")
    found = document("compare", "gpt-tiny", *CLUSTER, *strategies, "--html", str(page), capsys=capsys)
    names = [each["name"] for each in found["contenders"]]
    assert sorted(names) == ["data_parallel", "expert_parallel", "gpipe(stages=2, microbatches=2)"]
    assert names[-1] == "expert_parallel"
    assert found["contenders"][-1]["step_s"] is None
    assert "expert" in found["contenders"][-1]["what"]
    times = [each["step_s"] for each in found["contenders"][:-1]]
    assert times == sorted(times)
    assert all(name in page.read_text() for name in names)


@pytest.mark.slow
def test_train_resume_and_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    start = ("train", "gpt-tiny", "--checkpoint", "c", "--steps")
    found = document(*start, "12", "--processes", "2", "--strategies", "data_parallel", capsys=capsys)
    losses = [next(iter(m["losses"].values())) for m in found["metrics"]]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    assert found["measured"]["sent_bytes"] == pytest.approx(found["predicted_sent_bytes"], rel=0.01)
    assert found["measured"]["peak_memory_bytes"] > found["prediction"]["peak_bytes"][0]
    assert (tmp_path / "c" / "log" / "metrics.jsonl").is_file()

    # All else is as in the checkpoint; other processes are a matter of taste, another rate is another run.
    assert cli.main(("train", "gpt-tiny", "--checkpoint", "c", "--resume", "--lr", "0.1")) == 2
    assert "with --lr 0.001, and --lr 0.1 is asked for" in capsys.readouterr().err
    resumed = document(*start, "14", "--processes", "1", "--resume", capsys=capsys)
    assert resumed["first_step"] == 12
    assert [m["step"] for m in resumed["metrics"]] == [12, 13]
    assert next(iter(resumed["metrics"][0]["losses"].values())) < losses[0]

    (tmp_path / "plan.yaml").write_text(found["plan"])
    again = document("run", "plan.yaml", "--steps", "2", capsys=capsys)
    assert [next(iter(m["losses"].values())) for m in again["metrics"]] == pytest.approx(losses[:2], rel=1e-5)
    assert yaml.safe_load(again["plan"])["stages"] == [{"mesh": {"data": 2}, "rows": ["data"]}]

    assert cli.main((*start, "20")) == 2
    assert "--resume" in capsys.readouterr().err


CONTENDERS = (
    Contender(
        "slow", "data 2", 2.0, {"forward": 1.5, "bubble": 0.5}, {"parameters": 10 * GIB}, 80 * GIB, True, 0.2
    ),
    Contender("huge", "data 1", 0.5, {"forward": 0.5}, {"parameters": 100 * GIB}, 80 * GIB, False, 0.8),
    Contender("none", "the model has <no> experts"),
    Contender("fast", "tensor 2", 1.0, {"forward": 1.0}, {"parameters": 20 * GIB}, 80 * GIB, True, 0.4),
)


def test_what_fits_comes_before_what_does_not():
    assert [c.name for c in ranked(CONTENDERS)] == ["fast", "slow", "huge", "none"]
    table = league_table("title", CONTENDERS)
    assert [str(cell) for cell in table.columns[2].cells] == ["1.00x", "2.00x", "", ""]


@pytest.mark.parametrize("contenders", [CONTENDERS, CONTENDERS[2:3]], ids=["several", "no plan at all"])
def test_comparison_page_needs_nothing_and_escapes(contenders):
    page = comparison_page("a <b> & c", contenders, {"model": "<i>"})
    assert "<b>" not in page.partition("<script>")[0]
    assert "&lt;no&gt; experts" in page
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: none is on the PATH, and CHROMIUM is not set")
def test_comparison_page_draws_in_a_browser(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(comparison_page("title", CONTENDERS, {"best": "fast"}))
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom")
    done = subprocess.run([BROWSER, *flags, path.as_uri()], capture_output=True, text=True, timeout=600)
    assert '<div id="errors"></div>' in done.stdout, done.stderr
    assert done.stdout.count('class="main-svg"') >= 2
    drawn = len(re.findall(r'<g class="point">', done.stdout))
    # Three contenders have a plan: two categories of time and one kind of memory each.
    assert drawn == 3 * 3
    assert "100 GiB" in done.stdout
    assert "does not fit" in done.stdout


def test_plain_documents_have_no_infinite_numbers():
    assert plain({"a": float("inf"), 1: (1, 2.5, None, True, {"x"})}) == {
        "a": None,
        "1": [1, 2.5, None, True, ["x"]],
    }

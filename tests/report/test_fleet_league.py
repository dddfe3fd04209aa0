"""The league of policies of which some refuse jobs: that is seen, and no way to the top."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.cli.main import main

_JOBS = """name,arrival_s,num_devices,length_s,virtual_cluster,deadline_s
a,0,1,10,one,50
b,0,1,10,one,50
c,0,2,10,one,
d,0,1,100,two,50
e,0,2,10,one,60
"""
_ALL = "antman(quotas=(('one', 0), ('two', 0)))"
_SOME = "antman(quotas=(('one', 0),))"


def simulated(
    folder: Path, policies: str, capsys: pytest.CaptureFixture[str], *options: str, jobs: str = _JOBS
) -> str:
    trace = folder / "jobs.csv"
    trace.write_text(jobs)
    to = ("--trace", str(trace), "--cluster", "1x2", "--policy", policies)
    assert main(("fleet", "simulate", *to, *options)) == 0
    return capsys.readouterr().out


def test_who_refuses_comes_last_and_misses_deadlines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(tmp_path, f"{_ALL},{_SOME},fifo", capsys, "--json")
    fifo, some, everybody = json.loads(found)["runs"]
    assert (fifo["policy"], some["policy"], everybody["policy"]) == ("fifo", _SOME, _ALL)
    assert [run["num_jobs"] for run in (fifo, some, everybody)] == [5, 1, 0]
    assert [run["num_refused"] for run in (fifo, some, everybody)] == [0, 4, 5]
    # The long one is late under each that runs it.
    assert some["num_missed_deadlines"] == 1 + 3
    assert everybody["num_missed_deadlines"] == 4
    counts = {"num_jobs": 0, "num_refused": 4, "num_missed_deadlines": 3}
    assert some["by"]["virtual_cluster"]["one"] == {**counts, "to_baseline": None}
    assert some["by"]["virtual_cluster"]["two"]["num_missed_deadlines"] == 1
    assert "mean_completion_s" not in everybody


def test_refusals_are_said_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "league.html"
    text = simulated(tmp_path, f"{_SOME},fifo", capsys, "--html", str(page))
    assert "5 jobs, 2 devices" in text
    times, devices, *_ = (line.split() for line in text.splitlines() if line.split()[:1] == ["policy"])
    assert (times[-1], devices[-1]) == ("missed", "refused")
    late, row, *_ = (line.split() for line in text.splitlines() if line.split()[:1] == ["fifo"])
    assert (late[-1], row[-1]) == ("1", "0")
    why = "asks for {} devices; guaranteed jobs of virtual cluster 'one' may have 0 together"
    assert (
        f"{_SOME} refused 4 of 5 jobs: "
        + "; ".join(f"{name} ({why.format(wide)})" for name, wide in (("a", 1), ("b", 1), ("c", 2)))
        + "; and 1 more"
        in text
    )
    assert "Whose jobs wait" in page.read_text()


def test_nothing_is_said_where_nobody_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = "name,arrival_s,num_devices,length_s\na,0,1,10\n"
    text = simulated(tmp_path, "fifo", capsys, jobs=jobs)
    assert "refused" not in text
    assert "missed" not in text

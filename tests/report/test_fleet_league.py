"""The league of policies of which some refuse jobs: that is seen, and no way to the top."""

from __future__ import annotations

import csv
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
    counts = {"num_jobs": 0, "num_refused": 4, "num_killed": 0, "num_missed_deadlines": 3}
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
    assert (late[-1], row[-1]) == ("2", "0")
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


_RECORDED = """name,arrival_s,num_devices,length_s,user,account,started_s
a,0,2,100,ann,x,0
b,10,2,50,bob,x,120
wide,12,200,10,ann,x,13
c,20,1,30,ann,y,200
nonsense,20,one,30,ann,y,200
"""


def test_counts_add_up_and_every_job_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that were read are jobs and rows left out; jobs are those that ended, were refused, or can never run."""
    table = tmp_path / "found.csv"
    policies = ("--restart", "5min", "--baseline", "as recorded", "--csv", str(table), "--json")
    found = json.loads(simulated(tmp_path, "las,srtf,fifo", capsys, *policies, jobs=_RECORDED))
    rows, baseline = found["rows"], found["baseline"]
    assert rows["num_rows"] == rows["num_jobs"] + sum(each["num_rows"] for each in rows["left_out"]) == 5
    assert [(each["policy"], "while they restart" in each["why"]) for each in found["cannot_run"]] == [
        ("las", True)
    ]
    assert baseline == "as recorded"
    runs = {run["policy"]: run for run in found["runs"]}
    assert list(runs) == ["fifo", "as recorded", "srtf"]
    for run in runs.values():
        assert run["num_jobs"] + run["num_refused"] + run["num_left_out"] == rows["num_jobs"]
        assert run["num_left_out"] == sum(each["num_jobs"] for each in run["left_out"]) == 1
        assert sorted(run["jobs"]["name"]) == ["a", "b", "c", "wide"]
        assert dict(zip(run["jobs"]["name"], run["jobs"]["state"], strict=True))["wide"] == "left out"
    assert runs["as recorded"]["mean_waiting_s"] == pytest.approx((0 + 110 + 180) / 3)
    assert runs["fifo"]["to_baseline"] == pytest.approx((100 + 140 + 160) / (100 + 160 + 210))
    assert runs["fifo"]["by"]["user"]["bob"]["to_baseline"] == pytest.approx(140 / 160)
    assert runs["fifo"]["by"]["account"]["y"]["mean_waiting_s"] == 130.0
    assert runs["fifo"]["by"]["devices"]["1"]["mean_slowdown"] == pytest.approx(160 / 30)
    assert runs["fifo"]["series"]["num_waiting"] == [0, 1, 2, 1, 0, 0]
    assert runs["srtf"]["useful"] < 0.25 < 0.95 < runs["srtf"]["busy"]
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    (line,) = (each for each in lines if (each["policy"], each["name"]) == ("fifo", "b"))
    assert (line["user"], line["account"], line["waiting_s"], line["num_starts"]) == ("bob", "x", "90.0", "1")
    series = (tmp_path / "found.series.csv").read_text().splitlines()
    assert series[0] == "policy,time_s,num_devices_in_use,num_waiting"
    assert "fifo,20.0,2,2" in series


def test_a_baseline_that_there_is_not_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for baseline, why in (
        ("as recorded", "the trace does not say when jobs started"),
        ("gandiva", "it was refused"),
    ):
        trace = tmp_path / "jobs.csv"
        trace.write_text(_JOBS)
        to = ("--trace", str(trace), "--cluster", "1x2", "--policy", "fifo,gandiva", "--placement", "packed")
        assert main(("fleet", "simulate", *to, "--baseline", baseline)) == 0
        assert f"nothing is compared with --baseline '{baseline}': {why}" in capsys.readouterr().err


def test_what_ran_on_another_cluster_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = "name,arrival_s,num_devices,length_s,user,started_s\na,0,2,100,u,0\nb,0,2,100,v,10\nc,0,1,20,v,\n"
    text = simulated(tmp_path, "fifo", capsys, "--baseline", "as recorded", jobs=jobs)
    assert "as recorded: jobs had up to 4 devices at once, and cluster 1x2 has 2" in text
    # Of v, b alone was recorded: it ended after 110 s, and under fifo after 200 s.
    assert ["fifo", "user", "v", "1", "1.82x", "110.0", "s", "/", "3.3", "min"] in [
        line.split()[:10] for line in text.splitlines()
    ]


def test_one_job_without_measure_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "{} {} 10 {} {} -1 -1 -1 -1 -1 1 1 1 1 1 1 -1 -1\n"
    jobs = [("long", 0, "1e20", 1), ("ok", 1, 600, 1), ("wide", 2, 600, 10**15), ("late", "1e13", 600, 1)]
    text = "".join(line.format(*job) for job in jobs)
    found = json.loads(simulated(tmp_path, "fifo,srtf,gandiva", capsys, "--json", jobs=text))
    assert not found["cannot_run"]
    for run in found["runs"]:
        state = dict(zip(run["jobs"]["name"], run["jobs"]["state"], strict=True))
        assert {name for name in state if state[name] == "ended"} == {"ok"}
        assert sorted(each["reason"] for each in run["left_out"]) == [
            "it asks for more devices of one type than there are", "it comes too late", "it takes too long",
        ]  # fmt: skip
    assert len(found["runs"]) == 4


def test_what_was_left_out_and_who_loses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "league.html"
    options = ("--restart", "5min", "--html", str(page))
    text = simulated(tmp_path, "fifo,srtf,las", capsys, *options, jobs=_RECORDED)
    for said in (
        "las refused: 2 jobs were started",
        "left out: 1 of 4 jobs",
        "1 job: it asks for more devices of one type than there are (wide)",
        "who loses most, fifo / policy",
    ):
        assert said in text
    row = next(line.split() for line in text.splitlines() if line.split()[:3] == ["srtf", "user", "bob"])
    assert row[3:5] == ["1", "2.71x"]
    assert "as recorded" in page.read_text()
    assert "more devices of one type" in page.read_text()


def test_status_tells_whether_any_policy_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(_RECORDED)
    to = ("fleet", "simulate", "--trace", str(trace), "--cluster", "1x2", "--policy")
    assert main((*to, "las", "--restart", "5min")) == 1
    said = capsys.readouterr()
    assert "las refused: 2 jobs were started" in said.out
    assert "\nerror: no policy could run: las refused: 2 jobs were started" in said.err
    assert main((*to, "las,fifo", "--baseline", "srtf")) == 2
    assert "take one of las, fifo, or 'as recorded'" in capsys.readouterr().err
    # The row that cannot be read comes first; without it, the job that never fits.
    assert main((*to, "las,fifo", "--strict")) == 2
    assert "line 6" in capsys.readouterr().err
    trace.write_text(_RECORDED.replace("one", "1"))
    assert main((*to, "las,fifo", "--strict")) == 2
    assert "job 'wide' asks for 200 devices" in capsys.readouterr().err

"""The page of a simulated workload: its figures are the run's numbers, and a browser shows them without errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from web_browser import errors_shown, rendered

from trainyard.cli.main import main
from trainyard.fleet.records import FleetRun
from trainyard.fleet.setting import setting_of
from trainyard.fleet.site import Site
from trainyard.fleet.workload.job import declared_job
from trainyard.report.fleet_page import fleet_page

_JOBS = """name,arrival_s,num_devices,length_s,virtual_cluster,deadline_s
wide,0,4,100,research,150
<b>,10,1,40,product,60
late,20,1,40,product,50
none,30,1,10,,
"""
_UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


def figures_of(page: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Figures with their notes, by heading."""
    sections = re.findall(r'<section><h2>(.*?)</h2>(?:<p class=note>(.*?)</p>)?<div id="(figure\d+)"', page)
    drawn = dict(re.findall(r"^draw\('(figure\d+)', (.*)\);$", page, re.MULTILINE))
    assert len(sections) == len(drawn)
    return {heading: (json.loads(drawn[name]), note) for heading, note, name in sections}


def unit_s(figure: dict[str, Any]) -> float:
    """Seconds of the unit in brackets at the end of the title of the axis."""
    return _UNITS[figure["layout"]["xaxis"]["title"]["text"].rpartition("(")[2].rstrip(")")]


def drawn_runs(*policies: str) -> tuple[list[FleetRun], dict[str, tuple[dict[str, Any], str]]]:
    rng = np.random.default_rng(7)
    arrivals_s, lengths_s = np.cumsum(rng.exponential(60.0, 80)), rng.lognormal(5.0, 1.0, 80)
    jobs = [
        declared_job(f"job{i}", float(arrivals_s[i]), int(rng.choice([1, 2, 4])), float(lengths_s[i]))
        for i in range(80)
    ]
    runs = [setting_of(policy).simulate(jobs, Site.uniform(1, 4), keep_spans=True) for policy in policies]
    return runs, figures_of(fleet_page("title", runs, {}))


def test_distributions_are_those_of_the_runs() -> None:
    runs, figures = drawn_runs("fifo", "srtf")
    for heading, values_of in (
        ("Completion times", lambda run, size_s: run.completion_s / size_s),
        ("Waiting times", lambda run, size_s: run.waiting_s / size_s),
        ("Finish-time fairness", lambda run, size_s: run.unfairness),
    ):
        figure, note = figures[heading]
        assert figure["layout"]["xaxis"]["type"] == "log"
        lines = {line["name"]: line for line in figure["data"]}
        assert lines.keys() == {"fifo", "srtf"}
        for run in runs:
            values = np.sort(values_of(run, 1.0 if heading == "Finish-time fairness" else unit_s(figure)))
            above = values > 0
            assert lines[run.policy]["x"] == pytest.approx(values[above], rel=1e-6)
            assert lines[run.policy]["y"] == pytest.approx(((np.arange(80) + 1) / 80)[above])
            if heading == "Waiting times":
                assert 0 < above.sum() < 80
                assert f"{run.policy} {100 * (~above).mean():.1f} %" in note


def test_devices_in_use_add_up_to_the_time_that_they_were_in_use() -> None:
    runs, figures = drawn_runs("fifo", "srtf")
    figure, _ = figures["Devices in use"]
    for run, line in zip(sorted(runs, key=lambda run: run.mean_completion_s), figure["data"], strict=True):
        times_s, counts = np.array(line["x"]) * unit_s(figure), np.array(line["y"])
        end_s = max(run.makespan_s for run in runs)
        assert np.sum(counts * np.diff(np.append(times_s, end_s))) == pytest.approx(
            run.busy_device_s, rel=1e-4
        )
        assert 0 <= counts.min() < counts.max() <= 4


def test_bars_are_the_stints_of_jobs_under_every_policy() -> None:
    runs, figures = drawn_runs("fifo", "las(quantum_s=300.0)")
    colors = []
    for run in runs:
        figure, note = figures[f"What ran where: {run.policy}"]
        (bars,) = figure["data"]
        size_s = unit_s(figure)
        drawn = sorted(
            zip(bars["y"], np.array(bars["base"]) * size_s, np.array(bars["x"]) * size_s, strict=True)
        )
        wanted = sorted(
            (device, span.start_s, span.end_s - span.start_s) for span in run.spans for device in span.devices
        )
        assert np.array(drawn) == pytest.approx(np.array(wanted), rel=1e-5, abs=1e-2)
        assert "moments" not in note
        assert figure["layout"]["xaxis"]["range"] == pytest.approx(
            [0, max(r.makespan_s for r in runs) / size_s], rel=1e-5
        )
        names = [text.split(",")[0] for text in bars["text"]]
        colors.append(dict(zip(names, bars["marker"]["color"], strict=True)))
        assert len(colors[-1]) == 80
    assert colors[0] == colors[1]


def test_a_chart_with_too_many_bars_is_thinned_over_all_of_the_time() -> None:
    jobs = [declared_job(f"job{i}", 0.0, 1, 9_000.0) for i in range(3)]
    jobs += [declared_job("long", 50_000.0, 2, 20_000.0)]
    run = setting_of("las(quantum_s=2.0)").simulate(jobs, Site.uniform(1, 2), keep_spans=True)
    assert sum(len(span.devices) for span in run.spans) > 6_000
    figure, note = figures_of(fleet_page("title", [run], {}))["What ran where: las(quantum_s=2.0)"]
    (bars,) = figure["data"]
    assert 1_000 < len(bars["x"]) <= 6_000
    assert "bars are too many: shown is what runs at 3000 moments" in note
    size_s = unit_s(figure)
    starts_s, lengths_s = np.array(bars["base"]) * size_s, np.array(bars["x"]) * size_s
    # The pause before the long job is one, and the long job is one bar on each device, to the end.
    idle = (starts_s + lengths_s > 15_000) & (starts_s < 49_900)
    assert not idle.any()
    last = starts_s > 49_900
    assert last.sum() == 2
    assert (starts_s + lengths_s)[last] == pytest.approx([70_000.0] * 2, rel=1e-3)
    assert lengths_s.sum() == pytest.approx(run.device_s.sum(), rel=1e-2)


def test_what_is_said_of_virtual_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.csv").write_text(_JOBS)
    page = tmp_path / "league.html"
    to = (
        "--trace",
        str(tmp_path / "jobs.csv"),
        "--cluster",
        "1x4",
        "--policy",
        "fifo,srtf",
        "--html",
        str(page),
    )
    assert main(("fleet", "simulate", *to, "--json")) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert (first["policy"], second["policy"]) == ("srtf", "fifo")
    product = second["by"]["virtual_cluster"]["product"]
    assert second["by"]["virtual_cluster"].keys() == {"product", "research"}
    # Both wait for the wide one until 100 s, and end at 140 s: by when they were due, from their arrival, was long past.
    assert (product["num_jobs"], product["mean_completion_s"], product["num_missed_deadlines"]) == (
        2,
        125.0,
        2,
    )
    assert (product["device_s"], product["mean_first_wait_s"]) == (80.0, 85.0)
    assert product["worst_unfairness"] > 1.0
    assert second["num_missed_deadlines"] == 2
    (bars,) = figures_of(page.read_text())["What ran where: fifo"][0]["data"]
    assert "job &lt;b&gt;, 1 devices, 100 s to 140 s" in bars["text"]
    assert not [text for text in bars["text"] if "<" in text]
    document = rendered(page.read_text(), tmp_path)
    assert errors_shown(document) == ""
    for said in ("Whose jobs wait", "research", "Waiting times", "Finish-time fairness", "League table"):
        assert said in document
    # One figure each, and in the two charts a bar for every device of every stint.
    assert document.count('class="main-svg"') >= 6
    stints = [len(re.findall(r'<g class="point">', part)) for part in document.split("<section>")]
    assert [count for count in stints if count] == [11, 7]

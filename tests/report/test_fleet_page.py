"""The page of a simulated workload: its figures are the run's numbers, and a browser shows them without errors."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from page_figures import Figures, figures_of
from web_browser import errors_shown, rendered

from trainyard.cli.main import main
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.report import fleet_gantt
from trainyard.report.fleet_page import fleet_page
from trainyard.report.fleet_stints import Stints

_JOBS = """name,arrival_s,num_devices,length_s,virtual_cluster,deadline_s
wide,0,4,100,research,150
<b>,10,1,40,product,60
late,20,1,40,product,50
none,30,1,10,,
"""
_UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


def unit_s(figure: dict[str, Any]) -> float:
    """Seconds of the unit in brackets at the end of the title of the axis."""
    return _UNITS[figure["layout"]["xaxis"]["title"]["text"].rpartition("(")[2].rstrip(")")]


def unzipped(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


def bars_of(figure: dict[str, Any]) -> list[tuple[str, int, int, float, float]]:
    """What the job is called, its first device, how many devices, start and end in seconds."""
    bars = figure["bars"]
    labels = json.loads(unzipped(bars["labels"]))
    job, first, count, _, start, length = np.frombuffer(unzipped(bars["columns"]), "<u4").reshape(6, -1)
    starts_s = np.cumsum(start) * bars["seconds_per_step"]
    ends_s = starts_s + length * bars["seconds_per_step"]
    names = [labels[number] for number in job]
    return list(zip(names, *map(np.ndarray.tolist, (first, count, starts_s, ends_s)), strict=True))


def drawn_runs(*policies: str) -> tuple[list[FleetRun], Figures]:
    rng = np.random.default_rng(7)
    arrivals_s, lengths_s = np.cumsum(rng.exponential(60.0, 80)), rng.lognormal(5.0, 1.0, 80)
    jobs = [
        declared_job(f"job{i}", float(arrivals_s[i]), int(rng.choice([1, 2, 4])), float(lengths_s[i]))
        for i in range(80)
    ]
    runs = [
        scheduler_of(policy).simulate(jobs, Cluster.uniform(1, 4), keep_spans=True) for policy in policies
    ]
    return runs, figures_of(fleet_page("title", runs, {}))


def test_distributions_are_those_of_the_runs() -> None:
    runs, figures = drawn_runs("fifo", "srtf")
    for heading, values_of in (
        ("Completion times", lambda run: run.completion_s),
        ("Waiting times", lambda run: run.waiting_s),
        ("Finish-time fairness", lambda run: run.unfairness),
    ):
        figure, _ = figures[heading]
        assert figure["layout"]["xaxis"]["type"] == "log"
        lines = {line["name"]: line for line in figure["data"]}
        assert lines.keys() == {"fifo", "srtf"}
        for run in runs:
            values = np.sort(values_of(run))
            above = values > 0
            assert lines[run.policy]["x"] == pytest.approx(values[above], rel=1e-6)
            assert lines[run.policy]["y"] == pytest.approx(((np.arange(80) + 1) / 80)[above])
    _, note = figures["Waiting times"]
    for run in runs:
        at_once = float((run.waiting_s <= 0).mean())
        assert 0 < at_once < 1
        assert f"{run.policy} {100 * at_once:.1f} %" in note


def test_lines_over_time_add_up_to_what_jobs_had_and_waited() -> None:
    runs, figures = drawn_runs("fifo", "srtf")
    for heading, total_of in (
        ("Devices in use", lambda run: run.busy_device_s),
        ("Jobs that wait", lambda run: run.waiting_s.sum()),
        (
            "Devices that waiting jobs ask for",
            lambda run: run.waiting_s @ [job.num_devices for job in run.jobs],
        ),
    ):
        figure, _ = figures[heading]
        for run, line in zip(
            sorted(runs, key=lambda run: run.mean_completion_s), figure["data"], strict=True
        ):
            times_s, counts = np.array(line["x"]) * unit_s(figure), np.array(line["y"])
            end_s = max(run.end_s for run in runs)
            assert np.sum(counts * np.diff(np.append(times_s, end_s))) == pytest.approx(
                total_of(run), rel=1e-4
            )
            assert 0 <= counts.min() < counts.max()


def test_bars_are_the_stints_of_jobs_under_every_policy() -> None:
    runs, figures = drawn_runs("fifo", "las(quantum_s=300.0)")
    for run in runs:
        figure, note = figures[f"Use by node, and what ran where: {run.policy}"]
        drawn = sorted(
            (device, start_s, end_s)
            for _, first, count, start_s, end_s in bars_of(figure)
            for device in range(first, first + count)
        )
        wanted = sorted((device, span.start_s, span.end_s) for span in run.spans for device in span.devices)
        assert np.array(drawn) == pytest.approx(np.array(wanted), rel=1e-5, abs=1e-2)
        assert len({name for name, *_ in bars_of(figure)}) == 80
        assert note == ""
        # The density is the same devices' time.
        shares = np.frombuffer(base64.b64decode(figure["data"][0]["z"]["bdata"]), np.uint8) / 100
        part_s = max(run.end_s for run in runs) / (len(shares) / 4)
        assert shares.sum() * part_s == pytest.approx(run.device_s.sum(), rel=2e-3)


def test_a_device_that_jobs_share_is_in_use_once() -> None:
    shared = Stints(
        *np.array([[0, 1, 2], [0, 1, 1], [2, 1, 1], [2, 1, 1]]), *np.array([[0.0, 5, 20], [10.0, 15, 30]])
    )
    edges_s = np.array([0.0, 10.0, 20.0, 30.0])
    assert shared.busy(edges_s, np.array([0, 1])).tolist() == [[1.0, 0.0, 0.0], [1.0, 0.5, 1.0]]


def test_of_too_many_bars_the_shortest_are_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_gantt, "_MOST_BARS", 200)
    runs, figures = drawn_runs("fifo", "las(quantum_s=300.0)")
    figure, note = figures["Use by node, and what ran where: las(quantum_s=300.0)"]
    lasts_s = sorted(end_s - start_s for *_, start_s, end_s in bars_of(figure))
    # What the other policy does not need of its half is for this one.
    assert len(lasts_s) == max(100, 200 - len(bars_of(figures["Use by node, and what ran where: fifo"][0])))
    assert re.fullmatch(
        r"\d+ bars are too many for a page: the \d+ shortest, of up to .* are left out; .*\.", note
    )
    every_s = sorted(span.end_s - span.start_s for span in runs[1].spans)
    assert lasts_s[-1] == pytest.approx(every_s[-1], rel=1e-4)


def test_dates_are_those_of_the_zone() -> None:
    runs, _ = drawn_runs("fifo")
    zero = datetime(2025, 3, 3, 6, tzinfo=ZoneInfo("America/New_York"))
    figures = figures_of(fleet_page("title", runs, {}, zero=zero))
    axis = figures["Jobs that wait"][0]["layout"]["xaxis"]
    assert (axis["type"], axis["title"]["text"]) == ("date", "date (UTC-05:00)")
    # Plotly shows milliseconds since 1970 as if they were in UTC.
    assert axis["range"][0] == datetime(2025, 3, 3, 6, tzinfo=ZoneInfo("UTC")).timestamp() * 1e3


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
    bars = bars_of(figures_of(page.read_text())["Use by node, and what ran where: fifo"][0])
    assert ("job &lt;b&gt;", 0, 1, 100.0, 140.0) in [(*bar[:3], *np.round(bar[3:], 3)) for bar in bars]
    text = page.read_text()
    for said in ("Whose jobs wait", "research", "Waiting by virtual cluster", "Waiting by devices"):
        assert said in text
    assert re.findall("<h2>(.*?)</h2>", text)[:2] == ["League table", "Devices"]


_PROBE = """<script>
async function probe() {
  const found = {}, width = document.documentElement.clientWidth;
  found.wide = [...document.querySelectorAll("body *")].filter(each => each.getBoundingClientRect().right > width
    && !each.closest(".scroll > *, svg")).map(each => each.outerHTML.slice(0, 80));
  found.errors = document.getElementById("errors").textContent;
  found.dates = document.querySelector("#figure0 .xaxislayer-above").textContent;
  const box = query => document.querySelector("#figure0 " + query).getBoundingClientRect();
  found.room = box(".nsewdrag").top - box(".legend").bottom;
  const chart = [...document.querySelectorAll(".figure")].find(each => each.dataset.bars !== undefined);
  const count = () => [chart.dataset.bars, chart.querySelectorAll(".barlayer .point").length,
    chart.querySelectorAll(".heatmaplayer image").length].map(Number);
  found.before = count();
  await Plotly.relayout(chart, {"xaxis.range": ["2025-03-03 06:10", "2025-03-03 06:20"]});
  await new Promise(resolve => setTimeout(resolve, 500));
  found.zoomed = count();
  return JSON.stringify(found);
}
setTimeout(async () => {
  parent.document.getElementById("errors").textContent = await probe().catch(problem => JSON.stringify(problem.stack));
}, 3000);
</script>"""


def test_on_a_phone_it_can_be_read_and_who_zooms_in_sees_jobs(tmp_path: Path) -> None:
    runs, _ = drawn_runs("fifo", "srtf")
    page = fleet_page("t" * 80, runs, {}, baseline=runs[0], zero=datetime(2025, 3, 3, 6, tzinfo=UTC))
    assert "MOST_BARS = 2500" in page
    page = page[: page.rindex("</body>")].replace("MOST_BARS = 2500", "MOST_BARS = 50") + _PROBE
    frame = f'<div id="errors"></div><iframe style="width: 400px; height: 4000px" srcdoc="{html.escape(page)}"></iframe>'
    found = json.loads(html.unescape(errors_shown(rendered(frame, tmp_path))))
    assert (found["wide"], found["errors"]) == ([], "")
    assert "Mar 3, 2025" in found["dates"]
    assert found["room"] >= 0
    assert found["before"] == [0, 0, 1]
    first = next(run for run in runs if run.policy == "srtf")
    in_sight = [span for span in first.spans if span.start_s < 1_200 and span.end_s > 600]
    bars, drawn, densities = found["zoomed"]
    assert len(in_sight) <= bars == drawn <= 4 * len(in_sight)
    assert densities == 0


def test_many_policies_have_a_small_plot_each_of_one_scale() -> None:
    for policies, num_plots in ((("fifo", "srtf"), 1), (("fifo", "srtf", "las"), 3)):
        figure, _ = drawn_runs(*policies)[1]["Devices in use"]
        assert len({line.get("yaxis", "y") for line in figure["data"]}) == num_plots
        scales = [axis["range"] for name, axis in figure["layout"].items() if name.startswith("yaxis")]
        assert len(scales) == num_plots
        assert all(scale == [0, pytest.approx(4.2)] for scale in scales)
        names = [each["text"] for each in figure["layout"].get("annotations", ())]
        assert len(names) == (num_plots if num_plots > 1 else 0)

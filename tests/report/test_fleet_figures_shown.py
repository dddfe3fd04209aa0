"""Figures, tables of many workloads and tables of real runs show each number of many jobs as what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distinct_results import Distinct
from made_fleet_runs import jct_s, made_runs, mean
from page_figures import Figures, figures_of
from shown_cells import Row, Shown, check_cell, check_table, number, printed, seconds, share, tables_of

from trainyard.cli.fleet.run import _page, outcome_of
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import CannotRun, Ignored
from trainyard.fleet.span import Span
from trainyard.fleet.study import Interval, Standing, Study
from trainyard.hardware.parse import parse_cluster
from trainyard.report.fleet_groups import parts_of
from trainyard.report.fleet_league import run_document
from trainyard.report.fleet_page import fleet_page
from trainyard.report.fleet_study import standing_document, study_page, study_tables

_UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


@pytest.fixture(scope="module")
def runs() -> tuple[FleetRun, FleetRun]:
    return made_runs()


@pytest.fixture(scope="module")
def figures(runs: tuple[FleetRun, FleetRun]) -> Figures:
    return figures_of(fleet_page("title", runs, {}, baseline=runs[0], parts=parts_of(runs, runs[0])))


def unit_s(figure: Mapping[str, Any]) -> float:
    """Seconds of the unit in brackets at the end of the title of the axis."""
    return _UNITS[figure["layout"]["xaxis"]["title"]["text"].rpartition("(")[2].rstrip(")")]


@pytest.mark.parametrize(
    ("heading", "column", "what"),
    [
        ("Jobs that wait", "num_waiting", "jobs without devices"),
        ("Devices in use", "num_devices_in_use", "devices"),
    ],
)
def test_lines_over_time_are_of_what_their_figure_is_called(
    runs: tuple[FleetRun, FleetRun], figures: Figures, heading: str, column: str, what: str
) -> None:
    figure, _ = figures[heading]
    assert figure["layout"]["yaxis"]["title"]["text"] == what
    assert [line["name"] for line in figure["data"]] == ["one", "two"]
    for run, line in zip(runs, figure["data"], strict=True):
        times_s = np.array(line["x"]) * unit_s(figure)
        # In the middle of each of the three times between changes.
        shown = [line["y"][np.searchsorted(times_s, at_s) - 1] for at_s in (500.0, 3_000.0, 9_000.0)]
        assert shown == pytest.approx(list(getattr(run.series, column)))


def test_bars_are_means_and_points_percentiles_of_each_group(
    runs: tuple[FleetRun, FleetRun], figures: Figures
) -> None:
    figure, _ = figures["Waiting by user"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["ann", "bob"]
    waits_s = [
        [
            [s for s, job in zip(run.waiting_s, run.jobs, strict=True) if job.user == user]
            for user in ("ann", "bob")
        ]
        for run in runs
    ]
    bars, points = figure["data"][:2], figure["data"][2:]
    for own, bar, point in zip(waits_s, bars, points, strict=True):
        assert np.array(bar["x"]) * unit_s(figure) == pytest.approx([mean(each) for each in own], rel=1e-6)
        most_s = [np.percentile(each, 90) for each in own]
        assert np.array(point["x"]) * unit_s(figure) == pytest.approx(most_s, rel=1e-6)
    figure, _ = figures["Who waits longer than under one"]
    extra_s = {f"user {user}": mean(b) - mean(a) for user, a, b in zip(("ann", "bob"), *waits_s, strict=True)}
    for size in (1, 2):
        one_s, two_s = (
            mean([s for s, job in zip(run.waiting_s, run.jobs, strict=True) if job.num_devices == size])
            for run in runs
        )
        extra_s[f"devices {size}"] = two_s - one_s
    longer = sorted((name for name in extra_s if extra_s[name] > 0), key=lambda name: -extra_s[name])
    assert figure["layout"]["yaxis"]["ticktext"] == [f"{name} (2)" for name in longer]
    (bars,) = figure["data"]
    assert bars["name"] == "two"
    assert np.array(bars["x"]) * unit_s(figure) == pytest.approx([extra_s[name] for name in longer], rel=1e-6)


def test_use_is_by_node_and_by_type(runs: tuple[FleetRun, FleetRun]) -> None:
    """Two devices of the first node are in use for 1,000 s, and one of three of the second for 500 s."""
    spans = Span("a", 100.0, 1_100.0, (0, 1)), Span("b", 200.0, 700.0, (3,))
    run = replace(runs[0], cluster=parse_cluster("1x2xV100+1x3xK80"), spans=spans)
    figures = figures_of(fleet_page("title", (run,), {}))
    makespan_s = max(run.finish_s) - min(run.arrival_s)
    (bars,) = figures["Use by node"][0]["data"]
    assert (bars["x"], bars["text"]) == ([0, 1], ["node 0 (V100)", "node 1 (K80)"])
    assert bars["y"] == pytest.approx(
        [100 * 2_000 / (2 * makespan_s), 100 * 500 / (3 * makespan_s)], rel=1e-5
    )
    for name, device_s in (("V100", 2_000.0), ("K80", 500.0)):
        (line,) = figures[f"Devices in use, {name}"][0]["data"]
        assert sum(line["y"]) * max(run.finish_s) / len(line["y"]) == pytest.approx(device_s, rel=1e-4)


def test_what_was_predicted_stands_before_what_was_measured(runs: tuple[FleetRun, FleetRun]) -> None:
    predicted, measured = runs
    outcome = outcome_of(predicted=predicted, measured=measured, title="title", facts={"trace": "t.csv"})
    rows: list[Row] = []
    documents = []
    for place, name in enumerate(measured.names):
        before = predicted.names.index(name)
        jct = float(jct_s(predicted)[before]), float(jct_s(measured)[place])
        wait = tuple(
            float(run.first_start_s[i] - run.arrival_s[i])
            for run, i in ((predicted, before), (measured, place))
        )
        starts = int(predicted.num_starts[before]), int(measured.num_starts[place])
        places = before + 1, place + 1
        rows.append(measured_row(name, jct, wait, starts, f"{places[0]} / {places[1]}"))
        documents.append(
            {
                "job": name,
                **{
                    f"{how}_{column}": both[i]
                    for column, both in (
                        ("jct_s", jct),
                        ("first_wait_s", wait),
                        ("num_starts", starts),
                        ("place", places),
                    )
                    for i, how in enumerate(("predicted", "measured"))
                },
            }
        )
    means = [
        (mean(one), mean(two))
        for one, two in (
            (jct_s(predicted), jct_s(measured)),
            (predicted.first_start_s - predicted.arrival_s, measured.first_start_s - measured.arrival_s),
            (predicted.num_starts, measured.num_starts),
        )
    ]
    rows.append(measured_row("mean", *means, ""))
    (table,) = outcome.body
    check_table(printed(table), rows)  # type: ignore[arg-type]
    assert outcome.document["jobs"][:4] == documents
    assert outcome.document["jobs"][4]["measured_jct_s"] == pytest.approx(means[0][1])
    assert outcome.document["trace"] == "t.csv"
    assert outcome.document["predicted"] == run_document(predicted)
    assert outcome.document["measured"] == run_document(measured)
    columns, rows_of_page = tables_of(_page("title", predicted, measured, {}))["League table"]
    for row, name, run in zip(rows_of_page, ("predicted", "measured"), runs, strict=True):
        assert (columns[1], row[0]) == ("mean JCT", f"two, {name}")
        check_cell(row[1], seconds(mean(jct_s(run))))


def measured_row(name: str, jct: Any, wait: Any, starts: Any, place: str) -> Row:
    return [
        ("job", name),
        ("JCT", (seconds(jct[0]), " / ", seconds(jct[1]))),
        ("off by", share(1 - jct[0] / jct[1])),
        ("first wait", (seconds(wait[0]), " / ", seconds(wait[1]))),
        ("starts", (number(starts[0]), " / ", number(starts[1]))),
        ("place", place),
    ]


def standing(make: Distinct, policy: str) -> Standing:
    group = {
        name: make.of(Interval)
        for name in (
            "completion_s",
            "to_baseline",
            "p99_s",
            "waiting_s",
            "slowdown",
            "unfairness",
            "num_missed",
        )
    }
    return make.of(Standing, policy=policy, placement=f"{policy}'s rule", groups={"user": {"ann": group}})


@pytest.fixture(scope="module")
def study() -> Study:
    make = Distinct(41.0)  # seconds, minutes and hours
    standings = standing(make, "one"), standing(make, "two")
    return Study(standings, "two", (CannotRun("three", "it needs speeds"),), (Ignored(("one",), ("qos",)),))


def with_units(shown: Shown) -> Shown:
    """The unit of an interval stands once, behind it; here it stands behind both of its numbers."""
    columns, rows = shown
    pattern = re.compile(r"([\d.,]+) ± ([\d.,]+) (\w+)")
    return columns, tuple(tuple(pattern.sub(r"\1 \3 ± \2 \3", cell) for cell in row) for row in rows)


def time(of: Interval) -> Any:
    return seconds(of.mean), " ± ", seconds(of.half_width)


def plain(of: Interval) -> Any:
    return number(of.mean), " ± ", number(of.half_width)


def test_tables_of_many_workloads_show_each_interval_in_its_column(study: Study) -> None:
    page = tables_of(study_page("title", study))
    terminal = [printed(each) for each in study_tables("title", study) if not isinstance(each, str)]
    assert study_tables("title", study)[3:] == ("three refused: it needs speeds", "one ignores the jobs' qos")
    main: list[Row] = [
        [
            ("policy", each.policy),
            ("mean JCT", time(each.completion_s)),
            ("to best", "best" if each.policy == "one" else plain(each.to_best)),
            ("to two", "" if each.policy == "two" else plain(each.to_baseline)),
            ("p99", time(each.p99_s)),
            ("wronged", plain(each.wronged)),
            ("refused", plain(each.num_refused)),
            ("left out", plain(each.num_left_out)),
        ]
        for each in study.standings
    ]
    more: list[Row] = [
        [
            ("policy", each.policy),
            ("median JCT", time(each.median_s)),
            ("waiting", time(each.waiting_s)),
            ("first wait", time(each.first_wait_s)),
            ("slowdown", plain(each.slowdown)),
            ("unfair", plain(each.unfairness)),
            ("missed", plain(each.num_missed)),
        ]
        for each in study.standings
    ]
    devices: list[Row] = [
        [
            ("policy", each.policy),
            ("placement", f"{each.policy}'s rule"),
            ("makespan", time(each.makespan_s)),
            ("busy", plain(each.busy)),
            ("useful", plain(each.useful)),
        ]
        for each in study.standings
    ]
    for shown in ((page["Standings"], page["More figures"], page["Devices"]), terminal):
        (columns, rows), *others = map(with_units, shown)
        assert rows[2] == ("three", "refused", *[""] * 6)
        check_table((columns, rows[:2]), main)
        for each, wanted in zip(others, (more, devices), strict=True):
            check_table(each, wanted)
    check_table(
        with_units(page["Whose jobs wait, beside two"]), [group_row(each) for each in study.standings]
    )


def group_row(each: Standing) -> Row:
    own = each.groups["user"]["ann"]
    return [
        ("by", "user"),
        ("group", "ann"),
        ("policy", each.policy),
        ("mean JCT", time(own["completion_s"])),
        ("to baseline", plain(own["to_baseline"])),
        ("p99", time(own["p99_s"])),
        ("waiting", time(own["waiting_s"])),
        ("slowdown", plain(own["slowdown"])),
        ("unfair", plain(own["unfairness"])),
        ("missed deadlines", plain(own["num_missed"])),
    ]


def test_documents_and_bars_of_many_workloads_have_each_interval(study: Study) -> None:
    one, two = study.standings
    found = standing_document(two)
    assert (found.pop("policy"), found.pop("placement")) == ("two", "two's rule")
    by = found.pop("by")
    assert by == {"user": {"ann": {name: vars(each) for name, each in two.groups["user"]["ann"].items()}}}
    intervals = {name: each for name, each in vars(two).items() if isinstance(each, Interval)}
    assert len(intervals) == 16
    assert found == {
        name: {"mean": each.mean, "half_width": each.half_width} for name, each in intervals.items()
    }
    (bars,) = figures_of(study_page("title", study))["Mean completion time"][0]["data"]
    assert bars["x"] == ["one", "two"]
    assert bars["y"] == pytest.approx([one.completion_s.mean / 3600, two.completion_s.mean / 3600])
    half_widths = [one.completion_s.half_width / 3600, two.completion_s.half_width / 3600]
    assert bars["error_y"]["array"] == pytest.approx(half_widths)

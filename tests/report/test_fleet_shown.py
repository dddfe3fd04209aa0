"""Each number of a run of many jobs stands in its own column, field and unit: in tables, on pages, as JSON and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_fleet_runs import NAMES, jct_s, made_runs, mean
from shown_cells import Row, check_table, number, printed, ratio, seconds, share, tables_of

from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import CannotRun
from trainyard.report.fleet_groups import losers_table, parts_of
from trainyard.report.fleet_jobs import series_path, write_jobs, write_series
from trainyard.report.fleet_league import fleet_tables, run_document
from trainyard.report.fleet_page import fleet_page

_INF = float("inf")


@pytest.fixture(scope="module")
def runs() -> tuple[FleetRun, FleetRun]:
    return made_runs()


PLAIN = {"what_if": "", "num_devices": 26, "num_killed": 0, "used_cost": None, "cluster_cost": None}


def league_row(run: FleetRun, best: FleetRun, baseline: FleetRun) -> Row:
    times_s = jct_s(run)
    late = sum(end_s > each.deadline_s for end_s, each in zip(run.finish_s, run.jobs, strict=True))
    return [
        ("policy", run.policy),
        ("mean JCT", seconds(mean(times_s))),
        ("to best", ratio(mean(times_s) / mean(jct_s(best)))),
        ("to two", ratio(mean(times_s) / mean(jct_s(baseline)))),
        ("median", seconds(float(np.median(times_s)))),
        ("p99", seconds(float(np.percentile(times_s, 99)))),
        ("waiting", seconds(mean(run.waiting_s))),
        ("first wait", seconds(mean(run.first_start_s - run.arrival_s))),
        ("slowdown", ratio(mean(times_s / run.alone_s))),
        ("unfair", ratio(max(times_s / run.fair_s))),
        ("missed", number(late + 1)),
    ]


def busy_device_s(run: FleetRun) -> float:
    """From the first arrival on there are three numbers of devices in use, the last up to the end."""
    first, second, third = run.series.num_devices_in_use
    return float(
        first * (1_000.0 - min(run.arrival_s)) + second * 4_000.0 + third * (max(run.finish_s) - 5_000.0)
    )


def devices_row(run: FleetRun) -> Row:
    makespan_s = max(run.finish_s) - min(run.arrival_s)
    busy = busy_device_s(run) / (26 * makespan_s)
    return [
        ("policy", run.policy),
        ("placement", f"{run.policy}'s rule"),
        ("queues", f"{run.policy}'s queues"),
        ("makespan", seconds(makespan_s)),
        ("busy", share(busy)),
        ("useful", share(busy * (1 - sum(run.lost_device_s) / sum(run.device_s)))),
        ("preempted", number(sum(run.num_preempted))),
        ("moved", number(sum(run.num_starts) - 4 - sum(run.num_preempted))),
        ("failures", number(run.num_failures)),
        ("refused", number(1)),
        ("left out", number(1)),
    ]


def test_tables_show_each_number_in_its_column(runs: tuple[FleetRun, FleetRun]) -> None:
    one, two = runs
    cannot = (CannotRun("three", "it needs speeds"),)
    page = tables_of(fleet_page("title", (two, one), {}, baseline=two, cannot=cannot))
    terminal = [printed(each) for each in fleet_tables("title", (two, one), two, cannot)]
    for times, devices in ((page["League table"], page["Devices"]), terminal):
        columns, rows = times
        assert rows[2] == ("three", "refused", *[""] * 9)
        check_table((columns, rows[:2]), [league_row(run, one, two) for run in runs])
        check_table(devices, [devices_row(run) for run in runs])


def group_rows(run: FleetRun, base: FleetRun, by: str, names: Sequence[str]) -> list[Row]:
    """What is said of each group of jobs of a run; two jobs are of each."""
    rows: list[Row] = []
    for group in names:
        own, theirs = (
            [i for i, each in enumerate(found.jobs) if group in (each.user, str(each.num_devices))]
            for found in (run, base)
        )
        times_s = jct_s(run)[own]
        late = sum(run.finish_s[i] > run.jobs[i].deadline_s for i in own)
        num_refused = int(group in ("bob", "2"))
        rows.append(
            [
                ("by", by),
                ("group", group),
                ("policy", run.policy),
                ("jobs", number(2)),
                ("mean JCT", seconds(mean(times_s))),
                ("to baseline", ratio(sum(times_s) / sum(jct_s(base)[theirs]))),
                ("p99", seconds(float(np.percentile(times_s, 99)))),
                ("waiting", seconds(mean(run.waiting_s[own]))),
                ("slowdown", ratio(mean(times_s / run.alone_s[own]))),
                ("unfair", ratio(max(times_s / run.fair_s[own]))),
                ("missed", number(late + num_refused)),
                ("refused", number(num_refused)),
            ]
        )
    return rows


def test_groups_and_losers_have_the_numbers_of_their_jobs(runs: tuple[FleetRun, FleetRun]) -> None:
    one, two = runs
    parts = parts_of(runs, one)
    tables = tables_of(fleet_page("title", runs, {}, baseline=one, parts=parts))
    wanted = [
        row
        for by, names in (("user", ("ann", "bob")), ("devices", ("1", "2")))
        for pair in zip(group_rows(one, one, by, names), group_rows(two, one, by, names), strict=True)
        for row in pair
    ]
    check_table(tables["Whose jobs wait, beside one"], wanted)
    lost = []
    for by, names in (("user", ("ann", "bob")), ("devices", ("1", "2"))):
        ours, theirs = group_rows(two, one, by, names), group_rows(one, one, by, names)
        for name, own, base in zip(names, map(dict, ours), map(dict, theirs), strict=True):
            both = {
                column: (base[column], " / ", own[column]) for column in ("mean JCT", "waiting", "slowdown")
            }
            row = [
                ("policy", "two"),
                ("whose jobs", f"{by} {name}"),
                ("jobs", number(2)),
                ("JCT", own["to baseline"]),
            ]
            lost.append([*row, *both.items()])
    lost.sort(key=lambda row: -row[3][1].value)
    table = losers_table(parts, one)
    assert table is not None
    for shown in (tables["Who loses most, one / policy"], printed(table)):
        check_table(shown, lost)


def test_jobs_that_wait_longer_have_their_own_numbers(runs: tuple[FleetRun, FleetRun]) -> None:
    one, two = runs
    rows: list[Row] = []
    for name in NAMES:
        own, base = two.names.index(name), one.names.index(name)
        extra_s = two.waiting_s[own] - one.waiting_s[base]
        if extra_s > 0:
            jct = seconds(jct_s(one)[base]), " / ", seconds(jct_s(two)[own])
            slow = (
                ratio(jct_s(one)[base] / one.alone_s[base]), " / ", ratio(jct_s(two)[own] / two.alone_s[own])
            )  # fmt: skip
            rows.append(
                [
                    ("policy", "two"),
                    ("job", name),
                    ("user", two.jobs[own].user),
                    ("devices", number(two.jobs[own].num_devices)),
                    ("waits longer", seconds(extra_s)),
                    ("waiting", (seconds(one.waiting_s[base]), " / ", seconds(two.waiting_s[own]))),
                    ("JCT", jct),
                    ("slowdown", slow),
                ]
            )
    rows.sort(key=lambda row: -row[4][1].value)  # type: ignore[union-attr]
    assert len(rows) > 1
    tables = tables_of(fleet_page("title", runs, {}, baseline=one))
    check_table(tables["Jobs that wait longest beside one, one / policy"], rows)


def columns_of(run: FleetRun) -> dict[str, list[Any]]:
    """Every job in columns; the refused one and the one that was left out come last."""
    known = {
        "arrival_s": run.arrival_s,
        "first_start_s": run.first_start_s,
        "finish_s": run.finish_s,
        "completion_s": run.finish_s - run.arrival_s,
        "waiting_s": run.waiting_s,
        "first_wait_s": run.first_start_s - run.arrival_s,
        "lost_s": run.lost_s,
        "work_s": run.finish_s - run.arrival_s - run.waiting_s - run.lost_s,
        "alone_s": run.alone_s,
        "slowdown": (run.finish_s - run.arrival_s) / run.alone_s,
        "unfairness": (run.finish_s - run.arrival_s) / run.fair_s,
        "device_s": run.device_s,
        "num_starts": run.num_starts,
        "num_preempted": run.num_preempted,
    }
    jobs = (*run.jobs, *run.refused_jobs, run.left_out[0].job)
    return {
        "name": [each.name for each in jobs],
        "state": [*["ended"] * 4, "refused", "left out"],
        "user": [each.user for each in jobs],
        **{name: [""] * 6 for name in ("account", "virtual_cluster", "qos")},
        "num_devices": [each.num_devices for each in jobs],
        "device_types": [""] * 6,
        "deadline_s": [None if each.deadline_s == _INF else each.deadline_s for each in jobs],
        **{name: [*values.tolist(), None, None] for name, values in known.items()},
        "why": [*[""] * 4, "it is late", "it is too wide"],
    }


def test_a_csv_has_each_number_in_its_column(runs: tuple[FleetRun, FleetRun], tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    write_jobs(path, runs)
    write_series(series_path(path), runs)
    with path.open() as file:
        columns, *rows = csv.reader(file)
    assert columns == ["policy", *columns_of(runs[0])]
    wanted = [(run.policy, *row) for run in runs for row in zip(*columns_of(run).values(), strict=True)]
    assert rows == [["" if cell is None else str(cell) for cell in row] for row in wanted]
    assert (tmp_path / "jobs.series.csv").read_text().splitlines() == [
        "policy,time_s,num_devices_in_use,num_waiting",
        "one,0.0,11,3", "one,1000.0,7,2", "one,5000.0,19,1", "two,0.0,17,4", "two,1000.0,11,3", "two,5000.0,30,1",
    ]  # fmt: skip


def test_a_document_has_each_number_in_its_field(runs: tuple[FleetRun, FleetRun]) -> None:
    one, two = runs
    found = run_document(two, one, parts_of(runs, one))
    by = found.pop("by")
    times = {
        "completion": jct_s(two),
        "waiting": two.waiting_s,
        "first_wait": two.first_start_s - two.arrival_s,
    }
    distributions = {
        f"{how}_{name}_s": pytest.approx(value)
        for name, values in times.items()
        for how, value in (
            ("mean", mean(values)),
            ("median", float(np.median(values))),
            ("p99", float(np.percentile(values, 99))),
        )
    }
    row = dict(league_row(two, one, one))
    devices = dict(devices_row(two))
    assert found == distributions | PLAIN | {
        "policy": "two",
        "placement": "two's rule",
        "queues": "two's queues",
        "num_jobs": 4,
        "num_refused": 1,
        "num_left_out": 1,
        "num_missed_deadlines": row["missed"].value,  # type: ignore[union-attr]
        "mean_slowdown": pytest.approx(row["slowdown"].value),  # type: ignore[union-attr]
        "worst_unfairness": pytest.approx(row["unfair"].value),  # type: ignore[union-attr]
        "device_s": pytest.approx(sum(two.device_s)),
        "lost_device_s": pytest.approx(sum(two.lost_device_s)),
        "to_baseline": pytest.approx(sum(jct_s(two)) / sum(jct_s(one))),
        "makespan_s": pytest.approx(max(two.finish_s) - min(two.arrival_s)),
        "busy": pytest.approx(devices["busy"].value),  # type: ignore[union-attr]
        "useful": pytest.approx(devices["useful"].value),  # type: ignore[union-attr]
        "busy_device_s": pytest.approx(busy_device_s(two)),
        "num_preemptions": sum(two.num_preempted),
        "num_failures": 57,
        "num_decisions": 117,
        "refused": [{"job": "late", "reason": "it is late"}],
        "left_out": [
            {"reason": "it is too wide", "num_jobs": 1, "first": ["wide"], "example": "wide asks for 90"}
        ],
        "jobs": columns_of(two),
        "series": {name: list(values) for name, values in two.series._asdict().items()},
    }
    assert {name: list(groups) for name, groups in by.items()} == {
        "user": ["ann", "bob"],
        "devices": ["1", "2"],
    }
    ann = dict(group_rows(two, one, "user", ("ann",))[0])
    for column, field in (
        ("mean JCT", "mean_completion_s"),
        ("waiting", "mean_waiting_s"),
        ("to baseline", "to_baseline"),
    ):
        assert by["user"]["ann"][field] == pytest.approx(ann[column].value), field  # type: ignore[union-attr]

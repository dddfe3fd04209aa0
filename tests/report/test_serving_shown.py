"""Each number of served requests stands in its own column, field and unit: in tables, on pages, as JSON and as CSV."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distinct_results import (
    Cell,
    Distinct,
    Row,
    Shown,
    check_table,
    number,
    printed,
    ratio,
    seconds,
    share,
    tables_of,
)
from page_figures import figures_of

from trainyard.report.serve_league import run_document, serve_tables
from trainyard.report.serve_page import serve_page
from trainyard.report.serve_requests import followed_document, write_requests
from trainyard.report.simulated_and_served import errors_table
from trainyard.serve.catalog import parse_policies
from trainyard.serve.compare import CannotRun, PolicyRun
from trainyard.serve.load_over_time import Load
from trainyard.serve.request_timeline import RequestTimeline, Span
from trainyard.serve.requests.request import Request
from trainyard.serve.results import Refused, Results, Served
from trainyard.serve.run.simulated_and_served import SimulatedAndServed
from trainyard.serve.step_time import LinearStepTime
from trainyard.serve.summary import Summary

# Of each request: client, arrival, time to its admission, TTFT, TPOT, tokens, preemptions and prefix hits.
_SERVED = (
    ("ann", 0.5, 0.11, 0.32, 0.021, 31, 2, 16),
    ("bob", 0.9, 0.27, 0.71, 0.034, 17, 0, 48),
    ("ann", 1.7, 0.43, 0.97, 0.055, 43, 1, 32),
    ("bob", 2.2, 0.05, 0.13, 0.089, 1, 3, 64),
    ("ann", 3.1, 0.66, 1.45, 0.013, 59, 5, 80),
)
_OBJECTIVE_S = 1.2  # of the end-to-end time


def results(slower: float) -> Results:
    """Requests of two clients, one of which is refused."""
    found = Results(num_steps=97, busy_s=3.7 * slower, num_cut=6)
    for i, (client, arrival_s, wait_s, ttft_s, tpot_s, tokens, preempted, cached) in enumerate(_SERVED):
        asked = Request(f"r{i}", arrival_s, 100 + 7 * i, 500, client=client, e2e_s=_OBJECTIVE_S)
        first_s = arrival_s + ttft_s * slower
        last_s = first_s + tpot_s * (tokens - 1)
        found.served.append(
            Served(asked, arrival_s, tokens, arrival_s + wait_s, first_s, last_s, preempted, cached)
        )
    found.refused.append(Refused(Request("r9", 4.4, 999, 500, client="ann", e2e_s=_OBJECTIVE_S), "too long"))
    return found


@pytest.fixture(scope="module")
def runs() -> tuple[PolicyRun, PolicyRun]:
    """The first is better, since its mean is shorter."""
    make, policy = Distinct(), parse_policies("vllm")[0][1]
    first, second = (
        PolicyRun(
            name, policy, results(slower), make.of(Summary, num_served=5), make.of(Load, **_load(slower))
        )
        for name, slower in (("one", 1.0), ("two", 1.3))
    )
    return first, second


def _load(slower: float) -> dict[str, Any]:
    """What is recorded over time."""
    values = slower * np.array([[3.0, 5.0, 2.0], [7.0, 11.0, 6.0], [0.13, 0.29, 0.17]])
    return dict(zip(("num_waiting", "num_running", "cache"), values, strict=True)) | {"part_s": 0.7}


def latency(run: PolicyRun, best: PolicyRun, baseline: PolicyRun, *, in_full: bool) -> Row:
    """What the league says of a run; a page has room for the measure beside each percentile."""
    ttft, tpot, e2e = run.summary.ttft, run.summary.tpot, run.summary.e2e
    row: list[tuple[str, Cell]] = [
        ("policy", run.name),
        ("E2E mean", seconds(e2e.mean_s)),
        ("to best", ratio(e2e.mean_s / best.summary.e2e.mean_s)),
        ("to two", ratio(e2e.mean_s / baseline.summary.e2e.mean_s)),
        ("E2E p50", seconds(e2e.p50_s)),
        ("E2E p99", seconds(e2e.p99_s)),
        ("TTFT mean", seconds(ttft.mean_s)),
        ("TTFT p50", seconds(ttft.p50_s)),
        ("TTFT p99", seconds(ttft.p99_s)),
        ("TPOT mean", seconds(tpot.mean_s)),
        ("TPOT p99", seconds(tpot.p99_s)),
    ]
    return row if in_full else [(_short(name), cell) for name, cell in row]


def _short(column: str) -> str:
    return column.split(" ")[1] if column.endswith(("p50", "p99")) else column


def throughput(run: PolicyRun) -> Row:
    found = run.summary
    assert found.slo_attainment is not None
    assert found.goodput_per_s is not None
    return [
        ("policy", run.name),
        ("served", number(found.num_served)),
        ("refused", number(found.num_refused)),
        ("SLO met", share(found.slo_attainment)),
        ("goodput", number(found.goodput_per_s)),
        ("requests/s", number(found.requests_per_s)),
        ("tokens/s", number(found.tokens_per_s)),
        ("preemptions", number(found.num_preemptions)),
        ("prefix hits", share(found.prefix_hit_rate)),
        ("busy", share(found.utilisation)),
        ("fairness", number(found.fairness)),
    ]


def of_client(run: PolicyRun, slower: float, client: str) -> Row:
    """What each client gets, from the times of its requests."""
    own = [each[1:] for each in _SERVED if each[0] == client]
    ttft_s = [each[2] * slower for each in own]
    tpot_s = [each[3] for each in own if each[4] > 1]
    e2e_s = [each[2] * slower + each[3] * (each[4] - 1) for each in own]
    num_refused = 1 if client == "ann" else 0
    num_met = sum(time_s <= _OBJECTIVE_S for time_s in e2e_s)
    return [
        ("client", client),
        ("policy", run.name),
        ("served", number(len(own))),
        ("refused", number(num_refused)),
        ("TTFT mean", seconds(sum(ttft_s) / len(own))),
        ("TPOT mean", seconds(sum(tpot_s) / len(tpot_s))),
        ("E2E mean", seconds(sum(e2e_s) / len(own))),
        ("E2E p99", seconds(float(np.percentile(e2e_s, 99)))),
        ("SLO met", share(num_met / (len(own) + num_refused))),
    ]


def refused_row(shown: Shown, why: str) -> Shown:
    """The table without its last row, which says that a policy cannot serve."""
    columns, rows = shown
    assert rows[-1][:2] == (why, "cannot serve")
    assert set(rows[-1][2:]) == {""}
    return columns, rows[:-1]


def test_tables_show_each_number_in_its_column(runs: tuple[PolicyRun, PolicyRun]) -> None:
    one, two = runs
    cannot = (CannotRun("three", "it has no batch"),)
    page = tables_of(serve_page("title", (two, one), {}, baseline=two, cannot=cannot))
    for shown, in_full in (
        (printed(serve_tables("title", (two, one), two, cannot)[0]), False),
        (page["Latency"], True),
    ):
        wanted = [latency(run, one, two, in_full=in_full) for run in runs]
        check_table(refused_row(shown, "three"), wanted)
    for shown in (printed(serve_tables("title", (two, one))[1]), page["Throughput and load"]):
        check_table(shown, [throughput(run) for run in runs])
    check_table(
        page["Clients"],
        [
            of_client(run, slower, name)
            for name in ("ann", "bob")
            for run, slower in zip(runs, (1.0, 1.3), strict=True)
        ],
    )
    assert page["Refused requests"] == (
        ("policy", "request", "client", "why"),
        (("one", "r9", "ann", "too long"), ("two", "r9", "ann", "too long")),
    )


def test_a_document_has_each_number_in_its_field(runs: tuple[PolicyRun, PolicyRun]) -> None:
    one, two = runs
    found, of = run_document(two, one), two.summary
    clients, requests = found.pop("clients"), found.pop("requests")
    times = {
        f"{name}_{key}": value
        for name, each in (("ttft", of.ttft), ("tpot", of.tpot), ("e2e", of.e2e))
        for key, value in asdict(each).items()
    }
    assert found == times | {
        "policy": "two",
        "num_served": of.num_served,
        "num_refused": of.num_refused,
        "num_cut": of.num_cut,
        "num_preemptions": of.num_preemptions,
        "slo_attainment": of.slo_attainment,
        "goodput_per_s": of.goodput_per_s,
        "requests_per_s": of.requests_per_s,
        "tokens_per_s": of.tokens_per_s,
        "prefix_hit_rate": of.prefix_hit_rate,
        "fairness": of.fairness,
        "utilisation": of.utilisation,
        "to_baseline": of.e2e.mean_s / one.summary.e2e.mean_s,
        "num_steps": 97,
        "busy_s": 3.7 * 1.3,
        "refused": [{"request": "r9", "why": "too long"}],
    }
    assert [(each["client"], each["num_served"], each["num_refused"]) for each in clients] == [
        ("ann", 3, 1),
        ("bob", 2, 0),
    ]
    assert clients[1]["tpot_mean_s"] == pytest.approx(0.034)
    assert clients[1]["ttft_p50_s"] == pytest.approx(1.3 * (0.71 + 0.13) / 2)
    assert requests == {name: [wanted[name] for wanted in of_requests(1.3)] for name in requests}


def of_requests(slower: float) -> list[dict[str, Any]]:
    """Every request in numbers; of one that has one token there is no time per token after it."""
    found: list[dict[str, Any]] = []
    for i, (client, arrival_s, wait_s, ttft_s, tpot_s, tokens, preempted, cached) in enumerate(_SERVED):
        first_s = arrival_s + ttft_s * slower
        last_s = first_s + tpot_s * (tokens - 1)
        found.append(
            {
                "name": f"r{i}",
                "client": client,
                "prompt_tokens": 100 + 7 * i,
                "arrival_s": arrival_s,
                "output_tokens": tokens,
                "scheduled_s": arrival_s + wait_s,
                "first_token_s": first_s,
                "finished_s": last_s,
                "ttft_s": first_s - arrival_s,
                "tpot_s": None if tokens == 1 else (last_s - first_s) / (tokens - 1),
                "e2e_s": last_s - arrival_s,
                "num_preemptions": preempted,
                "cached_tokens": cached,
                "meets_objectives": last_s - arrival_s <= _OBJECTIVE_S,
                "refused": "",
            }
        )
    unknown = dict.fromkeys(found[0])
    refused = {"name": "r9", "client": "ann", "prompt_tokens": 999, "arrival_s": 4.4}
    return [*found, unknown | refused | {"meets_objectives": False, "refused": "too long"}]


def test_a_csv_has_each_number_in_its_column(runs: tuple[PolicyRun, PolicyRun], tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    write_requests(path, runs)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    wanted = [{"policy": "one", **each} for each in of_requests(1.0)]
    wanted += [{"policy": "two", **each} for each in of_requests(1.3)]
    assert rows == [
        {name: "" if value is None else str(value) for name, value in each.items()} for each in wanted
    ]


def test_curves_are_of_what_their_figure_is_called(runs: tuple[PolicyRun, PolicyRun]) -> None:
    figures = figures_of(serve_page("title", runs, {}))
    for heading, times_s in (
        ("Time to first token (TTFT)", [each[3] for each in _SERVED]),
        ("Time per output token (TPOT)", [each[4] for each in _SERVED if each[5] > 1]),
        ("End-to-end time (E2E)", [each[3] + each[4] * (each[5] - 1) for each in _SERVED]),
    ):
        line = figures[heading][0]["data"][0]
        assert (line["name"], line["x"]) == ("one", pytest.approx(sorted(times_s), rel=1e-6))
        assert line["y"] == pytest.approx(np.arange(1, len(times_s) + 1) / len(times_s))
    for heading, values in (
        ("Waiting requests", [3.0, 5.0, 2.0]),
        ("Running requests", [7.0, 11.0, 6.0]),
        ("KV cache in use", [13.0, 29.0, 17.0]),
    ):
        line = figures[heading][0]["data"][0]
        assert (line["x"], line["y"]) == (pytest.approx([0.0, 0.7, 1.4]), pytest.approx(values))


def test_a_followed_request_is_told_step_by_step(runs: tuple[PolicyRun, PolicyRun]) -> None:
    served = runs[0].results.served[2]
    spans = (Span("prefill", 2.2, 2.3, 71), Span("decode", 2.4, 2.9, 41))
    followed = {"one": RequestTimeline(served, spans, (2.35,))}
    assert followed_document(followed) == [
        {
            "policy": "one",
            "request": "r2",
            "arrival_s": 1.7,
            "first_token_s": served.first_token_s,
            "finished_s": served.finished_s,
            "preempted_s": (2.35,),
            "steps": [
                {"kind": "prefill", "start_s": 2.2, "end_s": 2.3, "num_tokens": 71},
                {"kind": "decode", "start_s": 2.4, "end_s": 2.9, "num_tokens": 41},
            ],
            "waits": [
                {"start_s": 1.7, "end_s": 2.2, "why": "a step is running"},
                {"start_s": 2.3, "end_s": 2.4, "why": "its blocks went to other requests"},
            ],
        }
    ]
    figure, note = figures_of(serve_page("title", runs[:1], {}, followed=followed))["Timeline of request r2"]
    drawn = {each["name"]: (each.get("base"), each["x"], each["text"]) for each in figure["data"]}
    assert drawn == {
        "waiting": (
            [0.0, 0.6],
            [0.5, 0.1],
            ["waiting: a step is running, 500 ms", "waiting: its blocks went to other requests, 100 ms"],
        ),
        "prefill": ([0.5], [0.1], ["prefill, 71 tokens, 100 ms"]),
        "decode": ([0.7], [0.5], ["decode, 41 tokens, 500 ms"]),
        "first token": (None, [0.97], ["first token, after 970 ms"]),
        "preempted": (None, [0.65], ["preempted, after 650 ms"]),
    }
    assert note.startswith("Prompt of 114 tokens, output of 43.")


def test_what_was_simulated_stands_before_what_was_served(runs: tuple[PolicyRun, PolicyRun]) -> None:
    one, two = runs
    found = SimulatedAndServed("vllm", LinearStepTime(1.0, 1.0, 1.0), replace(one), replace(two))
    wanted: list[Row] = []
    for name in ("ttft", "tpot", "e2e"):
        for what in ("mean", "p99"):
            ours, theirs = (getattr(getattr(run.summary, name), f"{what}_s") for run in runs)
            error = f"{100 * (ours / theirs - 1):+.1f}%"
            wanted.append(
                [
                    ("policy", "vllm"),
                    ("", f"{name.upper()} {what}"),
                    ("simulated", seconds(ours)),
                    ("served", seconds(theirs)),
                    ("error", error),
                ]
            )
    check_table(printed(errors_table("title", (found,))), wanted)

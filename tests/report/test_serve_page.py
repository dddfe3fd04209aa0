"""The page of served requests: its figures are the runs' numbers, and a browser shows them without errors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deployments import deployment
from page_figures import Figures, figures_of
from served import request
from web_browser import errors_shown, rendered

from trainyard.reading.left_out import LeftOut
from trainyard.report.serve_league import (
    clients_table,
    league,
    ranked_policies,
    refusal_lines,
    server_table,
)
from trainyard.report.serve_page import serve_page
from trainyard.serve.compare import CannotRun, PolicyRun, compare_policies, follow_request, request_to_follow
from trainyard.serve.requests.change import with_objectives

CLIENTS = ("<b>alice</b>", "bob")
REQUESTS = [
    request(n, 0.02 * n, 100 + 37 * n % 500 if n != 7 else 5000, 20 + 53 * n % 200, client=CLIENTS[n % 2])
    for n in range(60)
]
STUBBORN = (CannotRun("stubborn", "it puts none in a batch"),)
Shown = tuple[tuple[PolicyRun, ...], str, Figures]


@pytest.fixture(scope="module")
def shown() -> Shown:
    """Runs, their page, and its figures."""
    place = deployment(num_blocks=260)
    runs, cannot = compare_policies("vllm, vllm_v0, orca", REQUESTS, place, records_load=True)
    assert not cannot
    followed = follow_request(request_to_follow(runs), runs, REQUESTS, place)
    left_out = LeftOut()
    left_out.num_rows = 61
    left_out.add_named("has no <i>prompt</i>", "r60")
    facts = {"requests": "60 of <u>mine</u>"}
    page = serve_page("title", runs, facts, followed=followed, left_out=left_out, cannot=STUBBORN)
    return runs, page, figures_of(page)


def test_the_best_comes_first_and_ratios_are_to_it(shown: Shown) -> None:
    runs, _, _ = shown
    order = ranked_policies(runs)
    means_s = [run.summary.e2e.mean_s for run in order]
    assert means_s == sorted(means_s)
    columns, rows = league(runs, runs[1], STUBBORN)
    assert columns[:4] == ("policy", "E2E mean", "to best", f"to {runs[1].name}")
    assert [row[0] for row in rows] == [*(run.name for run in order), "stubborn"]
    assert rows[0][2] == "1.00x"
    assert rows[1][2] == f"{means_s[1] / means_s[0]:.2f}x"
    assert next(row for row in rows if row[0] == runs[1].name)[3] == "1.00x"
    assert rows[-1][1] == "cannot serve"
    assert all(len(row) == len(columns) for row in rows)


def test_who_serves_more_is_better() -> None:
    few, _ = compare_policies("vllm", REQUESTS[:8], deployment())
    fewer, _ = compare_policies("orca", REQUESTS[:2], deployment())
    assert ranked_policies([*fewer, *few]) == (*few, *fewer)


def test_columns_are_there_where_they_say_something(shown: Shown) -> None:
    runs, _, _ = shown
    columns, rows = server_table(runs)
    assert "fairness" in columns
    assert "SLO met" not in columns
    assert {row[columns.index("refused")] for row in rows} == {"1"}
    alone = [each._replace(request=replace(each.request, client="")) for each in REQUESTS[:5]]
    (run,), _ = compare_policies("vllm", [with_objectives(each, ttft_s=1e-3) for each in alone], deployment())
    columns, rows = server_table([run])
    assert "fairness" not in columns
    assert rows[0][columns.index("SLO met")] == "0.0 %"
    assert clients_table([run])[1] == ()


def test_refusals_are_said_once(shown: Shown) -> None:
    runs, _, _ = shown
    first, second = refusal_lines(runs, STUBBORN)
    assert first == "stubborn cannot serve: it puts none in a batch"
    names = ", ".join(run.name for run in ranked_policies(runs))
    assert second.startswith(f"{names} refused 1 of 60 requests: r7 (a prompt of 5000 tokens")


def test_distributions_are_those_of_the_runs(shown: Shown) -> None:
    runs, _, figures = shown
    for heading, value_of in (
        ("Time to first token (TTFT)", lambda each: each.ttft_s),
        ("Time per output token (TPOT)", lambda each: each.tpot_s),
        ("End-to-end time (E2E)", lambda each: each.e2e_s),
    ):
        figure, _ = figures[heading]
        assert figure["layout"]["xaxis"]["type"] == "log"
        lines = {line["name"]: line for line in figure["data"]}
        assert lines.keys() == {run.name for run in runs}
        for run in runs:
            assert lines[run.name]["x"] == pytest.approx(np.sort(run.results.of_served(value_of)), rel=1e-6)
            assert lines[run.name]["y"][-1] == 1.0


def test_an_objective_is_marked_where_all_requests_have_it() -> None:
    for objectives_s, num_marks in (((0.5, 0.5), 1), ((0.5, 0.7), 0), ((0.5, float("inf")), 0)):
        requests = [
            with_objectives(each, ttft_s=objectives_s[place % 2]) for place, each in enumerate(REQUESTS[:6])
        ]
        (run,), _ = compare_policies("vllm", requests, deployment())
        figure, _ = figures_of(serve_page("title", [run], {}))["Time to first token (TTFT)"]
        marks = [line for line in figure["data"] if line["name"] != run.name]
        assert [line["name"] for line in marks] == ["objective, 500 ms"] * num_marks


def test_lines_over_time_are_the_load(shown: Shown) -> None:
    runs, _, figures = shown
    for heading, values_of in (
        ("Waiting requests", lambda load: load.num_waiting),
        ("Running requests", lambda load: load.num_running),
        ("KV cache in use", lambda load: 100 * load.cache),
    ):
        figure, note = figures[heading]
        assert "Each point is the mean over" in note
        lines = {line["name"]: line for line in figure["data"]}
        for run in runs:
            assert run.load is not None
            assert lines[run.name]["y"] == pytest.approx(values_of(run.load), rel=1e-6)
            assert lines[run.name]["x"][1] == pytest.approx(run.load.part_s)
    assert 50 < max(max(line["y"]) for line in figures["KV cache in use"][0]["data"]) <= 100


def test_a_request_is_drawn_as_it_was_served(shown: Shown) -> None:
    runs, _, figures = shown
    name = request_to_follow(runs)
    figure, note = figures[f"Timeline of request {name}"]
    order = ranked_policies(runs)
    assert figure["layout"]["yaxis"]["ticktext"] == [run.name for run in order]
    bars = [each for each in figure["data"] if each["type"] == "bar"]
    assert {each["name"] for each in bars} == {"waiting", "prefill", "recompute", "decode"}
    points = {each["name"]: each for each in figure["data"] if each["type"] == "scatter"}
    for row, run in enumerate(order):
        own = next(each for each in run.results.served if each.request.name == name)
        drawn = [
            (start, start + length)
            for each in bars
            for place, start, length in zip(each["y"], each["base"], each["x"], strict=True)
            if place == row
        ]
        assert sum(end - start for start, end in drawn) == pytest.approx(own.e2e_s, rel=1e-4)
        assert max(end for _, end in drawn) == pytest.approx(own.e2e_s, rel=1e-4)
        assert points["preempted"]["y"].count(row) == own.num_preemptions
        first = points["first token"]
        assert first["x"][first["y"].index(row)] == pytest.approx(own.ttft_s, rel=1e-6)
        assert f"Prompt of {own.request.prompt_tokens:,} tokens" in note


def test_a_run_without_requests_has_a_page() -> None:
    (run,), _ = compare_policies("vllm", [request(0, 0.0, 5000, 5)], deployment(), records_load=True)
    page = serve_page("title", [run], {})
    assert "a prompt of 5000 tokens" in page
    assert figures_of(page) == {}


def test_a_browser_shows_it(shown: Shown, tmp_path: Path) -> None:
    runs, page, figures = shown
    document = rendered(page, tmp_path)
    assert errors_shown(document) == ""
    assert document.count('class="plot-container') == len(figures) == 7
    headings = re.findall(r"<h2>([^<]*)</h2>", document)
    for heading in ("Latency", "Clients", "Refused requests", "Remarks"):
        assert heading in headings
    assert "Left out: 1 of 61 rows of the trace" in headings
    for text in ("&lt;u&gt;mine", "&lt;i&gt;prompt", "&lt;b&gt;alice"):
        assert text in document
    assert all(run.name in document for run in runs)

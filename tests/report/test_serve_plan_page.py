"""The page of a plan for serving: its figures are the plan's numbers, and a browser shows them without errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_figures import figures_of
from splits_of_tests import drawn, split_of
from web_browser import errors_shown, rendered

from trainyard.report.serve_plan import evidence
from trainyard.report.serve_plan_page import serve_plan_page
from trainyard.serve.planning.frontier import frontier
from trainyard.serve.planning.plan import ServingPlan, plan_serving
from trainyard.serve.policy_choices import given_choices

HEADING = "Throughput per device against speed for one user"


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    """One of several devices."""
    requests = drawn(100, 60.0, ttft_s=0.3, tpot_s=0.02)
    return plan_serving(
        requests, split_of(), 8, given_choices("vllm, sarathi(chunk_tokens=256)"), node_size=4, share=0.95
    )


def test_the_picture_has_all_points_the_frontier_and_the_plan(plan: ServingPlan) -> None:
    figures = figures_of(serve_plan_page("title", plan, {}))
    figure, note = figures[HEADING]
    curves = {each["name"]: each for each in figure["data"]}
    assert "the plan is below its curve" in note.lower()
    best = frontier(plan.points)
    assert curves["Pareto frontier"]["x"] == pytest.approx(
        [each.user_tokens_per_s for each in best], rel=1e-6
    )
    assert curves["Pareto frontier"]["y"] == pytest.approx(
        [each.device_tokens_per_s for each in best], rel=1e-6
    )
    splits = [each for name, each in curves.items() if name.startswith("tp ")]
    assert sum(len(each["x"]) for each in splits) == len(plan.points)
    star = curves["the plan, as simulated"]
    assert star["x"] == pytest.approx([1 / plan.summary.tpot.mean_s], rel=1e-6)
    assert star["y"] == pytest.approx([plan.summary.tokens_per_s / plan.deployment.num_devices], rel=1e-6)


def test_distributions_are_those_of_the_runs(plan: ServingPlan) -> None:
    figure, _ = figures_of(serve_plan_page("title", plan, {}))["Time to first token (TTFT)"]
    lines = {line["name"]: line for line in figure["data"]}
    objective = lines.pop("objective, 300 ms")
    assert (objective["x"], objective["y"]) == ([0.3, 0.3], [0, 1])
    assert len(lines) == len(plan.runs) > 1
    for run in plan.runs:
        times_s = sorted(each.ttft_s for each in run.results.served)
        assert lines[run.name]["x"] == pytest.approx(times_s, rel=1e-6)


def test_pools_stand_in_the_table(plan: ServingPlan) -> None:
    _, rows = evidence((plan.best, *plan.runners_up))
    assert rows[0][:2] == ("3", "(2 prefill + 1 decode) x tp 1")


def test_a_browser_shows_it(plan: ServingPlan, tmp_path: Path) -> None:
    document = rendered(serve_plan_page("title <b>", plan, {"requests": "<u>mine</u>"}), tmp_path)
    assert errors_shown(document) == ""
    assert document.count('class="main-svg"') > 3
    assert "the plan, as simulated" in document

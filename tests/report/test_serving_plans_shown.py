"""Each number of a plan for serving and of a placement stands in its own column, field and unit."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from deployments import STEP
from distinct_results import (
    Distinct,
    Row,
    cards_of,
    check_facts,
    check_table,
    memory,
    number,
    printed,
    seconds,
    share,
    tables_of,
)
from page_figures import figures_of

from trainyard.report.serve_place import place_document, place_tables
from trainyard.report.serve_place_page import serve_place_page
from trainyard.report.serve_plan import plan_document, plan_facts, plan_tables, verdict
from trainyard.report.serve_plan_page import serve_plan_page
from trainyard.serve.auto import Trial
from trainyard.serve.catalog import parse_policies
from trainyard.serve.compare import PolicyRun
from trainyard.serve.deployment import Deployment, ServedModel
from trainyard.serve.placement import Replica
from trainyard.serve.placing.compare import CannotPlace, PlacementRun
from trainyard.serve.placing.decisions import ModelOnDevices, PlacedModels
from trainyard.serve.placing.forward_pass import ForwardPass
from trainyard.serve.placing.problem import ModelToPlace, PlacingProblem
from trainyard.serve.planning.bottlenecks import Bottleneck
from trainyard.serve.planning.frontier import FrontierPoint
from trainyard.serve.planning.plan import ServingPlan
from trainyard.serve.policies.alpaserve.problem import Arrivals, ParallelConfig
from trainyard.serve.policies.nexus.profile import BatchingProfile
from trainyard.serve.policy_choices import given_choices
from trainyard.serve.results import Results
from trainyard.serve.splits import ExcludedSplit
from trainyard.serve.summary import Summary


def trial(make: Distinct, replicas: int, tensor: int, stages: int, router: str) -> Trial:
    """On 2 x 3 x 5 devices or the like."""
    model = make.of(
        ServedModel,
        name="small",
        plan=None,
        step_time=STEP,
        described=(("attention", 13),),
        tensor_parallel=tensor,
        pipeline_stages=stages,
        data_parallel=1,
    )
    place = Deployment(
        model, replicas, num_blocks=700 + replicas, max_model_len=900 + stages, block_tokens=24
    )
    (choice,) = given_choices("vllm")
    return Trial(place, choice, router, make.of(Summary))


POOLS = "prefill_decode(prefill_replicas=2)"


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    make = Distinct()
    closest = trial(make, 1, 2, 3, "round_robin")
    best, other = trial(make, 5, 2, 3, "round_robin"), trial(make, 7, 4, 1, POOLS)
    assert best.summary is not None
    run = PolicyRun("vllm", parse_policies("vllm")[0][1], Results(), best.summary)
    points = (
        FrontierPoint(2, 3, 1, 8, user_tokens_per_s=71.3, device_tokens_per_s=19.7),
        FrontierPoint(
            4, 1, 1, 2, user_tokens_per_s=53.9, device_tokens_per_s=11.1
        ),  # the first is better in both
        FrontierPoint(4, 1, 1, 4, user_tokens_per_s=37.1, device_tokens_per_s=1234.6),
    )
    return ServingPlan(
        best,
        True,
        0.95,
        (run,),
        (other,),
        closest,
        (Bottleneck("memory bandwidth", "twice as much", 0.913), Bottleneck("network", "none", 0.877)),
        (ExcludedSplit(8, 1, 1, "it has 4 heads"),),
        points,
        23,
    )


def of_trial(each: Trial, replicas: tuple[Any, ...]) -> Row:
    place, found = each.deployment, each.summary
    assert found is not None
    assert found.slo_attainment is not None
    return [
        ("devices", number(place.num_replicas * place.model.tensor_parallel * place.model.pipeline_stages)),
        ("replicas", replicas),
        ("policy", "vllm"),
        ("SLO met", share(found.slo_attainment)),
        ("TTFT p50", seconds(found.ttft.p50_s)),
        ("TTFT p99", seconds(found.ttft.p99_s)),
        ("TPOT p50", seconds(found.tpot.p50_s)),
        ("TPOT p99", seconds(found.tpot.p99_s)),
        ("tokens/s", number(found.tokens_per_s)),
    ]


def shorter(row: Row) -> Row:
    """On a terminal a percentile does not repeat of what it is."""
    return [("p99" if name.endswith("p99") else name, cell) for name, cell in row]


def facts_of(plan: ServingPlan) -> Row:
    summary = plan.best.summary
    assert summary is not None
    cuts = number(summary.num_cut)
    return [
        ("devices", number(5 * 2 * 3)),
        ("replicas", number(5)),
        ("split per replica", "tp 2, pp 3"),
        ("policy", "vllm"),
        ("router", "round_robin"),
        ("KV cache per replica", (number(705 * 24), " tokens")),
        ("max sequence length", (number(903), " tokens, which cuts answers of ", cuts, " requests")),
        ("bottleneck", "memory bandwidth"),
        ("step time", "the source"),
        ("simulated", (number(23), " deployments")),
    ]


def test_a_plan_shows_each_number_in_its_column(plan: ServingPlan) -> None:
    page = serve_plan_page("title", plan, {"asked": "of it"})
    tables = tables_of(page)
    _, deployments, bottlenecks, excluded, points = (
        printed(each) for each in plan_tables(plan) if not isinstance(each, str)
    )
    rows = [
        of_trial(plan.best, (number(5), " x tp 2, pp 3")),
        of_trial(plan.runners_up[0], ("(", number(2), " prefill + ", number(5), " decode) x tp 4")),
    ]
    check_table(tables["Deployments that meet the objectives, best first"], rows)
    check_table(deployments, [shorter(row) for row in rows])
    assert plan.closest is not None
    assert plan.closest.summary is not None
    met = f"{100 * plan.closest.summary.share_met:.1f} %"
    heading = (
        f"Bottleneck with fewer devices: 1 replica of small with tp 2, pp 3 (6 devices), where {met} of the requests "
        "meet their objectives"
    )
    for shown in (tables[heading], bottlenecks):
        check_table(
            shown,
            [
                [("bottleneck", name), ("if improved", change), ("SLO met", share(then))]
                for name, change, then in (
                    ("memory bandwidth", "twice as much", 0.913),
                    ("network", "none", 0.877),
                )
            ],
        )
    for shown in (tables["Pareto frontier, in a steady state"], points):
        check_table(
            shown,
            [
                [
                    ("split", split),
                    ("concurrent requests", number(num)),
                    ("tokens/s per user", number(user)),
                    ("tokens/s per device", number(device)),
                ]
                for split, num, user, device in (("tp 2, pp 3", 8, 71.3, 19.7), ("tp 4", 4, 37.1, 1234.6))
            ],
        )
    assert (
        tables["Splits that are ruled out"] == excluded == (("split", "why"), (("tp 8", "it has 4 heads"),))
    )
    check_facts(plan_facts(plan), facts_of(plan))
    check_facts(cards_of(page), [("asked", "of it"), *facts_of(plan)])


def test_the_verdict_says_the_share_that_is_met_and_the_one_that_is_asked(plan: ServingPlan) -> None:
    made = plan.best.summary
    assert made is not None
    assert made.slo_attainment is not None
    met = f"{100 * made.slo_attainment:.1f} %"
    assert verdict(plan) == (
        f"30 devices: 5 replicas of small with tp 2, pp 3, vllm; {met} of the requests meet their "
        "objectives (target 95.0 %)"
    )
    assert verdict(replace(plan, is_met=False)) == (
        "no deployment on these devices meets the objectives for 95.0 % of the requests; 5 replicas of small with tp 2, "
        f"pp 3 with vllm comes closest, with {met}"
    )


def test_a_document_of_a_plan_has_each_number_in_its_field(plan: ServingPlan) -> None:
    found = plan_document(plan)

    def of(each: Trial, **own: Any) -> dict[str, Any]:
        assert each.summary is not None
        return {
            "data_parallel": 1,
            "block_tokens": 24,
            "policy": "vllm",
            "prefill_replicas": None,
            "summary": asdict(each.summary),
            **own,
        }

    split = {"tensor_parallel": 2, "pipeline_stages": 3, "max_model_len": 903, "router": "round_robin"}
    other = {"tensor_parallel": 4, "pipeline_stages": 1, "max_model_len": 901, "router": POOLS} | {
        "prefill_replicas": 2
    }
    assert plan.closest is not None
    assert found == {
        "is_met": True,
        "share": 0.95,
        "best": of(plan.best, num_devices=30, num_replicas=5, num_blocks=705, **split),
        "runners_up": [of(plan.runners_up[0], num_devices=28, num_replicas=7, num_blocks=707, **other)],
        "closest": of(plan.closest, num_devices=6, num_replicas=1, num_blocks=701, **split),
        "bottlenecks": [
            {"name": "memory bandwidth", "change": "twice as much", "slo_attainment": 0.913},
            {"name": "network", "change": "none", "slo_attainment": 0.877},
        ],
        "excluded_splits": [
            {
                "tensor_parallel": 8,
                "pipeline_stages": 1,
                "data_parallel": 1,
                "why": "it has 4 heads",
                "is_memory_short": False,
            }
        ],
        "frontier": [
            {**asdict(each), "is_best": is_best}
            for each, is_best in zip(plan.points, (True, False, True), strict=True)
        ],
        "num_trials": 23,
        "bottleneck": "memory bandwidth",
        "step_time_from": "the source",
        "described_kernels": {"attention": 13},
    }


def test_the_plan_is_a_star_among_its_points(plan: ServingPlan) -> None:
    figure, _ = figures_of(serve_plan_page("title", plan, {}))[
        "Throughput per device against speed for one user"
    ]
    drawn = {each["name"]: (each["x"], each["y"]) for each in figure["data"]}
    found = plan.summary
    assert drawn == {
        "Pareto frontier": ([71.3, 37.1], [19.7, 1234.6]),
        "tp 2, pp 3": ([71.3], [19.7]),
        "tp 4": ([53.9, 37.1], [11.1, 1234.6]),
        "the plan, as simulated": (
            [pytest.approx(1 / found.tpot.mean_s)],
            [pytest.approx(found.tokens_per_s / 30)],
        ),
    }


@pytest.fixture(scope="module")
def placed() -> tuple[PlacingProblem, PlacementRun]:
    """Two models on devices 0 to 4, of which one waits."""
    first = ForwardPass(
        BatchingProfile((1, 4, 8), (0.013, 0.029, 0.05)), 3 * 2.0**30, {ParallelConfig(2, 1): (0.007, 0.011)}
    )
    second = ForwardPass(
        BatchingProfile((1, 8), (0.017, 0.041)), 5 * 2.0**20, {ParallelConfig(1, 2): (0.019,)}
    )
    arrivals = Arrivals(np.array([0.0, 2.0, 3.0, 10.0]), np.array([0, 1, 0, 0]))
    models = (ModelToPlace("a", first, 0.083), ModelToPlace("b", second, 0.121))
    problem = PlacingProblem(models, 5, 7 * 2.0**30, arrivals)
    replicas = (
        ModelOnDevices(Replica("a", pipeline_stages=2), (0, 1)),
        ModelOnDevices(Replica("b"), (3,), batch=4, cycle_s=0.067),
    )
    busy_s = (1.1, 2.3, 0.0, 4.7, 0.0)
    return problem, PlacementRun("made", PlacedModels(replicas, (40, 50), (37, 43), 7.2, busy_s, 10.0))


def test_a_placement_shows_each_number_in_its_column(placed: tuple[PlacingProblem, PlacementRun]) -> None:
    problem, run = placed
    page = serve_place_page("title", problem, (run,), (CannotPlace("other", "too large"),))
    tables = tables_of(page)
    on_terminal = [
        printed(each) for each in place_tables("title", problem, (run,), ()) if not isinstance(each, str)
    ]
    models: list[Row] = [
        [
            ("model", name),
            ("requests/s", number(rate)),
            ("objective", seconds(objective_s)),
            ("weights", memory(weights)),
            ("one request", seconds(one_s)),
            ("max per device", (number(most), "/s")),
        ]
        # A batch may take half of the objective: 4 of the first model, and 8 of the second.
        for name, rate, objective_s, weights, one_s, most in (
            ("a", 0.3, 0.083, 3 * 2.0**30, 0.013, 4 / 0.029),
            ("b", 0.1, 0.121, 5 * 2.0**20, 0.017, 8 / 0.041),
        )
    ]
    league: Row = [
        ("policy", "made"),
        ("SLO met", share(80 / 90)),
        ("mean latency", seconds(7.2 / 80)),
        ("devices", (number(3), " of ", number(5))),
        ("replicas", number(2)),
    ]
    met: list[Row] = [[("model", "a"), ("made", share(37 / 40))], [("model", "b"), ("made", share(43 / 50))]]
    where: list[Row] = [
        [("devices", "0, 1"), ("models", "a (2 stages)"), ("cycle", "")],
        [("devices", "3"), ("models", "b x 4"), ("cycle", seconds(0.067))],
    ]
    for shown, wanted in zip(on_terminal, (models, [league], met, where), strict=True):
        check_table(shown, wanted)
    for name, wanted in (("Models", models), ("SLO met, by model", met), ("On which devices: made", where)):
        check_table(tables[name], wanted)
    columns, (row, cannot) = tables["Policies, best first"]
    check_table((columns, (row,)), [league])
    assert cannot == ("other", "cannot place", "", "", "")
    check_facts(
        cards_of(page),
        [
            ("devices", number(5)),
            ("memory for weights", (memory(7 * 2.0**30), " a device")),
            ("best", "made"),
            ("SLO met by the best", share(80 / 90)),
        ],
    )
    bars = figures_of(page)["Load of devices"][0]["data"][0]
    assert bars["x"] == pytest.approx([11.0, 23.0, 0.0, 47.0, 0.0])
    assert bars["text"] == ["11.0 %", "23.0 %", "0.0 %", "47.0 %", "0.0 %"]


def test_a_document_of_a_placement_has_each_number_in_its_field(
    placed: tuple[PlacingProblem, PlacementRun],
) -> None:
    problem, run = placed
    found = place_document(problem, (run,), (CannotPlace("other", "too large"),))
    first, second = found.pop("models")
    assert first == {
        "name": "a",
        "rate_per_s": pytest.approx(0.3),
        "objective_s": 0.083,
        "weight_bytes": 3 * 2.0**30,
        "batches": (1, 4, 8),
        "latency_s": (0.013, 0.029, 0.05),
        "splits": [
            {
                "pipeline_stages": 2,
                "tensor_parallel": 1,
                "stage_s": (0.007, 0.011),
                "stage_bytes": (1.5 * 2.0**30,) * 2,
            }
        ],
    }
    assert (second["name"], second["rate_per_s"], second["objective_s"]) == ("b", pytest.approx(0.1), 0.121)
    split = {"pipeline_stages": 2, "tensor_parallel": 1, "plan": "", "batch": 1, "cycle_s": 0.0}
    packed = {"pipeline_stages": 1, "tensor_parallel": 1, "plan": "", "batch": 4, "cycle_s": 0.067}
    assert found == {
        "num_devices": 5,
        "device_bytes": 7 * 2.0**30,
        "runs": [
            {
                "policy": "made",
                "slo_attainment": pytest.approx(80 / 90),
                "num_devices": 3,
                "mean_latency_s": pytest.approx(0.09),
                "num_asked": (40, 50),
                "num_good": (37, 43),
                "total_latency_s": 7.2,
                "replicas": [
                    {"model": "a", "devices": (0, 1), **split},
                    {"model": "b", "devices": (3,), **packed},
                ],
            }
        ],
        "cannot_place": [{"name": "other", "why": "too large"}],
    }

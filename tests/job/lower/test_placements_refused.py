"""Placements of a plan written by hand that would train something else are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_plan import made_plan
from torch import nn

from trainyard.hardware import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import lower
from trainyard.job.plan import Plan, PlanError, parse_plan
from trainyard.job.planning import make_setting
from trainyard.job.schedule import parse_schedule
from trainyard.job.schedules import make_schedule
from trainyard.job.setting import apply
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.program.placement import Shard, parse_placement
from trainyard.zoo.registry import build


@pytest.fixture(scope="module")
def planned() -> tuple[Task, Plan]:
    task = Task(build("gpt-tiny", 4))
    return task, apply(parse_strategies("data_parallel"), make_setting(task, parse_cluster("1x2xV100-16G")))


@pytest.mark.parametrize(
    ("name", "placement", "why"),
    [
        ("grad:tokens.weight", "R", "a gradient lies as its parameter does"),
        ("tokens.weight", "P", "allowed are R and S<dim>, and for results of ops also P"),
        ("batch.tokens", "P", "allowed are R and S<dim>, and for results of ops also P"),
        ("blocks.0:gelu", "Pavg", "allowed are R and S<dim>, and for results of ops also P"),
        ("blocks.0:gelu", "Pmax", "allowed are R and S<dim>, and for results of ops also P"),
    ],
)
def test_what_ranks_cannot_hold(planned: tuple[Task, Plan], name: str, placement: str, why: str) -> None:
    task, plan = planned
    wrong = plan.with_placements("data", {name: parse_placement(placement)})
    with pytest.raises(PlanError, match=f"{name!r} is to be {placement}, but {why}"):
        lower(task.program(plan.rows_per_microbatch), wrong)
    assert lower(task.program(plan.rows_per_microbatch), plan)


def test_an_op_of_several_results_does_not_lie_in_one_way(planned: tuple[Task, Plan]) -> None:
    task, plan = planned
    wrong = plan.with_placements("data", {"blocks.0.norm_1:native_layer_norm": Shard(0)})
    with pytest.raises(PlanError, match=r"norm_1:native_layer_norm has several results"):
        lower(task.program(plan.rows_per_microbatch), wrong)


def test_a_dimension_that_a_parameter_does_not_have() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net.register_parameter("idle", nn.Parameter(torch.ones(4)))
    model = Model("idle", net, lambda m, b: m(b["x"]).square().mean(), {"x": torch.ones(4, 4)})
    program = Task(model).program(4)
    plan = made_plan(program, 4, make_schedule("gpipe", 2, 1), tensor=2, starts=("1:tanh",))
    wrong = plan.with_placements("tensor", {"idle": Shard(1)})
    with pytest.raises(PlanError, match=r"idle: shape \(4,\) has no dimension 1 to be divided as S1"):
        lower(program, wrong)


@pytest.mark.parametrize(
    ("part", "wrong", "why"),
    [
        ("rows: [data]", "rows: [data, data]", "rows are divided over data, data; name each axis once"),
        (
            "summed_over: [data]",
            "summed_over: [data, data]",
            "gradients are summed over data, data; name each axis once",
        ),
        ("{data: 2}", "{data: 2, microbatch: 1}", "pipeline and microbatch are not axes of a stage's mesh"),
    ],
)
def test_axes_that_are_none_of_their_own(planned: tuple[Task, Plan], part: str, wrong: str, why: str) -> None:
    text = planned[1].to_text()
    assert part in text
    with pytest.raises(PlanError, match=why):
        parse_plan(text.replace(part, wrong))


def test_backward_passes_whole_and_in_halves(planned: tuple[Task, Plan]) -> None:
    task, plan = planned
    mixed = parse_schedule("mixed stages=1 microbatches=2\n0: 0F0 0F1 0B0 0I1 0W1")
    with pytest.raises(
        PlanError, match="stage 0 whole, 0B0, and another in halves, 0I1; run all of a stage alike"
    ):
        lower(task.program(2), replace(plan, schedule=mixed, fingerprint=task.program(2).fingerprint))

"""Sorts: each part of a batch does by itself those that are undone, and the step is that of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made_plan import made_plan
from one_step import check_equal, plain, trained
from sorted_rows import COUPLED, EXPERTS, SEPARATE, Sorted, put_back_by_inverse, task_with
from steps_on_ranks import check_steps
from test_split import plan_of
from torch import Tensor

from trainyard.job.lower.lower import lower
from trainyard.job.plan import Mesh, Plan, PlanError
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.placement import OpChoice, Shard


@pytest.mark.parametrize("use", SEPARATE)
def test_sorts_that_are_undone_are_done_by_each_part(use: Any) -> None:
    task = task_with(use)
    assert task.coupling is None
    for count in (1, 2, 8):
        check_equal(trained(task, plan_of(task, count)), plain(task.model))


@pytest.mark.parametrize("use", COUPLED)
def test_sorts_on_which_something_depends_are_of_the_whole_batch(use: Any) -> None:
    task = task_with(use)
    assert task.coupling is not None
    check_equal(trained(task, plan_of(task, 1)), plain(task.model))


ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "histc over one more": lambda e, _: torch.histc(e.float(), bins=EXPERTS, min=0, max=EXPERTS).cumsum(0),
    "one_hot": lambda e, _: F.one_hot(e, EXPERTS).sum(0).cumsum(0),
    "equal": lambda e, _: (e[:, None] == torch.arange(EXPERTS)).sum(0).cumsum(0, dtype=torch.int32),
    "scatter_add": lambda e, _: (
        torch.zeros(EXPERTS, dtype=torch.long).scatter_add(0, e, torch.ones_like(e)).cumsum(0)
    ),
    "index_add": lambda e, _: (
        torch.zeros(EXPERTS, dtype=torch.long).index_add(0, e, torch.ones_like(e)).cumsum(0)
    ),
    "searchsorted in order": lambda e, order: torch.searchsorted(e[order], torch.arange(EXPERTS), right=True),
    "searchsorted from 1": lambda e, _: torch.searchsorted(e.sort().values, torch.arange(1, EXPERTS + 1)),
    "bucketize": lambda e, _: torch.bucketize(torch.arange(EXPERTS), e.sort().values, right=True),
}
"""Where the tokens of each expert end, as mixtures compute it of the expert of each token and the order of a sort."""

WRONG_ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a capacity": lambda e, _: (
        torch.histc(e.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).clamp(max=6).cumsum(0)
    ),
    "other bins": lambda e, _: torch.histc(e.float(), bins=EXPERTS, min=0, max=2 * EXPERTS).cumsum(0),
    "histc with the upper limit in the last bin": lambda e, _: torch.histc(
        e.float(), bins=EXPERTS - 1, min=0, max=EXPERTS - 1
    ).cumsum(0),
    "backwards": lambda e, _: F.one_hot(e, EXPERTS).flip(1).sum(0).cumsum(0),
    "twos": lambda e, _: (
        torch.zeros(EXPERTS, dtype=torch.long)
        .scatter_add(0, e, torch.full_like(e, 2))
        .cumsum(0)
        .clamp(max=len(e))
    ),
    "equal to others": lambda e, _: (e[:, None] == torch.arange(1, EXPERTS + 1)).sum(0).cumsum(0),
    "from the left": lambda e, _: torch.searchsorted(e.sort().values, torch.arange(EXPERTS)),
    "half of them": lambda e, _: F.one_hot(e[: len(e) // 2], EXPERTS).sum(0).cumsum(0) * 2,
}
"""Ends that are not those of the experts' tokens."""
WITHOUT_GROUP = ("a capacity", "equal to others", "from the left", "half of them")
"""Those that leave rows in no group, of which PyTorch says nothing."""


def with_ends(ends: Callable[[Tensor, Tensor], Tensor]) -> Task:
    def use(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
        order = expert.argsort(stable=True)
        offs = ends(expert, order).to(torch.int32)
        found = F.grouped_mm(tokens[order], m.weight[: len(offs)], offs=offs)
        return torch.zeros_like(tokens).index_copy(0, order, found) * score[:, None]

    return task_with(use)


@pytest.mark.parametrize("form", ENDS)
def test_products_by_ends_are_split_however_the_ends_are_counted(form: str) -> None:
    task = with_ends(ENDS[form])
    assert task.coupling is None
    for count in (2, 8):
        check_equal(trained(task, plan_of(task, count)), plain(task.model))


@pytest.mark.parametrize("form", WRONG_ENDS)
def test_products_by_other_ends_are_of_the_whole_batch(form: str) -> None:
    task = with_ends(WRONG_ENDS[form])
    assert task.coupling is not None
    if form not in WITHOUT_GROUP:
        check_equal(trained(task, plan_of(task, 1)), plain(task.model))


def test_a_product_over_the_rows_of_each_group_has_a_gradient() -> None:
    def use(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
        experts, order = expert.sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(EXPERTS), right=True).to(torch.int32)
        found = m.compute(tokens[order], experts)
        between = F.grouped_mm(found.t(), found.sin(), offs=ends)
        return tokens + between.square().mean() * score[:, None]

    task = task_with(use)
    check_equal(trained(task, plan_of(task, 1)), plain(task.model))


@cache
def experts() -> Task:
    def use(m: Sorted, tokens: Tensor, score: Tensor, expert: Tensor) -> Tensor:
        return m.last(put_back_by_inverse(m, tokens, score, expert))  # so that each stage has a parameter

    return task_with(use)


def _two_stages(start: str, count: int = 1, data: int = 1, tensor: int = 1) -> Plan:
    program = experts().program(experts().num_rows // count)
    schedule = make_schedule("one_f_one_b", 2, count)
    return made_plan(program, experts().num_rows, schedule, data=data, tensor=tensor, starts=(start,))


def _by_rows(plan: Plan, op: str) -> Plan:
    """Let each rank of the tensor axis compute some places of an op."""
    return replace(plan, choices={op: {"tensor": OpChoice((Shard(0),), (Shard(0),))}})


@pytest.mark.slow
def test_stages_begin_inside_experts() -> None:
    inside = [
        _two_stages(start, count, data=2) for start in (":index", ":bmm", ":index.3") for count in (1, 2)
    ]
    after = _by_rows(_two_stages("last:t", tensor=2), ":tanh")
    check_steps(4, [(experts, plan) for plan in (*inside, after)])


@pytest.mark.parametrize("meshes", [(2, 1), (1, 2)])
def test_places_of_parts_are_not_divided_anew_between_stages(meshes: tuple[int, int]) -> None:
    plan = _two_stages(":index", data=2)
    unlike = [
        replace(stage, mesh=Mesh.of(data=data, tensor=2 // data))
        for stage, data in zip(plan.stages, meshes, strict=True)
    ]
    with pytest.raises(PlanError, match="Begin the stage at another op, such as the first of a layer"):
        lower(experts().program(8), replace(plan, stages=tuple(unlike)))


def test_a_stage_that_takes_places_of_parts_does_not_move_them() -> None:
    with pytest.raises(PlanError, match="in the order of each rank's own sort on axis 'tensor'"):
        lower(experts().program(8), _by_rows(_two_stages(":getitem.3", tensor=2), ":tanh"))

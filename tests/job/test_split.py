"""Microbatches: they add up to the batch, or the batch is not split."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from drawn_losses import COUPLED, ROWS, SEPARATE, Drawn, drawn, with_terms
from made_plan import made_plan
from one_step import check_equal, plain, trained
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.plan import Plan, PlanError, parse_plan
from trainyard.job.planning import simulate
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.zoo import build


def plan_of(
    task: Task, count: int, data: int = 1, pipeline: int = 1, per_rank: int = 1, zero: int = 0
) -> Plan:
    """A plan whose stages have equally many ops."""
    program = task.program(task.num_rows // count)
    forward = [
        address(n) for n in program.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"
    ]
    stages = pipeline * per_rank
    starts = tuple(forward[len(forward) * i // stages] for i in range(1, stages))
    schedule = make_schedule("interleaved" if per_rank > 1 else "one_f_one_b", pipeline, count, per_rank)
    statistics = task.statistics_in(count)
    return made_plan(
        program, task.num_rows, schedule, data=data, starts=starts, zero=zero, statistics=statistics
    )


@cache
def task_of(name: str) -> Task:
    return Task(with_terms((name,), len(name)).model)


@pytest.mark.parametrize("name", SEPARATE)
def test_microbatches_of_a_loss_that_separates_add_up(name: str) -> None:
    task = task_of(name)
    assert task.coupling is None
    check_equal(trained(task, plan_of(task, 4)), plain(task.model))


@pytest.mark.parametrize("name", COUPLED)
def test_a_batch_whose_rows_depend_on_each_other_is_not_split(name: str) -> None:
    task = task_of(name)
    with pytest.raises(PlanError, match=r"2 microbatches of 4 rows: in the loss, .*--statistics microbatch"):
        task.program(ROWS // 2)
    check_equal(trained(task, plan_of(task, 1)), plain(task.model))


def test_what_each_microbatch_computes_by_itself_is_asked_for_by_name() -> None:
    model = with_terms(("product",), 7).model
    model.module.eval()  # the masks of dropout would be those of other rows in the reference
    task = Task(model, statistics="microbatch")
    plan = plan_of(task, 2)
    assert plan.statistics == "microbatch"
    assert "Another loss than one device" in plan.explain()
    halves = [{n: v[rows] for n, v in model.batch.items()} for rows in (slice(0, 4), slice(4, 8))]
    model.module.zero_grad()
    mean = torch.stack([model.loss(model.module, half) for half in halves]).mean()  # type: ignore[arg-type]
    mean.backward()
    grads = {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}
    check_equal(trained(task, plan), (mean.item(), grads))
    with pytest.raises(PlanError, match="could train something else"):
        simulate(replace(plan, statistics="batch"), model, "1x1xA100-80G")


def test_what_splits_exactly_stays_exact_when_more_is_allowed() -> None:
    task = Task(task_of("token mean").model, statistics="microbatch")
    plan = plan_of(task, 4)
    assert plan.statistics == "batch"
    assert "Same loss as one device" in plan.explain()
    assert parse_plan(plan.to_text()) == plan


def test_counts_are_computed_once_before_the_first_microbatch() -> None:
    task = task_of("token mean")
    lowered = lower(task.program(ROWS // 4), plan_of(task, 4))
    (totals,) = lowered.totals
    assert totals is not None
    # Of the batch they take the labels and nothing else.
    assert [slot.name for slot in totals.inputs if slot.kind == "batch"] == ["batch.labels"]
    used = [s.name for s in lowered.stages[0].segments["F"].inputs if s.kind == "total"]
    assert used == [path for _, path in totals.results]
    assert lower(task.program(ROWS), plan_of(task, 1)).totals == (None,)


def test_a_buffer_is_written_once_a_step() -> None:
    coupling = Task(build("resnet-tiny", ROWS)).coupling
    assert coupling is not None
    assert coupling.startswith("a step writes the buffer 'stem.norm.running_mean'")


def test_a_metric_that_is_no_sum_is_named() -> None:
    def loss(module: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        value = (module(batch["x"]) - 1).square().mean()
        return value, {"largest": module(batch["x"]).max(), "error": value.detach()}

    task = Task(Model("metrics", nn.Linear(3, 2), loss, {"x": torch.randn(ROWS, 3)}))
    assert task.coupling == "the metric 'largest' is no sum or mean over rows"


def _draws(seeds: range) -> list[tuple[Drawn, Task, random.Random]]:
    found = []
    for seed in seeds:
        one = drawn(seed)
        task = Task(one.model)
        assert (task.coupling is not None) == one.is_coupled, (seed, one.terms, task.coupling)
        found.append((one, task, random.Random(seed)))
    return found


def _drawn_plan(task: Task, draw: random.Random, num_ranks: int) -> Plan:
    pipeline, data = draw.choice([(1, num_ranks), (num_ranks, 1)])
    counts = [1, 2, 4] if task.coupling is None else [1]
    per_rank = draw.choice([1, 2]) if pipeline > 1 or num_ranks == 1 else 1
    counts = [n for n in counts if per_rank == 1 or n % pipeline == 0] or counts[-1:]
    zero = draw.choice([0, 1, 2, 3]) if data > 1 else 0
    return plan_of(task, draw.choice(counts), data, pipeline, per_rank, zero)


@pytest.mark.slow
def test_drawn_losses_and_plans_on_one_rank() -> None:
    for one, task, draw in _draws(range(24)):
        plan = _drawn_plan(task, draw, 1)
        try:
            check_equal(trained(task, plan), plain(one.model))
        except AssertionError as error:
            raise AssertionError(f"{one.model.name}, {one.terms}:\n{plan.explain()}") from error


def _rank(rank: int, seeds: range) -> list[Any]:
    torch.set_num_threads(1)
    answers = []
    for _, task, draw in _draws(seeds):
        loss, grads = trained(task, _drawn_plan(task, draw, 2), rank)
        answers.append((loss, {n: g.numpy() for n, g in grads.items()}))
    return answers


@pytest.mark.slow
def test_drawn_losses_and_plans_on_two_ranks() -> None:
    seeds = range(100, 116)
    answers = run_ranks(2, _rank, seeds)
    for i, seed in enumerate(seeds):
        one = drawn(seed)
        wanted = plain(one.model)
        seen: set[str] = set()
        for loss, grads in (answer[i] for answer in answers):
            check_equal((loss, {n: torch.from_numpy(g) for n, g in grads.items()}), wanted)
            seen |= set(grads)
        assert seen == set(wanted[1]), one.terms


def test_a_batch_that_splits_in_two_and_not_in_four() -> None:
    """The rows of each half are taken together: what is said of two microbatches is not said of four."""

    def loss(module: nn.Module, batch: Any) -> Tensor:
        halves = module(batch["x"]).view(2, -1, 3)
        value: Tensor = halves.sum(1).square().mean()
        return value

    task = Task(Model("halves", nn.Linear(3, 3), loss, {"x": torch.randn(ROWS, 3)}), statistics="microbatch")
    assert task.statistics_in(2) == "batch"
    assert task.statistics_in(4) == "microbatch"
    check_equal(trained(task, plan_of(task, 2)), plain(task.model))


def test_rows_draw_their_own_numbers_whatever_a_plan_allows() -> None:
    task = Task(with_terms(("mean",), 5).model, statistics="microbatch")
    assert any(isinstance(module, nn.Dropout) for module in task.model.module.modules())
    plan = replace(plan_of(task, 4), statistics="microbatch")
    check_equal(trained(task, plan), plain(task.model))

"""Training under schedules with updates, in processes, beside plain PyTorch that follows the actions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from asynchronous import (
    ONE_RANK,
    OPTIMIZERS,
    REPLICATED,
    SCHEDULES,
    SEED,
    Reference,
    batch_of,
    model,
    plan_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from steps_on_ranks import allocated

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import Plan, parse_plan
from trainyard.job.run.config import TrainConfig, WorkerInput
from trainyard.job.run.errors import CheckpointError
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data import FunctionData, by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedule import Action, Schedule
from trainyard.job.schedules import check, make_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.simulation.memory import OLDER_WEIGHTS
from trainyard.job.task import Task

STEPS = 2


def lowered_of(schedule: str, optimizer: str = "sgd") -> Lowered:
    task = Task(model())
    plan = plan_of(task, SCHEDULES[schedule])
    return lower(task.program(plan.rows_per_microbatch), plan, OPTIMIZERS[optimizer])


def train(rank: int, schedule: str) -> list[Any]:
    """The parameters, losses and norms of one rank after some steps, for each optimizer."""
    found = []
    values = dict(model().module.named_parameters())
    for optimizer in OPTIMIZERS:
        executor = Executor(
            lowered_of(schedule, optimizer),
            rank,
            lambda path: values[path].detach(),
            torch.device("cpu"),
            SEED,
        )
        results = [executor.step(by_path(batch_of(step)), step) for step in range(STEPS)]
        assert not executor.older
        params = {path: value.numpy().copy() for path, value in executor.params.items()}
        found.append((params, [r.losses["loss:loss"] for r in results], [r.grad_norm for r in results]))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_processes_train_what_the_actions_say(schedule: str) -> None:
    verify(lowered_of(schedule))
    ranks = run_ranks(SCHEDULES[schedule].num_ranks, train, schedule)
    for i, optimizer in enumerate(OPTIMIZERS):
        reference = Reference(SCHEDULES[schedule], OPTIMIZERS[optimizer])
        wanted = [reference.period(batch_of(step), step) for step in range(STEPS)]
        for found in ranks:
            params, losses, norms = found[i]
            assert list(zip(losses, norms, strict=True)) == [pytest.approx(w, rel=1e-5) for w in wanted]
            for path, value in params.items():
                right = reference.params[path].detach()
                torch.testing.assert_close(torch.from_numpy(value), right, rtol=1e-5, atol=1e-6)
        assert {path for found in ranks for path in found[i][0]} == set(reference.params)


@st.composite
def one_rank_schedules(draw: st.DrawFn) -> Schedule:
    """Three stages of one rank in any order; an update may follow any backward pass."""
    num = draw(st.sampled_from((2, 3)))
    is_split = [draw(st.booleans()) for _ in range(3)]
    ready = [Action("F", 0, k) for k in range(num)]
    actions: list[Action] = []
    pending: dict[int, int] = {}
    halves: dict[int, int] = {0: 0, 1: 0, 2: 0}
    while ready:
        action = ready.pop(draw(st.integers(0, len(ready) - 1)))
        actions.append(action)
        stage, k = action.stage, action.microbatch
        if action.kind == "F":
            back = Action("I" if is_split[2] else "B", 2, k)
            ready.append(Action("F", stage + 1, k) if stage < 2 else back)
        elif action.kind in ("B", "I") and stage > 0:
            ready.append(Action("I" if is_split[stage - 1] else "B", stage - 1, k))
        if action.kind == "I":
            ready.append(Action("W", stage, k))
        halves[stage] += {"I": 1, "W": -1}.get(action.kind, 0)
        pending[stage] = pending.get(stage, 0) + (action.kind in ("B", "W"))
        if pending[stage] and not halves[stage] and draw(st.booleans()):
            actions.append(Action("U", stage))
            pending[stage] = 0
    actions += [Action("U", stage) for stage, count in pending.items() if count]
    return Schedule("drawn", 3, num, (tuple(actions),))


@settings(max_examples=5, deadline=None)
@given(schedule=one_rank_schedules())
def test_any_order_of_one_rank_trains_what_it_says(schedule: Schedule) -> None:
    check(schedule)
    task = task_of_layers()
    plan = plan_of(task, schedule)
    lowered = lower(task.program(plan.rows_per_microbatch), plan, OPTIMIZERS["sgd"])
    verify(lowered)
    values = dict(task.model.module.named_parameters())
    executor = Executor(lowered, 0, lambda path: values[path].detach(), torch.device("cpu"), SEED)
    result = executor.step(by_path(batch_of(0)), 0)
    assert not executor.older
    reference = Reference(schedule, OPTIMIZERS["sgd"])
    assert (result.losses["loss:loss"], result.grad_norm) == pytest.approx(
        reference.period(batch_of(0), 0), rel=1e-5
    )
    for path, value in executor.params.items():
        torch.testing.assert_close(value, reference.params[path].detach(), rtol=1e-5, atol=1e-6)


@cache
def task_of_layers() -> Task:
    return Task(model())


def test_the_text_form_reads_back() -> None:
    plan = plan_of(Task(model()), REPLICATED)
    text = plan.to_text()
    assert "1: 1F0 1F2 1B0 1U 1B2 1U 1F4 1B4 1U" in text
    assert parse_plan(text) == plan
    assert "Stage 1: 3 updates, by gradients of weights up to" in plan.explain()
    assert "Same loss as one device" not in plan.explain()


def test_a_run_goes_on_from_the_end_of_a_period(tmp_path: Path) -> None:
    task = Task(model())
    plan = plan_of(task, ONE_RANK)

    def trained(steps: int, folder: Path, resume: bool = False, plan: Plan = plan) -> list[float]:
        config = TrainConfig(steps, OPTIMIZERS["adamw"], folder, resume=resume)
        work = WorkerInput(task.model, plan, FunctionData(batch_of), config)
        said: list[Any] = []
        said += train_rank(work, prepare(work, task), 0, torch.device("cpu"), resume)
        return [step.losses["loss:loss"] for step in said[1:]]

    whole = trained(4, tmp_path / "whole")
    assert trained(2, tmp_path / "parts") + trained(4, tmp_path / "parts", resume=True) == whole
    once = replace(plan, schedule=make_schedule("breadth_first", 1, 6, 3))
    with pytest.raises(CheckpointError, match=r"schedule is one_rank of 6 .* there and not given here"):
        trained(5, tmp_path / "parts", resume=True, plan=once)


def test_older_weights_are_counted_in_memory() -> None:
    """All that a rank allocates while it is made and trains, beside what is simulated."""
    width = 256
    task = Task(model(width))
    plan = plan_of(task, ONE_RANK)
    lowered = lower(task.program(plan.rows_per_microbatch), plan, OPTIMIZERS["adamw"])
    simulation = simulate_plan(lowered, parse_cluster("1x1xA100-80G"))
    assert simulation.memory[0][OLDER_WEIGHTS] == simulation.memory[0]["parameters"]
    batches = [batch_of(step, width) for step in range(STEPS)]
    assert allocated(0, lowered, task.model, batches) == pytest.approx(simulation.tensor_bytes[0], rel=1e-3)

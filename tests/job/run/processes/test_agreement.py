"""Ranks that build the model and read the data by themselves, as under a launcher, must come to the same."""

from __future__ import annotations

from dataclasses import replace

import plans
import pytest
import torch

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Traffic
from trainyard.job.run.config import RankStep, WorkerInput
from trainyard.job.run.processes.fork_server import WorkerError, run_ranks
from trainyard.job.run.processes.worker import Ready, prepare, train_rank
from trainyard.job.run.step.data import FunctionData
from trainyard.job.task import Task
from trainyard.program.model import Model


def _built(seed: int) -> Model:
    torch.manual_seed(seed)
    return plans.MODEL()


def _batches_of(seed: int) -> FunctionData:
    def batch(step: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        drawn = torch.randint(128, (2, plans.ROWS, 16), generator=generator)
        return {"tokens": drawn[0], "targets": drawn[1]}

    return FunctionData(batch)


def _nudged(model: Model, by: float) -> Model:
    with torch.no_grad():
        model.module.get_parameter("blocks.1.norm_1.bias")[3] += by
    return model


def _with_constant(model: Model, value: float) -> Model:
    scale = torch.tensor(value)
    return replace(model, loss=lambda module, batch: model.loss(module, batch) * scale)


def _train(rank: int, unlike: str) -> list[float]:
    plan, other = plans.plan(data=2), rank if unlike else 0
    work = WorkerInput(_built(0), plan, plans.DATA_SOURCE, plans.config(2))
    if unlike == "values":
        work = replace(work, model=_built(other))
    elif unlike == "one number":
        work = replace(work, model=_nudged(_built(0), 1e-6 * other))
    elif unlike == "data":
        work = replace(work, data=_batches_of(other))
    elif unlike == "seed":
        work = replace(work, config=replace(work.config, seed=other))
    elif unlike == "plan":
        work = replace(work, plan=replace(plan, traffic=Traffic(40_000 + other)))
    elif unlike == "steps":
        work = replace(work, config=replace(work.config, steps=2 + other))
    elif unlike == "learning rate":
        work = replace(work, config=replace(work.config, optimizer=OptimizerConfig(lr=0.1 + other)))
    elif unlike == "a constant":
        model = _with_constant(_built(0), 1.0 + other)
        program = Task(model).program(plan.rows_per_microbatch)
        work = replace(work, model=model, plan=replace(plan, fingerprint=program.fingerprint))
    ready, *steps = train_rank(work, prepare(work), rank, torch.device("cpu"), resume=False)
    assert isinstance(ready, Ready)
    return [step.losses["loss:loss"] for step in steps if isinstance(step, RankStep)]


@pytest.mark.parametrize(
    ("unlike", "message"),
    [
        ("values", "InitialValueError: tokens.weight has other values on some ranks .* torch.manual_seed"),
        pytest.param(
            "one number",
            r"InitialValueError: blocks\.1\.norm_1\.bias has other values",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "data",
            "DataError: batch.tokens of step 0 is another on some ranks .* Seed random numbers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "a constant",
            r"InitialValueError: constant\._tensor_constant0 has other values",
            marks=[pytest.mark.slow, pytest.mark.long],
        ),
        pytest.param("seed", "PlanError: the ranks differ in their seed", marks=pytest.mark.slow),
        pytest.param("plan", "PlanError: the ranks differ in their plan", marks=pytest.mark.slow),
        pytest.param("steps", "PlanError: the ranks differ in their number of steps", marks=pytest.mark.slow),
        pytest.param(
            "learning rate", "PlanError: the ranks differ in their optimizer", marks=pytest.mark.slow
        ),
    ],
)
def test_ranks_that_begin_with_something_else_are_refused(unlike: str, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        run_ranks(2, _train, unlike)


def test_ranks_that_build_the_same_train() -> None:
    first, second = run_ranks(2, _train, "")
    assert first == second
    assert len(first) == 2

"""Steps in float16 are those of autocast and GradScaler of PyTorch: scaled, left out and doubled as there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import updates
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, parse_plan
from trainyard.job.run.checkpoint.saved import path_of, read_about
from trainyard.job.run.config import RankStep, TrainConfig, WorkerInput
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data import FunctionData, by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.loss_scale import LossScale
from trainyard.job.task import Task
from trainyard.program.model import Model

STEPS = 6
OPTIMIZER = OptimizerConfig("sgd", lr=0.1, momentum=0.5, clip_norm=0.5)
TOO_LARGE = 20.0
"""A factor of the loss with which gradients overflow until the scale was halved some times."""


def _loss(module: nn.Module, batch: Any) -> Tensor:
    return (batch["factor"][:, None] * (module(batch["x"]) - batch["y"]).square()).mean()


def _batch(step: int, factor: float) -> dict[str, Tensor]:
    return {**updates.batch(step), "factor": torch.full((updates.ROWS,), factor)}


@cache
def _task(factor: float) -> Task:
    model = Model("net", updates.model().module, _loss, _batch(0, factor))
    return Task(model, "float16", optimizer=OPTIMIZER)


def _plan(task: Task, **sizes: int) -> Plan:
    plan = updates.plan(**sizes)
    program = task.program(plan.rows_per_microbatch)
    return replace(plan, model=program.name, fingerprint=program.fingerprint, dtype="float16")


def _executor(task: Task, plan: Plan, rank: int = 0) -> Executor:
    values = {n: p.detach().clone() for n, p in task.model.module.named_parameters()}
    lowered = lower(task.program(plan.rows_per_microbatch), plan, task.optimizer)
    return Executor(lowered, rank, values.__getitem__, torch.device("cpu"))


def _ran(rank: int, texts: Sequence[str], factor: float) -> list[tuple[list[Any], dict[str, Tensor]]]:
    """Scales, whether there was an update, losses and norms by step, and this rank's parameters."""
    found = []
    for text in texts:
        executor = _executor(_task(factor), parse_plan(text), rank)
        steps = [executor.step(by_path(_batch(step, factor)), step) for step in range(STEPS)]
        masters = {name: state.master for name, state in executor.state.buckets.items()}
        told = [(s.loss_scale, s.is_finite, s.losses["loss:loss"], s.grad_norm) for s in steps]
        found.append((told, executor.state.local_tensors(masters)))
    return found


def _plain(factor: float) -> tuple[list[Any], dict[str, Tensor]]:
    """The same in plain PyTorch."""
    module = updates.model().module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    scaler, told = torch.amp.GradScaler("cpu"), []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = _loss(module, _batch(step, factor))
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(module.parameters(), 0.5))
        scaler.step(optimizer)
        scaler.update()
        told.append((scale, scaler.get_scale() >= scale, loss.item(), norm))
    return told, {name: p.detach() for name, p in module.named_parameters()}


PLANS: dict[int, list[dict[str, int]]] = {
    1: [{}, {"microbatches": 2}],
    2: [{"data": 2}, {"data": 2, "zero": 3}, {"tensor": 2}, {"pipeline": 2, "microbatches": 2}],
}


@pytest.mark.parametrize("factor", [0.05, TOO_LARGE], ids=["no overflow", "overflow"])
@pytest.mark.parametrize("num_ranks", PLANS)
def test_a_run_is_that_of_autocast_with_a_grad_scaler(num_ranks: int, factor: float) -> None:
    wanted, params = _plain(factor)
    num_updates = sum(is_finite for _, is_finite, _, _ in wanted)
    assert 0 < num_updates < STEPS if factor == TOO_LARGE else num_updates == STEPS
    texts = [_plan(_task(factor), **sizes).to_text() for sizes in PLANS[num_ranks]]
    by_rank = [_ran(0, texts, factor)] if num_ranks == 1 else run_ranks(num_ranks, _ran, texts, factor)
    for plan_of_rank in by_rank:
        for told, own in plan_of_rank:
            assert [each[:2] for each in told] == [each[:2] for each in wanted]
            for (*_, loss, norm), (*_, wanted_loss, wanted_norm) in zip(told, wanted, strict=True):
                assert loss == pytest.approx(wanted_loss, rel=2e-3)
                assert norm == pytest.approx(wanted_norm, rel=2e-3, nan_ok=True)
            for path, value in own.items():
                if value.shape == params[path].shape:
                    torch.testing.assert_close(value, params[path], rtol=2e-3, atol=2e-3)


def test_the_scale_changes_as_that_of_grad_scaler() -> None:
    """GradScaler tells how by its state: halved after each overflow, doubled after 2,000 steps in a row."""
    theirs = torch.amp.GradScaler("cpu")
    theirs.scale(torch.ones(()))
    ours = LossScale(torch.device("cpu"))
    parameter = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for step in range(4100):
        is_finite = step not in (3, 4, 2010)
        parameter.grad = torch.tensor(1.0 if is_finite else torch.inf)
        theirs.step(optimizer)
        theirs.update()
        ours.update(is_finite)
        assert (ours.value, float(ours.tensor)) == (theirs.get_scale(), theirs.get_scale()), step
    assert ours.num_finite == theirs._get_growth_tracker()


def test_a_resumed_run_goes_on_with_the_scale(tmp_path: Path) -> None:
    task = _task(TOO_LARGE)
    plan = _plan(task)

    def reports(steps: int, folder: Path | None, resume: bool = False) -> list[RankStep]:
        config = TrainConfig(steps, OPTIMIZER, folder, resume=resume)
        work = WorkerInput(task.model, plan, FunctionData(lambda step: _batch(step, TOO_LARGE)), config)
        said: list[Any] = []
        said += train_rank(work, prepare(work, task), 0, torch.device("cpu"), resume)
        return said[1:]

    whole = reports(STEPS, None)
    rest = reports(4, tmp_path) + reports(STEPS, tmp_path, resume=True)
    assert [s.loss_scale for s in whole] == [2.0**16, 2.0**15, 2.0**14, *3 * [2.0**13]]
    assert [(s.loss_scale, s.skipped, s.losses) for s in rest] == [
        (s.loss_scale, s.skipped, s.losses) for s in whole
    ]
    assert read_about(path_of(tmp_path, STEPS)).numbers["loss_scale"] == {"value": 2.0**13, "num_finite": 3}

"""Runs of a tiny model as one rank in the test's own process, by the function that worker processes call."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.run.config import RankStep, TrainConfig, WorkerInput
from trainyard.job.run.processes.worker import Prepared, Ready, prepare, train_rank
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.step.data_source import Source, as_data
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model

ROWS = 4
OPTIMIZER = OptimizerConfig(lr=0.01)


class Net(nn.Module):
    """With buffers that a step writes, one that is infinite, and what no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        self.register_buffer("limit", torch.tensor(torch.inf))
        self.register_buffer("notes", torch.arange(3))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).minimum(self.limit)


def model() -> Model:
    """The same whenever it is built."""
    torch.manual_seed(0)
    example = {"x": torch.zeros(ROWS, 3), "y": torch.zeros(ROWS, 2)}
    return Model("net", Net(), lambda m, b: nn.functional.mse_loss(m(b["x"]), b["y"]), example)


def batch(step: int) -> dict[str, torch.Tensor]:
    """Drawn from the step."""
    generator = torch.Generator().manual_seed(step)
    return {"x": torch.randn(ROWS, 3, generator=generator), "y": torch.randn(ROWS, 2, generator=generator)}


@cache
def _prepared() -> tuple[WorkerInput, Prepared]:
    task = Task(model())
    plan = Plan("net", task.program(ROWS).fingerprint, "local", ROWS, make_schedule("one_f_one_b", 1, 1))
    work = WorkerInput(task.model, plan, FunctionData(batch), TrainConfig(2))
    prepared = prepare(work, task)
    # A process of its own may write into the model's buffers; here many runs share them.
    return work, replace(prepared, values=lambda path: prepared.values(path).clone())


def run(
    folder: Path | None,
    steps: int,
    resume: bool = False,
    data: Source = batch,
    **options: Any,
) -> tuple[Ready, list[RankStep]]:
    """Train; returns what the rank said when it was ready, and of every step."""
    known, prepared = _prepared()
    asked = {"optimizer": OPTIMIZER, "checkpoint": folder, **options}
    config = TrainConfig(steps, resume=resume, **asked)
    work = WorkerInput(known.model, known.plan, as_data(data, ROWS, config.seed), config)
    prepared = replace(prepared, lowered=replace(prepared.lowered, optimizer=work.config.optimizer))
    said: list[Any] = [*train_rank(work, prepared, 0, torch.device("cpu"), resume)]
    return said[0], said[1:]

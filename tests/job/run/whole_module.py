"""A module with all that a state dict may have: tied weights, buffers of both kinds, a number, an unused parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from made_plan import made_plan
from torch import Tensor, nn

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.run.config import TrainConfig, WorkerInput
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data import FunctionData
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.program.placement import Shard

ROWS, VOCABULARY, WIDTH = 4, 12, 8
TIED = ("tokens.weight", "head.weight")


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)  # with num_batches_tracked, a number without dimensions
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.unused = nn.Parameter(torch.arange(3.0))
        self.register_buffer("scale", torch.full((WIDTH,), 1.5), persistent=False)
        self.register_buffer("offset", torch.linspace(0, 1, WIDTH, dtype=torch.float64).float())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) * self.scale + self.offset
        return self.head(self.norm(x))


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(module(batch["tokens"]).float(), batch["targets"])


def batch(step: int) -> dict[str, Tensor]:
    drawn = torch.randint(0, VOCABULARY, (2, ROWS), generator=torch.Generator().manual_seed(step))
    return {"tokens": drawn[0], "targets": drawn[1]}


DATA = FunctionData(batch)


def model(dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    return Model("whole", Whole().to(dtype), loss, batch(0))


def plan(task: Task, pipeline: int = 1, tensor: int = 1, **how: Any) -> Plan:
    """A plan by its sizes; the tensor axis cuts the tied weight, and two stages both have it."""
    placed = {"tensor": {"tokens.weight": Shard(0)}} if tensor > 1 else {}
    starts, schedule = ["norm:add"][: pipeline - 1], make_schedule("one_f_one_b", pipeline, 1)
    return made_plan(
        task.program(ROWS),
        ROWS,
        schedule,
        tensor=tensor,
        starts=starts,
        placed=placed,
        bucket_bytes=100,
        **how,
    )


def trained(folder: Path, steps: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Model, Path]:
    """Train as one rank in this process; return a new copy of the model, and the folder of checkpoints."""
    own = model(dtype)
    train_here(own, plan(Task(own)), DATA, config(steps, folder))
    return model(dtype), folder


def train_here(model: Model, plan: Plan, data: FunctionData, config: TrainConfig) -> None:
    """Train as one rank in this process."""
    work = WorkerInput(model, plan, data, config)
    assert [*train_rank(work, prepare(work), 0, torch.device("cpu"), False)]


def config(steps: int, folder: Path | None = None, **options: Any) -> TrainConfig:
    return TrainConfig(steps, OptimizerConfig("sgd", lr=0.5), checkpoint=folder, **options)


def expected(steps: int = 3) -> dict[str, Tensor]:
    """The state dict after plain training in this process."""
    module = model().module.train()
    optimizer = torch.optim.SGD([p for n, p in module.named_parameters() if n != "unused"], 0.5)
    for step in range(steps):
        optimizer.zero_grad()
        loss(module, batch(step)).backward()
        optimizer.step()
    return module.state_dict()

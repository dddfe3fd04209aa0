"""A model whose batches have several lengths, and its training by plain PyTorch on the same padded batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from made_plan import made_plan
from torch import Tensor, nn

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.run.config import RankStep, TrainConfig, WorkerInput
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data_source import Source, as_data
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.lengths import Lengths
from trainyard.program.model import Model

ROWS, VOCABULARY, WIDTH = 4, 11, 8
LENGTHS = Lengths((8, 4), pad={"tokens": 0, "labels": -100})
OF_STEPS = (3, 7, 4, 8)
PADDED = (4, 8, 4, 8)
OPTIMIZER = OptimizerConfig("adamw", lr=0.01, eps=1e-4)


class Net(nn.Module):
    """What a position computes depends on those before it, so that other positions change with the length."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(8, WIDTH))
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        x = x + torch.relu(self.first(x)).cumsum(1)
        return self.head(x + torch.relu(self.second(x)))


class Counting(Net):
    """With a buffer that every step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.add_((tokens > 0).sum())
        return super().forward(tokens) + 0.01 * self.seen


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores = module(batch["tokens"]).flatten(0, 1)
    return nn.functional.cross_entropy(scores, batch["labels"].flatten(), ignore_index=-100)


def batch(step: int) -> dict[str, Tensor]:
    """As long as its step says; not every row has as many labels."""
    length, generator = OF_STEPS[step % 4], torch.Generator().manual_seed(step)
    drawn = torch.randint(1, VOCABULARY, (2, ROWS, length), generator=generator)
    drawn[1, :3, -1] = -100
    return {"tokens": drawn[0], "labels": drawn[1]}


def model(kind: type[Net] = Net, lengths: Lengths | None = LENGTHS) -> Model:
    torch.manual_seed(1)
    return Model("net", kind(), loss, batch(0), lengths=lengths)


def plan(task: Task, data: int = 1, pipeline: int = 1, microbatches: int = 1, zero: int = 0) -> Plan:
    starts, schedule = ["second:view"][: pipeline - 1], make_schedule("one_f_one_b", pipeline, microbatches)
    program = task.program(ROWS // microbatches)
    return made_plan(program, ROWS, schedule, data=data, starts=starts, zero=zero, bucket_bytes=300)


def expected(steps: int, kind: type[Net] = Net) -> tuple[dict[str, Tensor], list[float]]:
    """Values and losses of plain PyTorch on batches that are padded by its own function."""
    module, losses = model(kind).module.train(), []
    params = [p for n, p in module.named_parameters() if not n.startswith("unused")]
    optimizer = torch.optim.AdamW(params, lr=0.01, eps=1e-4, weight_decay=0.0)
    for step in range(steps):
        size, own = PADDED[step % 4], batch(step)
        padded = {
            n: nn.functional.pad(t, (0, size - t.shape[1]), value=LENGTHS.pad[n]) for n, t in own.items()
        }
        optimizer.zero_grad()
        value = loss(module, padded)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return {**module.state_dict()}, losses


def trained(
    rank: int,
    steps: int,
    how: Mapping[str, int],
    data: Source = batch,
    kind: type[Net] = Net,
    lengths: Lengths = LENGTHS,
    **options: Any,
) -> tuple[dict[str, Tensor], list[RankStep]]:
    """Train as one rank of this process; the values at the end, whole, and all steps."""
    task = Task(model(kind, lengths))
    config = TrainConfig(steps, **{"optimizer": OPTIMIZER, **options})
    work = WorkerInput(task.model, plan(task, **how), as_data(data, ROWS), config)
    found: dict[str, Tensor] = {}
    said: list[Any] = [
        *train_rank(
            *(work, prepare(work, task), rank, torch.device("cpu"), config.resume),
            take_trained=lambda tensors: found.update((n, t.clone()) for n, t in tensors),
        )
    ]
    return {name.partition("/")[2]: value for name, value in found.items()}, said[1:]

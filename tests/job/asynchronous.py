"""What training under a schedule with updates means, in plain PyTorch: one process, the whole model, and the actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from made_plan import made_plan
from torch import Tensor, nn
from torch.func import functional_call

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.schedule import Action, Schedule, parse_schedule
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.program.random.positional import PositionalDraws

SEED, ROWS, WIDTH = 3, 12, 8

REPLICATED = parse_schedule(
    """replicated stages=3 microbatches=6
    0: 0F0 0F1 0F2 0F3 0B0 0U 0B1 0U 0F4 0B2 0U 0F5 0B3 0U 0B4 0U 0B5 0U
    1: 1F0 1F2 1B0 1U 1B2 1U 1F4 1B4 1U
    2: 1F1 1F3 1B1 1U 1B3 1U 1F5 1B5 1U
    3: 2F0 2B0 2U 2F1 2B1 2U 2F2 2B2 2F3 2B3 2U 2F4 2B4 2U 2F5 2B5 2U"""
)
"""Two ranks take the microbatches of the middle stage in turn; one update of the last stage is of two microbatches."""

ONE_RANK = parse_schedule(
    """one_rank stages=3 microbatches=6
    0: 0F0 1F0 2F0 0F1 1F1 2F1 2B0 2U 1B0 1U 0B0 0U 0F2 1F2 2F2 2B1 2U 1B1 1U 0B1 0U 0F3 1F3 2F3 2B2 2U 1B2 1U 0B2 0U \
    2B3 2U 1B3 1U 0B3 0U 0F4 1F4 2F4 2B4 2U 1B4 1U 0B4 0U 0F5 1F5 2F5 2B5 2U 1B5 1U 0B5 0U"""
)
"""Three stages of one rank with up to two versions each."""

SCHEDULES = {"pipedream": make_schedule("pipedream", 3, 6), "replicated": REPLICATED}
STAGE_OF = {"0": 0, "2": 1, "4": 1, "6": 2}
"""The stage of each layer."""

OPTIMIZERS = {
    "sgd": OptimizerConfig("sgd", lr=0.1, momentum=0.9, weight_decay=0.1, clip_value=0.05),
    "adamw": OptimizerConfig("adamw", lr=0.01, eps=1e-3, warmup_steps=4, lr_schedule="linear", lr_steps=6),
}


def model(width: int = WIDTH) -> Model:
    """Four layers with dropout between them."""
    torch.manual_seed(1)
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.Tanh())]
    net = nn.Sequential(*layers[:-1], nn.Dropout(0.2), nn.Linear(width, width))
    return Model("layers", net, _loss, batch_of(0, width))


def _loss(module: nn.Module, batch: Any) -> Tensor:
    return (module(batch["x"]) - batch["y"]).square().mean()


def batch_of(step: int, width: int = WIDTH) -> dict[str, Tensor]:
    """The rows of a period."""
    x, y = torch.randn(2, ROWS, width, generator=torch.Generator().manual_seed(step))
    return {"x": x, "y": y}


def plan_of(task: Task, schedule: Schedule) -> Plan:
    """The layers on the ranks of a schedule."""
    program = task.program(ROWS // schedule.num_microbatches)
    products, tanh = (
        [address(n) for n in program.graph.nodes if n.target is op]
        for op in (torch.ops.aten.addmm.default, torch.ops.aten.tanh.default)
    )
    # The backward pass computes the activations again: with the weights of its forward pass.
    again = (*products[1:], *tanh)
    return made_plan(
        program, ROWS, schedule, starts=(products[1], products[3]), bucket_bytes=300, recompute=again
    )


@dataclass
class Reference:
    """Runs the actions of a schedule on whole copies of the model."""

    schedule: Schedule
    optimizer: OptimizerConfig
    model: Model = field(default_factory=model)

    def __post_init__(self) -> None:
        self.params = dict(self.model.module.named_parameters())
        self.stage_of = {path: STAGE_OF[path.split(".")[0]] for path in self.params}
        self.inner = {stage: self._optimizer(stage) for stage in range(self.schedule.num_stages)}
        self.num_updates = dict.fromkeys(self.inner, 0)

    def _optimizer(self, stage: int) -> torch.optim.Optimizer:
        own, config = list(self._of(stage).values()), self.optimizer
        if config.name == "sgd":
            return torch.optim.SGD(own, config.lr, config.momentum, weight_decay=config.weight_decay)
        return torch.optim.AdamW(own, config.lr, config.betas, config.eps, weight_decay=config.weight_decay)

    def _of(self, stage: int) -> dict[str, Tensor]:
        return {path: p for path, p in self.params.items() if self.stage_of[path] == stage}

    def period(self, batch: Mapping[str, Tensor], step: int) -> tuple[float, float]:
        """One run of the schedule: the loss, and the norm of the gradients."""
        began: dict[int, dict[str, Tensor]] = {}
        grads: dict[int, dict[str, Tensor]] = {}
        summed: dict[int, list[dict[str, Tensor]]] = {stage: [] for stage in self.inner}
        losses: list[float] = []
        squares: dict[int, list[float]] = {stage: [] for stage in self.inner}
        for action in self._in_order():
            stage, k = action.stage, action.microbatch
            if action.kind == "F":
                own = {path: p.detach().clone().requires_grad_() for path, p in self._of(stage).items()}
                began.setdefault(k, {}).update(own)
            elif action.kind in ("B", "I", "W"):
                if k not in grads:
                    grads[k] = self._gradients(began[k], batch, step, k, losses)
                summed[stage] += [] if action.kind == "I" else [grads[k]]
            else:
                squares[stage].append(self._update(stage, summed[stage]))
                summed[stage] = []
        norm = math.sqrt(sum(sum(s) / len(s) for s in squares.values()))
        return sum(losses) / len(losses), norm

    def _gradients(
        self, params: dict[str, Tensor], batch: Mapping[str, Tensor], step: int, k: int, losses: list[float]
    ) -> dict[str, Tensor]:
        size = ROWS // self.schedule.num_microbatches
        part = {name: value[k * size : (k + 1) * size] for name, value in batch.items()}
        with PositionalDraws(torch.tensor([SEED, step, k * size]), size):
            loss = self.model.loss(lambda x: functional_call(self.model.module, params, x), part)
        losses.append(loss.item())
        return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))

    def _update(self, stage: int, terms: list[dict[str, Tensor]]) -> float:
        """Update with the mean of gradients; the square of its norm."""
        for path, param in self._of(stage).items():
            param.grad = torch.stack([term[path] for term in terms]).mean(0)
        self.num_updates[stage] += 1
        for group in self.inner[stage].param_groups:
            group["lr"] = self.optimizer.lr * self._factor(stage)
        square = sum(float(param.grad.square().sum()) for param in self._of(stage).values())
        if self.optimizer.clip_value:
            torch.nn.utils.clip_grad_value_(self._of(stage).values(), self.optimizer.clip_value)
        self.inner[stage].step()
        return square

    def _factor(self, stage: int) -> float:
        """The rate of this update: linear in the steps, each of which has several updates of a stage."""
        config, update = self.optimizer, self.num_updates[stage]
        if update <= config.warmup_steps:
            return update / config.warmup_steps
        if config.lr_schedule == "constant":
            return 1.0
        counts = (sum((a.kind, a.stage) == ("U", stage) for a in own) for own in self.schedule.actions)
        last = config.lr_steps * max(counts)
        return 1.0 - (update - 1 - config.warmup_steps) / (last - config.warmup_steps)

    def _in_order(self) -> Iterator[Action]:
        """The actions of all ranks, each after those whose results it needs; a joint update once."""
        position = [0] * self.schedule.num_ranks
        done: set[tuple[str, int, int]] = set()
        while any(at < len(own) for at, own in zip(position, self.schedule.actions, strict=True)):
            ready = [r for r in range(len(position)) if self._may_run(r, position, done)]
            action = self.schedule.actions[ready[0]][position[ready[0]]]
            together = [ready[0]]
            if action.kind == "U":
                together = [r for r, own in enumerate(self.schedule.actions) if action in own]
            for rank in together:
                position[rank] += 1
            done.add((action.kind, action.stage, action.microbatch))
            yield action

    def _may_run(self, rank: int, position: list[int], done: set[tuple[str, int, int]]) -> bool:
        own = self.schedule.actions[rank]
        if position[rank] == len(own):
            return False
        action = own[position[rank]]
        if action.kind == "U":
            others = [(r, a) for r, a in enumerate(self.schedule.actions) if action in a]
            return all(a[position[r] : position[r] + 1] == (action,) for r, a in others)
        neighbour = action.stage + (-1 if action.kind == "F" else 1)
        makers = {(kind, neighbour, action.microbatch) for kind in ("F" if action.kind == "F" else "BI")}
        inside = 0 <= neighbour < self.schedule.num_stages
        return not inside or action.kind == "W" or not makers.isdisjoint(done)

"""Plans on two ranks of one axis train as one device does, whatever stages, rows and placements share that axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made_plan import made_plan
from one_step import SEED, plain
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import Axes, Mesh, Plan, Stage, State, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data import by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.program.placement import Shard
from trainyard.program.spmd import take_part

WIDTH, ROWS = 8, 8


class Tied(nn.Module):
    """Each of two stages uses all of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = F.dropout(torch.tanh(x @ self.w), 0.2)
        return hidden @ self.w


class SignedZeros(nn.Module):
    """Layers that are equal but for the sign of a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer, zero in zip(self.layers, (0.0, 0.0, -0.0, 0.0), strict=True):
            x = torch.tanh(layer(x)) + torch.atan(1 / torch.full_like(x, zero))
        return x


class ViewedEarly(nn.Module):
    """A view of a parameter is taken long before it is used, so a stage without the parameter has its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.unsqueeze(0)
        result: Tensor = self.b(torch.tanh(self.a(x)) * scale)
        return result


class WritesOnly(nn.Module):
    """Writes a buffer that it never reads, and adds a slice of nothing."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.a(x))
        self.seen.copy_(hidden.detach().mean(0))
        result: Tensor = self.b(torch.cat((hidden, hidden[:, :0]), 1))
        return result


MODULES: dict[str, Callable[[], nn.Module]] = {
    "signed zeros": SignedZeros,
    "tied": Tied,
    "viewed early": ViewedEarly,
    "writes only": WritesOnly,
}


def plan_of(
    name: str,
    starts: Sequence[str],
    rows: Sequence[Axes],
    cut: Mapping[str, Shard],
    summed: Axes,
    microbatches: int = 2,
) -> Plan:
    """Stages on one pair of ranks."""
    program = task_of(name).program(ROWS // microbatches)
    schedule = make_schedule("interleaved", 1, microbatches, len(rows))
    plan = made_plan(program, ROWS, schedule, starts=starts)
    mesh = Mesh.of(a=2)
    stages = tuple(Stage(s.start, mesh, own) for s, own in zip(plan.stages, rows, strict=True))
    return replace(plan, stages=stages, state=State(summed)).with_placements("a", cut)


@cache
def task_of(name: str) -> Task:
    torch.manual_seed(0)
    batch = {"x": torch.randn(ROWS, WIDTH), "y": torch.randn(ROWS, WIDTH)}
    return Task(Model(name, MODULES[name](), lambda m, b: F.mse_loss(m(b["x"]), b["y"]), batch))


PLANS = {
    "rows divided in the first stage": lambda: plan_of("viewed early", ["b:t"], (("a",), ()), {}, ("a",)),
    "rows divided in the last stage": lambda: plan_of("viewed early", ["b:t"], ((), ("a",)), {}, ("a",)),
    "cut, tied in two stages of a rank": lambda: plan_of("tied", [":mm.2"], ((), ()), {"w": Shard(1)}, ()),
    "cut, with a gradient in a stage without its value": lambda: plan_of(
        "viewed early", [":mul"], ((), ()), {"scale": Shard(0)}, ()
    ),
    "writes what it does not read": lambda: plan_of("writes only", ["b:t"], (("a",), ("a",)), {}, ("a",), 1),
    "equal but for the sign of a zero": lambda: plan_of(
        "signed zeros", [f"layers.{i}:t" for i in (1, 2, 3)], (("a",),) * 4, {}, ("a",)
    ),
}


def train(rank: int, texts: list[str]) -> list[Any]:
    """Of every plan the loss, the norm of the gradients, and this rank's gradients."""
    found = []
    for plan in map(parse_plan, texts):
        task = task_of(plan.model)
        lowered = lower(task.program(plan.rows_per_microbatch), plan)
        initial = {path: value.detach() for path, value in task.model.module.state_dict().items()}
        executor = Executor(lowered, rank, initial.__getitem__, torch.device("cpu"), SEED)
        result = executor.step(by_path(task.model.batch), 0)
        state = executor.state
        grads = state.local_tensors(dict(zip(state.buckets, state.gradients(state.buckets), strict=True)))
        found.append(
            (result.losses["loss:loss"], result.grad_norm, {p: g.numpy().copy() for p, g in grads.items()})
        )
    return found


@cache
def trained() -> dict[str, tuple[Any, ...]]:
    by_rank = run_ranks(2, train, [plan().to_text() for plan in PLANS.values()])
    return dict(zip(PLANS, zip(*by_rank, strict=True), strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_it_trains_as_one_device_does(name: str) -> None:
    plan = PLANS[name]()
    task = task_of(plan.model)
    lowered = lower(task.program(plan.rows_per_microbatch), plan)
    verify(lowered)
    loss, wanted = plain(task.model)
    norm = torch.cat([grad.flatten() for grad in wanted.values()]).norm().item()
    for rank, (own_loss, own_norm, grads) in enumerate(trained()[name]):
        assert own_loss == pytest.approx(loss, rel=1e-5)
        assert own_norm == pytest.approx(norm, rel=1e-5)
        assert grads.keys() == wanted.keys()
        for path, grad in grads.items():
            placement = lowered.params[path].placements["a"]
            whole = wanted[path]
            part = take_part(whole, rank, placement.dim, 1, 2) if isinstance(placement, Shard) else whole
            torch.testing.assert_close(torch.from_numpy(grad), part, rtol=1e-5, atol=1e-6)

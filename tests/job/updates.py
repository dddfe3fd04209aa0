"""Updates under plans, beside those of plain PyTorch: a small model, its plans, and how far both are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from made_plan import made_plan
from one_step import own_part
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data import by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.program.placement import parse_placement

ROWS, STEPS = 8, 7
_ADAMW = OptimizerConfig()
AfterBackward = Callable[[int], None]
Plain = Callable[[nn.Module], AfterBackward]
"""Makes the optimizer of a module in plain PyTorch, and returns what follows the backward pass of a step."""

PLANS: dict[str, dict[str, int]] = {
    "one": {},
    "microbatches": {"microbatches": 2},
    "data": {"data": 2},
    "zero1": {"data": 2, "zero": 1, "microbatches": 2},
    "zero2": {"data": 2, "zero": 2, "microbatches": 2},
    "zero3": {"data": 2, "zero": 3},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2, "microbatches": 2},
    "data x tensor, zero3": {"data": 2, "tensor": 2, "zero": 3},
    "data x pipeline, zero1": {"data": 2, "pipeline": 2, "zero": 1, "microbatches": 2},
}
_MEGATRON = {"first.weight": "S0", "first.bias": "S0", "last.weight": "S1"}


class Net(nn.Module):
    """A norm and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.norm(x))))


def model() -> Model:
    """The same whenever it is built."""
    torch.manual_seed(2)
    return Model("net", Net(), _loss, batch(0))


def _loss(module: nn.Module, batch: Any) -> Tensor:
    return 3.0 * (module(batch["x"]) - batch["y"]).square().mean()


def batch(step: int) -> dict[str, Tensor]:
    """The rows of a step."""
    generator = torch.Generator().manual_seed(step)
    return {"x": torch.randn(ROWS, 6, generator=generator), "y": torch.randn(ROWS, 4, generator=generator)}


@cache
def task(optimizer: OptimizerConfig = _ADAMW) -> Task:
    return Task(model(), optimizer=optimizer)


def plan(data: int = 1, tensor: int = 1, pipeline: int = 1, microbatches: int = 1, zero: int = 0) -> Plan:
    """A plan by its sizes."""
    program = task().program(ROWS // microbatches)
    products = [address(n) for n in program.graph.nodes if n.target is torch.ops.aten.addmm.default]
    cut = {path: parse_placement(text) for path, text in _MEGATRON.items()}
    return made_plan(
        program,
        ROWS,
        make_schedule("one_f_one_b", pipeline, microbatches, 1),
        data=data,
        tensor=tensor,
        zero=zero,
        starts=products[1:2] if pipeline > 1 else (),
        placed={"tensor": cut} if tensor > 1 else {},
    )


def trained(optimizer: OptimizerConfig, plan: Plan, rank: int = 0, steps: int = STEPS) -> Executor:
    """A rank after some steps."""
    work = task(optimizer)
    values = {n: p.detach().clone() for n, p in work.model.module.named_parameters()}
    lowered = lower(work.program(plan.rows_per_microbatch), plan, work.optimizer)
    executor = Executor(lowered, rank, values.__getitem__, torch.device("cpu"))
    for step in range(steps):
        assert executor.step(by_path(batch(step)), step).is_finite
    return executor


def plain_params(plain: Plain, steps: int = STEPS) -> dict[str, Tensor]:
    """The parameters after the same steps in plain PyTorch."""
    module = model().module
    follow = plain(module)
    for step in range(steps):
        module.zero_grad()
        _loss(module, batch(step)).backward()
        follow(step)
    return {n: p.detach() for n, p in module.named_parameters()}


def difference(executor: Executor, flats: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest difference of this rank's parts from whole tensors, in terms of the largest element of each."""
    found = executor.state.local_tensors(flats)
    assert found
    return max(
        float((value - own_part(executor, path, wanted[path])).abs().max() / wanted[path].abs().max())
        for path, value in found.items()
    )


def params_difference(executor: Executor, plain: Plain) -> float:
    """How far a rank's parameters are from those of plain PyTorch; relative."""
    masters = {name: state.master for name, state in executor.state.buckets.items()}
    return difference(executor, masters, plain_params(plain))


Case = tuple[OptimizerConfig, Plain]


def differences(plans: Sequence[str], cases: Sequence[Case]) -> dict[tuple[str, int], float]:
    """How far every case is from plain PyTorch under every plan of equally many ranks: the worst rank's."""
    texts = [plan(**PLANS[name]).to_text() for name in plans]
    num_ranks = parse_plan(texts[0]).num_ranks
    by_rank = [_rank(0, texts, cases)] if num_ranks == 1 else run_ranks(num_ranks, _rank, texts, cases)
    keys = [(name, i) for name in plans for i in range(len(cases))]
    return {key: max(own) for key, *own in zip(keys, *by_rank, strict=True)}


def _rank(rank: int, texts: Sequence[str], cases: Sequence[Case]) -> list[float]:
    return [
        params_difference(trained(optimizer, parse_plan(text), rank), plain)
        for text in texts
        for optimizer, plain in cases
    ]

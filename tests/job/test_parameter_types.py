"""Parameters that a model has in 16 bits: trained in their own types, with float32 copies that the optimizer updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import lower
from trainyard.job.lower.verify import verify
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, parse_plan
from trainyard.job.planning import plan_task
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.run.train import train
from trainyard.job.simulation.memory import state_bytes
from trainyard.job.task import Task
from trainyard.processes import ProcessLimits
from trainyard.program.capture_error import CaptureError
from trainyard.program.model import Model

ROWS, WIDTH, STEPS = 8, 32, 4
OPTIMIZER = OptimizerConfig("sgd", lr=0.1, momentum=0.9, warmup_steps=0, clip_norm=0.0)
STRATEGIES = ("data_parallel", "zero(stage=1)", "zero(stage=3)", "gpipe(microbatches=2)", "auto")


class Block(nn.Module):
    """A layer of any type that takes and gives float32, as models write it that mix types."""

    def __init__(self, dtype: torch.dtype, is_frozen: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, dtype=dtype).requires_grad_(not is_frozen)
        self.adapter = nn.Linear(WIDTH, WIDTH, bias=False) if is_frozen else None

    def forward(self, x: Tensor) -> Tensor:
        made = self.base(x.to(self.base.weight.dtype)).to(x.dtype)
        return x + torch.tanh(made if self.adapter is None else made + self.adapter(x))


HALF = torch.bfloat16
MODULES: dict[str, Callable[[], nn.Module]] = {
    "all": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(HALF),
    "norm": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).to(
        HALF
    ),
    "one layer": lambda: nn.Sequential(*(Block(d) for d in (torch.float32, HALF, torch.float32))),
    "adapters": lambda: nn.Sequential(Block(HALF, is_frozen=True), Block(HALF, is_frozen=True)),
    "adapters of float16": lambda: nn.Sequential(*(Block(torch.float16, is_frozen=True) for _ in range(2))),
}
MODULES["loss in bfloat16"] = MODULES["all"]
# How near losses are to plain PyTorch's where microbatches or ranks round their parts of gradients, as
# docs/exact.md says: a loss computed in bfloat16 may be one of its numbers further.
NEAR = {name: 2**-7 if name == "loss in bfloat16" else 1e-3 for name in MODULES}
NEAR_WEIGHTS = 5e-3


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    first = next(module.parameters())
    x = batch["x"].to(first.dtype) if isinstance(module[0], nn.Linear) else batch["x"]  # type: ignore[index]
    return F.mse_loss(module(x).float(), batch["y"])


def loss_in_bfloat16(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(module(batch["x"].to(HALF)), batch["y"].to(HALF))


def data(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(ROWS, WIDTH, generator=generator) for name in ("x", "y")}


@cache
def model(name: str) -> Model:
    torch.manual_seed(0)
    return Model(name, MODULES[name](), loss_in_bfloat16 if name == "loss in bfloat16" else loss, data(0))


@cache
def one_device(name: str) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of plain PyTorch, and the float32 copies that it updates."""
    module = copy.deepcopy(model(name).module)
    copies = {n: p.detach().float().clone() for n, p in module.named_parameters() if p.requires_grad}
    update = torch.optim.SGD(copies.values(), OPTIMIZER.lr, OPTIMIZER.momentum)
    losses = []
    for step in range(STEPS):
        module.zero_grad()
        value = model(name).loss(module, data(step))
        value.backward()
        losses.append(value.item())
        for path, kept in copies.items():
            grad = module.get_parameter(path).grad
            assert grad is not None
            kept.grad = grad.float()
        update.step()
        with torch.no_grad():
            for path, kept in copies.items():
                module.get_parameter(path).copy_(kept)
    return losses, copies


@cache
def plan_of(name: str, strategies: str, num_ranks: int) -> Plan:
    place = parse_cluster(f"1x{num_ranks}xA100-80G")
    return plan_task(Task(model(name)), place, strategies, all_devices=True).plan


def trained(name: str, plan: Plan, rank: int = 0) -> tuple[list[float], Mapping[str, Tensor], str]:
    """Losses, the rank's float32 copies that lie whole on it, and what of the types and bytes is wrong."""
    whole = model(name)
    lowered = lower(Task(whole).program(plan.rows_per_microbatch), plan, OPTIMIZER)
    verify(lowered)
    executor = Executor(lowered, rank, initial_values(whole, 0), torch.device("cpu"))
    steps = [executor.step({f"batch.{k}": v for k, v in data(i).items()}, i) for i in range(STEPS)]
    state, wrong = executor.state, ""
    own = {path: p.dtype for path, p in whole.module.named_parameters()}
    if any(value.dtype != own[path] for path, value in executor.params.items()):
        wrong += f"types { ({path: value.dtype for path, value in executor.params.items()}) } "
    kept = {
        "parameters": sum(
            b.master.nbytes for b in state.buckets.values() if b.weights is None or b.bucket.is_converted
        )
        + sum(t.nbytes for t in executor.params.values())
        + sum(f.part.nbytes for f in state.frozen.values()),
        "gradients": sum(b.grads.nbytes for b in state.buckets.values()),
    }
    predicted = state_bytes(lowered, list(executor.stages))
    if any(kept[kind] != predicted[kind] for kind in kept):
        wrong += f"bytes {kept} are predicted as {predicted}"
    copies = state.local_tensors({bucket: each.master for bucket, each in state.buckets.items()})
    copies = {
        path: value for path, value in copies.items() if value.shape == whole.module.get_parameter(path).shape
    }
    return [step.losses["loss:loss"] for step in steps], copies, wrong


def check(
    name: str, found: tuple[list[float], Mapping[str, Tensor], str], rel: float, weights_rel: float
) -> None:
    losses, copies = one_device(name)
    assert not found[2]
    assert found[0] == pytest.approx(losses, rel=rel)
    for path, value in found[1].items():
        assert value.dtype == torch.float32
        assert float((value - copies[path]).norm() / copies[path].norm()) < weights_rel, path


@pytest.mark.parametrize("name", MODULES)
def test_one_rank_trains_as_plain_pytorch_with_float32_copies(name: str) -> None:
    plan = plan_of(name, "data_parallel", 1)
    # PyTorch's CPU kernel adds up the gradients of a norm's weights in 16 bits; here they are added in float32.
    near = (NEAR[name], NEAR_WEIGHTS) if name == "norm" else (1e-6, 5e-6)
    check(name, trained(name, plan), *near)
    short = sum(p.dtype != torch.float32 for p in model(name).module.parameters())
    told = next(reason for reason in plan.reasons if "Not in float32" in reason)
    assert told.startswith(f"Not in float32: {short} of ")
    assert ("float32 copies" in told) == (not name.startswith("adapters"))


@pytest.mark.parametrize("name", MODULES)
def test_microbatches_train_the_same(name: str) -> None:
    plan = plan_of(name, "megatron(microbatch_rows=2)", 1)
    assert plan.schedule.num_microbatches == 4
    check(name, trained(name, plan), NEAR[name], NEAR_WEIGHTS)


def _rank(rank: int, texts: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], Any]:
    torch.set_num_threads(1)
    return {key: trained(key[0], parse_plan(text), rank) for key, text in texts.items()}


@pytest.mark.slow
def test_two_ranks_train_the_same_under_every_plan() -> None:
    keys = [("all", "megatron(tensor=2)"), *((name, s) for name in MODULES for s in STRATEGIES)]
    texts = {(name, s): plan_of(name, s, 2).to_text() for name, s in keys}
    for answers in run_ranks(2, _rank, texts, limits=ProcessLimits(240)):
        for (name, _), found in answers.items():
            check(name, found, NEAR[name], NEAR_WEIGHTS)


@pytest.mark.slow
def test_a_run_goes_on_from_float32_copies(tmp_path: Path) -> None:
    def run(name: str, plan: Plan, steps: int, folder: Path) -> list[float]:
        config = TrainConfig(steps, OPTIMIZER, folder, resume=folder.exists())
        return [
            m.losses["loss:loss"]
            for m in train(partial(model, name), plan, FunctionData(data), config).metrics
        ]

    for name in ("all", "adapters"):
        losses, _ = one_device(name)
        whole = run(name, plan_of(name, "zero(stage=3)", 2), 2, tmp_path / name)
        whole += run(name, plan_of(name, "data_parallel", 1), STEPS, tmp_path / name)
        assert whole == pytest.approx(losses, rel=NEAR[name])


def test_float16_that_is_trained_is_refused_with_the_ways_out() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).half()
    task = Task(Model("half", module, loss, data(0)))
    with pytest.raises(CaptureError, match=r"0\.weight is of float16.*module\.bfloat16\(\).*--dtype float16"):
        task.program(ROWS)
    assert Task(Model("half", module, loss, data(0)), "bfloat16").program(ROWS).num_params

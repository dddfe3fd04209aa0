"""The moving average of parameters: as PyTorch's `AveragedModel`, under any plan, and in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from updates import PLANS, STEPS, batch, difference, model, plain_params, plan, task, trained

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import parse_plan
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train
from trainyard.job.simulate import simulate_plan

DECAY, BAD = 0.7, 2
BUILT_IN = OptimizerConfig("sgd", lr=0.2, momentum=0.9, ema_decay=DECAY)
OWN = OptimizerConfig(make=torch.optim.Adafactor, ema_decay=DECAY)


def averages(optimizer: OptimizerConfig, steps: int, bad: int | None = None) -> dict[str, torch.Tensor]:
    """The averages in plain PyTorch; one step may be left out."""
    kept: dict[str, AveragedModel] = {}

    def plain(module: nn.Module) -> Any:
        inner = (
            torch.optim.Adafactor(module.parameters())
            if optimizer.make
            else torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
        )
        kept["ema"] = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(DECAY))

        def follow(step: int) -> None:
            if step != bad:
                inner.step()
                kept["ema"].update_parameters(module)

        return follow

    plain_params(plain, steps)
    return {name: p.detach() for name, p in kept["ema"].module.named_parameters()}


def _rank(rank: int, works: list[tuple[str, OptimizerConfig]]) -> list[float]:
    found = []
    for text, optimizer in works:
        executor = trained(optimizer, parse_plan(text), rank)
        found.append(difference(executor, executor.optimizer.moments()["ema"], averages(optimizer, STEPS)))
    return found


@pytest.mark.parametrize(
    "plans", [["microbatches"], ["data", "zero1", "zero3", "tensor", "pipeline"]], ids=["1", "2"]
)
def test_averages_are_those_of_plain_pytorch(plans: list[str]) -> None:
    works = [(plan(**PLANS[name]).to_text(), BUILT_IN) for name in plans]
    works += [
        (plan(**PLANS[name]).to_text(), OWN) for name in plans if name in ("microbatches", "data", "pipeline")
    ]
    num_ranks = parse_plan(works[0][0]).num_ranks
    by_rank = [_rank(0, works)] if num_ranks == 1 else run_ranks(num_ranks, _rank, works)
    assert [max(own) for own in zip(*by_rank, strict=True) if not max(own) < 2e-6] == []


def bad_batch(step: int) -> dict[str, torch.Tensor]:
    """One batch has a number that is not finite."""
    found = batch(step)
    if step == BAD:
        found["x"][0, 0] = torch.inf
    return found


@pytest.mark.parametrize("optimizer", [BUILT_IN, OWN], ids=["sgd", "Adafactor"])
def test_a_checkpoint_keeps_the_average_for_other_ranks(optimizer: OptimizerConfig, tmp_path: Path) -> None:
    sizes = {"data": 2, "zero": 2} if optimizer.make is None else {"data": 2}
    for steps, now in ((4, sizes), (6, {"pipeline": 2})):
        config = TrainConfig(steps, optimizer, checkpoint=tmp_path, resume=steps > 4, on_nonfinite="skip")
        result = train(model, plan(**now), FunctionData(bad_batch), config)
    assert result.checkpoint is not None
    found, wanted = read_whole(result.checkpoint, "ema"), averages(optimizer, 6, bad=BAD)
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        torch.testing.assert_close(found[path], value, rtol=2e-6, atol=1e-7)


def test_the_average_takes_memory_and_time() -> None:
    def simulated(config: OptimizerConfig) -> Any:
        return simulate_plan(lower(task().program(8), plan(), config), parse_cluster("1x1xA100-80G"))

    plain, averaged = simulated(OptimizerConfig("sgd")), simulated(OptimizerConfig("sgd", ema_decay=0.9))
    num_elements = sum(p.numel() for p in model().module.parameters())
    assert averaged.memory[0]["optimizer"] - plain.memory[0]["optimizer"] == 4 * num_elements
    assert averaged.breakdown["optimizer"] > plain.breakdown["optimizer"]

"""Training of which a part is frozen resumes as if it had not been interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from trainyard.hardware import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.planning import make_setting
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.step.data import FixedData
from trainyard.job.run.train import train
from trainyard.job.setting import apply
from trainyard.job.task import Task
from trainyard.program.model import Model

WIDTH, ROWS = 8, 8


def half_frozen() -> Model:
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    module[0].requires_grad_(False)
    module.register_buffer("table", torch.linspace(0.1, 1.3, WIDTH))
    batch = {"x": torch.randn(ROWS, WIDTH, generator=generator), "y": torch.ones(ROWS, WIDTH)}
    return Model(
        "half-frozen", module, lambda m, b: nn.functional.mse_loss(m(b["x"]) * m.table, b["y"]), batch
    )


@pytest.mark.parametrize(
    "optimizer",
    [OptimizerConfig("sgd", lr=0.1, momentum=0.9), OptimizerConfig("adamw", lr=0.1)],
    ids=["momentum", "adamw"],
)
@pytest.mark.parametrize(
    "strategies",
    ["data_parallel", "gpipe(stages=2, microbatches=2)"],
)
def test_goes_on_as_if_not_interrupted(strategies: str, optimizer: OptimizerConfig, tmp_path: Path) -> None:
    """With two stages, rank 0 has nothing to train, and so no moments."""
    stages = 2 if "gpipe" in strategies else 1
    setting = make_setting(Task(half_frozen()), parse_cluster(f"{stages}x1xV100-16G"))
    plan = apply(parse_strategies(strategies), setting)
    data = FixedData(half_frozen().batch)
    whole = train(half_frozen, plan, data, TrainConfig(6, optimizer))
    train(half_frozen, plan, data, TrainConfig(3, optimizer, tmp_path))
    rest = train(half_frozen, plan, data, TrainConfig(6, optimizer, tmp_path, resume=True))
    assert rest.first_step == 3
    losses = [m.losses["loss:loss"] for m in rest.metrics]
    assert losses == pytest.approx([m.losses["loss:loss"] for m in whole.metrics[3:]], rel=1e-5)


@pytest.mark.parametrize(("strategies", "ranks"), [("data_parallel", 1), ("zero(stage=3)", 2)])
def test_what_is_not_trained_is_kept_as_exact_as_it_was(strategies: str, ranks: int, tmp_path: Path) -> None:
    """Rounded for computing, not in the checkpoint."""
    setting = make_setting(Task(half_frozen(), "bfloat16"), parse_cluster(f"1x{ranks}xA100-40G"))
    plan = apply(parse_strategies(strategies), setting)
    data = FixedData(half_frozen().batch)
    train(half_frozen, plan, data, TrainConfig(2, checkpoint=tmp_path))
    found = train(half_frozen, plan, data, TrainConfig(3, checkpoint=tmp_path, resume=True))
    module = half_frozen().module
    assert found.checkpoint is not None
    assert torch.equal(read_whole(found.checkpoint)["0.weight"], module[0].weight)
    assert torch.equal(read_whole(found.checkpoint, "buffer")["table"], module.table)

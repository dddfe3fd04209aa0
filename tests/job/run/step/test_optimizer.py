"""Schedules, clipping by value and groups of parameters: as PyTorch's optimizers and schedulers, under any plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import one_rank
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from updates import STEPS, Case, differences, plan, task, trained

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.rates import rate_factor
from trainyard.job.planning import plan as plan_model
from trainyard.job.run.checkpoint.saved import path_of, read_about
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import CheckpointError
from trainyard.job.simulate import simulate_plan

WARMUP = 2


def halving(step: int) -> float:
    """Half of the rate before, at every step."""
    return 0.5**step


def _after_warmup(
    make: Callable[[torch.optim.Optimizer], list[lr_scheduler.LRScheduler]], *milestones: int
) -> list[float]:
    """The rates of schedulers of PyTorch after a linear warm-up, whose first step has no rate of 0."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    warm = lr_scheduler.LinearLR(optimizer, 1 / WARMUP, 1.0, total_iters=WARMUP - 1)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm, *make(optimizer)], [WARMUP, *milestones])
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("options", "make", "milestones"),
    [
        ({"lr_schedule": "constant"}, lambda o: [lr_scheduler.ConstantLR(o, 1.0)], []),
        (
            {"lr_schedule": "linear", "lr_steps": 10, "min_lr_factor": 0.2},
            lambda o: [lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=8)],
            [],
        ),
        (
            {"lr_schedule": "wsd", "lr_steps": 10, "decay_steps": 4, "min_lr_factor": 0.1},
            lambda o: [lr_scheduler.ConstantLR(o, 1.0), lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=4)],
            [6],
        ),
    ],
    ids=["constant", "linear", "wsd"],
)
def test_rates_are_those_of_pytorch(options: dict, make: Callable, milestones: list[int]) -> None:
    config = OptimizerConfig(warmup_steps=WARMUP, **options)
    assert [rate_factor(config, k) for k in range(12)] == pytest.approx(_after_warmup(make, *milestones))


def test_a_cosine_is_that_of_pytorch_and_stays_at_its_end() -> None:
    config = OptimizerConfig(lr_schedule="cosine", lr_steps=10, min_lr_factor=0.1)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0.1)
    for step in range(10):
        assert rate_factor(config, step) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rate_factor(config, 10) == rate_factor(config, 99) == 0.1
    only_warmup = OptimizerConfig(lr_schedule="linear", warmup_steps=4, lr_steps=4)
    assert [rate_factor(only_warmup, k) for k in (3, 4, 5)] == [1.0, 0.0, 0.0]
    # Of a stage that is updated twice in a step.
    assert rate_factor(config, 10, 2) == pytest.approx(rate_factor(config, 5))


def test_the_decay_of_wsd_is_a_tenth_unless_it_is_given() -> None:
    config = OptimizerConfig(lr_schedule="wsd", lr_steps=100)
    assert [rate_factor(config, k) for k in (0, 90, 95, 100)] == pytest.approx([1.0, 1.0, 0.5, 0.0])


def _cosine(module: nn.Module) -> Callable[[int], None]:
    optimizer = torch.optim.AdamW(_groups(module), lr=0.02)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=0.0)

    def follow(step: int) -> None:
        torch.nn.utils.clip_grad_value_(module.parameters(), 0.05)
        optimizer.step()
        scheduler.step()

    return follow


def _groups(module: nn.Module) -> list[dict]:
    vectors = [p for n, p in module.named_parameters() if p.dim() < 2]
    last = module.get_parameter("last.weight")
    return [
        {"params": vectors, "weight_decay": 0.0},
        {"params": [module.get_parameter("first.weight")], "weight_decay": 0.3},
        {"params": [last], "weight_decay": 0.3, "lr": 0.06},
    ]


def _halving(module: nn.Module) -> Callable[[int], None]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    scheduler = lr_scheduler.LambdaLR(optimizer, halving)

    def follow(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        scheduler.step()

    return follow


CASES: list[Case] = [
    (
        OptimizerConfig(
            lr=0.02,
            weight_decay=0.3,
            no_decay=("1d",),
            lr_scale=(
                ("**.weight", 9.0),
                ("norm.*", 1.0),
                ("first.weight", 1.0),
                ("last.*", 3.0),
                ("last.bias", 1.0),
            ),
            lr_schedule="cosine",
            lr_steps=STEPS,
            clip_value=0.05,
        ),
        _cosine,
    ),
    (OptimizerConfig("sgd", lr=0.2, momentum=0.9, lr_schedule=halving, clip_norm=0.5), _halving),
]


@pytest.mark.parametrize(
    "plans",
    [
        ["one", "microbatches"],
        ["data", "zero1", "zero2", "zero3", "tensor", "pipeline"],
        pytest.param(["data x tensor, zero3", "data x pipeline, zero1"], marks=pytest.mark.slow),
    ],
    ids=["1", "2", "4"],
)
def test_updates_are_those_of_plain_pytorch(plans: list[str]) -> None:
    found = differences(plans, CASES)
    assert {key: value for key, value in found.items() if not value < 2e-6} == {}


def test_a_resumed_run_goes_on_with_its_rates_and_groups(tmp_path: Path) -> None:
    optimizer = OptimizerConfig(
        lr=0.05, weight_decay=0.1, no_decay=("1d",), lr_scale=(("layers.2.*", 2.0),), lr_schedule="cosine"
    )
    _, whole = one_rank.run(tmp_path / "whole", 6, optimizer=optimizer)
    one_rank.run(tmp_path / "half", 3, optimizer=OptimizerConfig(**{**vars(optimizer), "lr_steps": 6}))
    _, rest = one_rank.run(
        tmp_path / "half", 6, resume=True, optimizer=OptimizerConfig(**{**vars(optimizer), "lr_steps": 6})
    )
    assert [step.losses for step in rest] == [step.losses for step in whole[3:]]
    assert read_about(path_of(tmp_path / "half", 6)).settings["lr_steps"] == 6


def test_other_rates_are_another_run(tmp_path: Path) -> None:
    falling = OptimizerConfig(lr_schedule="linear")
    assert TrainConfig(4, falling).optimizer.lr_steps == 4
    one_rank.run(tmp_path, 2, optimizer=falling)
    with pytest.raises(CheckpointError, match="lr_steps is 2 there and 4 here"):
        one_rank.run(tmp_path, 4, resume=True, optimizer=falling)


def test_another_function_of_the_step_is_another_run(tmp_path: Path) -> None:
    one_rank.run(tmp_path, 1, optimizer=OptimizerConfig(lr_schedule=halving))

    def other(step: int) -> float:
        return 0.5**step if step < 1000 else 0.0

    other.__name__ = "halving"
    with pytest.raises(CheckpointError, match=r"lr_schedule is halving: 1 0\.5 "):
        one_rank.run(tmp_path, 2, resume=True, optimizer=OptimizerConfig(lr_schedule=other))
    one_rank.run(tmp_path, 2, resume=True, optimizer=OptimizerConfig(lr_schedule=halving))


def test_a_pattern_that_stands_for_nothing_is_refused_before_planning() -> None:
    optimizer = OptimizerConfig(weight_decay=0.1, no_decay=("*.bias", "head.**"))
    with pytest.raises(
        ValueError, match=r"pattern 'head\.\*\*' has it; the model has first\.bias, .* and 2 more\."
    ):
        plan_model(task().model, "1x1xA100-80G", "data_parallel", optimizer=optimizer)


def test_clipping_by_value_takes_a_pass_over_the_gradients() -> None:
    program = task().program(8)

    def optimizer_s(config: OptimizerConfig) -> float:
        simulation = simulate_plan(lower(program, plan(), config), parse_cluster("1x1xA100-80G"))
        return simulation.breakdown["optimizer"]

    assert optimizer_s(OptimizerConfig(clip_value=1.0)) > optimizer_s(OptimizerConfig())


def test_options_of_the_rates_and_groups_are_shown() -> None:
    config = OptimizerConfig(
        lr_schedule="wsd", lr_steps=10, no_decay=("**.bias", "1d"), lr_scale=(("a.*", 2.0),)
    )
    assert str(config).endswith(
        "clip norm 0, no decay **.bias 1d, lr scale a.* 2, lr schedule wsd, lr steps 10"
    )
    assert str(OptimizerConfig(lr_schedule=halving)).endswith("lr schedule halving")
    assert re.fullmatch(r"adamw: lr .*, clip norm 0", str(OptimizerConfig()))


def test_a_group_keeps_its_moments_in_the_flat_buffer_of_its_bucket() -> None:
    config = CASES[0][0]
    executor = trained(config, plan())
    (name,) = executor.state.buckets
    assert len(executor.optimizer.segments[name]) > 1
    size = executor.state.buckets[name].master.numel()
    assert {key: of[name].numel() for key, of in executor.optimizer.moments().items()} == {
        "exp_avg": size,
        "exp_avg_sq": size,
    }

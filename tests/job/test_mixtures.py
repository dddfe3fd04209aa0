"""Mixtures of experts: each part of a batch sorts its own tokens, and the step is that of plain PyTorch."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path

import pytest
import torch
from mixtures import CONFIGS, mixture
from one_step import check_equal, plain, trained
from test_cases import FOLDER
from test_split import plan_of

from trainyard.job.lower.shard import shard
from trainyard.job.task import Task
from trainyard.program import spmd
from trainyard.program.model import Model
from trainyard.program.placement import PARTIAL, Placement, Shard
from trainyard.program.propagate import Axis
from trainyard.zoo import build
from trainyard.zoo.common import next_token_loss, token_batch
from trainyard.zoo.decoder import Decoder, DecoderConfig
from trainyard.zoo.mixture import MixtureConfig

ROWS, LENGTH, WIDTH, EXPERTS = 8, 4, 8, 3


@cache
def task_of(name: str) -> Task:
    return Task(mixture(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_microbatches_add_up(name: str) -> None:
    task = task_of(name)
    assert task.coupling is None
    check_equal(trained(task, plan_of(task, 4)), plain(task.model))


@pytest.mark.parametrize(
    "config",
    [
        MixtureConfig(4, 2, 24),
        MixtureConfig(8, 2, 24, "sigmoid", scale=2.5, groups=4, top_groups=2, choice_bias=True, shared=40),
        MixtureConfig(4, 2, 24, bounded=True),
    ],
    ids=["mixtral", "deepseek", "gpt-oss"],
)
def test_mixtures_of_the_zoo_are_trained(config: MixtureConfig) -> None:
    sizes = DecoderConfig(64, 16, 1, 32, 4, 2, 64, mixture=config)
    torch.manual_seed(0)
    task = Task(Model("mixture", Decoder(sizes), next_token_loss, token_batch(4, 16, 64)))
    assert task.coupling is None
    check_equal(trained(task, plan_of(task, 4)), plain(task.model))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_as_transformers_writes_it_is_the_model_of_the_zoo(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    config.architectures = [type(task_of(name).model.module).__name__]
    config.save_pretrained(tmp_path)
    ours, theirs = build(str(tmp_path / "config.json"), 4).module, task_of(name).model.module
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert Task(build(str(tmp_path / "config.json"), 4)).coupling is None


def test_a_mixture_of_ones_own_has_the_loss_of_plain_pytorch() -> None:
    case = runpy.run_path(str(FOLDER / "experts_by_sort.py"))
    torch.manual_seed(0)
    task = Task(Model("experts", case["module"](), case["loss"], case["data"](1)))
    wanted = plain(task.model)
    assert wanted[0] == pytest.approx(1.541835, abs=1e-6)
    for count in (1, 2, 4, 8):
        check_equal(trained(task, plan_of(task, count)), wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_data_parallel_ranks_send_no_tokens(name: str) -> None:
    program = task_of(name).program(4)
    wanted: dict[str, Placement] = {i.path: Shard(0) for i in program.inputs if i.kind == "batch"}
    wanted |= {f"grad:{o.path}": PARTIAL for o in program.outputs if o.kind == "grad"}
    local = shard(program, Axis("data", 2), wanted).program
    moved = [n for n in local.graph.nodes if n.target in spmd.COLLECTIVES]
    assert moved
    assert all(n.target is spmd.all_reduce and n.meta["val"].dim() == 0 for n in moved)


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_a_balance_loss_is_refused_by_its_name(name: str) -> None:
    model = mixture(name)
    model.module.config.output_router_logits = True  # type: ignore[union-attr]
    coupling = Task(model).coupling
    assert coupling is not None
    assert coupling.startswith(
        "in load_balancing_loss_func, a part of the loss, a sum over all rows is needed"
    )

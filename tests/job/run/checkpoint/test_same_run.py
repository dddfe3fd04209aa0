"""Only the run that a checkpoint is of goes on from it: the same settings, the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import one_rank
import pytest
import torch
from torch import nn

from trainyard.job.run.checkpoint.same_run import ModelIdentity, check_model, model_identity
from trainyard.job.run.errors import CheckpointError
from trainyard.job.run.train import train
from trainyard.job.task import Task
from trainyard.program.model import Model


def test_other_settings_are_named_and_options_may_change(tmp_path: Path) -> None:
    one_rank.run(tmp_path, 1)
    other = replace(one_rank.OPTIMIZER, lr=0.02, betas=(0.8, 0.95))
    said = r"lr is 0\.01 there and 0\.02 here, betas is \[0\.9, 0\.999\] there .*, seed is 0 there and 7 here"
    with pytest.raises(CheckpointError, match=said):
        one_rank.run(tmp_path, 2, resume=True, optimizer=other, seed=7)
    ready, _ = one_rank.run(tmp_path, 2, resume=True, checkpoint_every=1, keep=5)
    assert ready.step == 1


def layers(count: int) -> Model:
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))
    return Model("layers", module, lambda m, b: m(b["x"]).pow(2).mean(), {"x": torch.zeros(2, 4)})


class Heads(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.qkv = count, nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 3, 3, self.count, -1).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def heads(count: int) -> Model:
    return Model("heads", Heads(count), lambda m, b: m(b["x"]).pow(2).mean(), {"x": torch.zeros(2, 3, 8)})


def identity(model: Model) -> ModelIdentity:
    task = Task(model)
    return model_identity(task)


def check(there: ModelIdentity, here: ModelIdentity) -> None:
    check_model(there.shapes, there.program, there.torch, here, "step-00000001")


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (layers(4), layers(2), r"step-00000001 is of another model: this model has no 2\.bias, .*3\.weight"),
        (layers(2), layers(4), r"the checkpoint has no 2\.bias, 2\.weight, 3\.bias, 3\.weight\."),
        (heads(4), heads(2), "same names and shapes, and a step computes something else .*number of heads"),
        (one_rank.model(), layers(2), r"this model has no layers\.0\.bias, .* and \d+ more"),
    ],
    ids=["deeper", "shallower", "heads", "names"],
)
def test_another_model_is_refused_by_what_differs(there: Model, here: Model, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        check(identity(there), identity(here))
    check(identity(there), identity(there))


def test_another_shape_is_named() -> None:
    there = identity(layers(1))
    here = replace(there, shapes={**there.shapes, "param/0.weight": (4, 8)})
    with pytest.raises(CheckpointError, match=r"0\.weight has shape \(4, 4\) there and \(4, 8\) here"):
        check(there, here)


def test_another_version_of_pytorch_may_compute_a_step_otherwise() -> None:
    there = identity(layers(1))
    check(replace(there, torch="2.11.0", program="another"), there)


@pytest.mark.parametrize("folder", ["", "missing"])
def test_there_must_be_something_to_resume(folder: str, tmp_path: Path) -> None:
    known, _ = one_rank._prepared()
    config = replace(known.config, checkpoint=tmp_path / folder, resume=True)
    with pytest.raises(
        CheckpointError, match=r"holds no checkpoint\. There is nothing to resume from: leave out"
    ):
        train(known.model, known.plan, known.data, config)
    assert list(tmp_path.iterdir()) == []

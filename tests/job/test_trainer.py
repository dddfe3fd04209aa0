"""A trainer plans and trains, in one call or in a loop, and evaluates what it trained."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import one_rank
import pytest
import torch
from data_sets import Rows
from one_rank import ROWS
from torch import nn
from torch.utils.data import DataLoader

import trainyard as ty
from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.config import StepMetrics
from trainyard.job.run.step.evaluation import Evaluation

LOSS = "loss:loss"


def trainer(
    folder: Path | None = None,
    steps: int = 4,
    model: Any = one_rank.model,
    data: Any = None,
    **options: Any,
) -> ty.Trainer:
    options = {"optimizer": one_rank.OPTIMIZER, "cluster": "local:1", "strategies": "data_parallel"} | options
    if folder is not None:
        options["checkpoint"] = folder
    return ty.Trainer(model, data or Rows(), steps=steps, **options)


def test_a_trainer_trains_evaluates_and_goes_on(tmp_path: Path) -> None:
    seen: list[StepMetrics] = []
    own = trainer(tmp_path, evaluate=Evaluation(Rows(10), 2), callbacks=[seen.append])
    result = own.train()
    _, whole = one_rank.run(None, 4, data=Rows())
    assert tuple(seen) == result.metrics
    assert [m.losses[LOSS] for m in seen] == pytest.approx([s.losses[LOSS] for s in whole], rel=1e-6)
    assert own.evaluate(DataLoader(Rows(10), ROWS)) == pytest.approx(dict(seen[-1].evaluation), rel=1e-6)


class Broken(Rows):
    """Rows at which another process than the test's ends once there is a checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.owner, self.folder = os.getpid(), folder

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if os.getpid() != self.owner and complete_steps(self.folder):
            os._exit(3)
        return super().__getitem__(index)


def loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(module(batch["x"]), batch["y"])


def given_model() -> ty.Model:
    """The model itself, which is sent to other processes."""
    return replace(one_rank.model(), loss=loss)


def test_trained_weights_are_evaluated_without_a_folder() -> None:
    own = trainer(evaluate=Evaluation(Rows(10)))
    result = own.train()
    assert result.checkpoint is None
    assert own.evaluate(Rows(10)) == pytest.approx(dict(result.metrics[-1].evaluation), rel=1e-6)


def test_a_run_that_is_stopped_early_leaves_its_weights_without_a_folder() -> None:
    def stop(step: StepMetrics) -> None:
        if step.step == 1:
            raise ty.StopTraining

    own = trainer(
        steps=10**6,
        model=given_model(),
        cluster="local:2",
        callbacks=[stop],
        evaluate=Evaluation(Rows(10), 1),
    )
    metrics = own.train().metrics
    assert 2 <= len(metrics) < 10**6
    assert own.evaluate(Rows(10)) == pytest.approx(dict(metrics[-1].evaluation), rel=1e-6)
    _, whole = one_rank.run(None, len(metrics), data=Rows())
    assert metrics[-1].losses[LOSS] == pytest.approx(whole[-1].losses[LOSS], rel=1e-5)


def _loss_of(checkpoint: Path | None) -> float:
    """The loss on the held-out set by the weights of a checkpoint."""
    assert checkpoint is not None
    module = one_rank.Net()
    ty.load_weights(module, checkpoint)
    with torch.no_grad():
        return float(
            loss(module.eval(), torch.utils.data.default_collate([*map(Rows().__getitem__, range(10))]))
        )


def test_a_run_that_failed_is_evaluated_by_its_checkpoint(tmp_path: Path) -> None:
    own = trainer(tmp_path, data=Broken(tmp_path), steps=10**6, checkpoint_every=1)
    with pytest.raises(ty.WorkerError):
        own.train()
    assert own.result is not None
    assert own.evaluate(Rows(10)) == {"loss": pytest.approx(_loss_of(own.result.checkpoint), rel=1e-6)}


def test_a_loop_that_is_left_goes_on_where_it_was(tmp_path: Path) -> None:
    own = trainer(tmp_path, steps=10**6)
    first = next(step.step for step in own)
    assert own.result is not None
    done = len(own.result.metrics)
    again = next(step.step for step in own)
    assert (first, again) == (0, done)


def test_a_callback_ends_the_training(tmp_path: Path) -> None:
    def stop(step: StepMetrics) -> None:
        if step.step == 1:
            raise ty.StopTraining

    result = trainer(tmp_path, steps=10**6, callbacks=[stop]).train()
    assert 2 <= len(result.metrics) < 10**6
    assert result.checkpoint is not None


def test_what_a_trainer_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="cluster and processes each say where"):
        trainer(processes=1)
    with pytest.raises(ty.TrainyardError, match=r"nothing is trained yet, .* call train\(\) first"):
        trainer().evaluate(Rows())
    with pytest.raises(TypeError, match="no option stesp; the nearest name is steps"):
        trainer(stesp=3)

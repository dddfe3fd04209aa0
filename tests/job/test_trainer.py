"""A trainer plans and trains, in one call or in a loop, and evaluates what it trained."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import one_rank
import pytest
import torch
from data_sets import Rows
from forked_ranks import rank_processes
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


def stop_at_step_1(step: StepMetrics) -> None:
    """Stop, later than a step takes: ranks that went on would have done many."""
    if step.step == 1:
        time.sleep(0.1)
        raise ty.StopTraining


def test_a_run_that_is_stopped_early_leaves_its_weights_without_a_folder() -> None:
    own = trainer(
        steps=10**6,
        model=given_model(),
        cluster="local:2",
        callbacks=[stop_at_step_1],
        evaluate=Evaluation(Rows(10), 1),
    )
    metrics = own.train().metrics
    assert len(metrics) == 2
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
    assert [next(step.step for step in own) for _ in range(3)] == [0, 1, 2]


def test_a_callback_ends_the_training_after_its_step(tmp_path: Path) -> None:
    own = trainer(tmp_path, steps=10**6, callbacks=[stop_at_step_1], evaluate=Evaluation(Rows(10), 1))
    result = own.train()
    assert len(result.metrics) == 2
    assert result.checkpoint is not None
    assert result.checkpoint.name == "step-00000002"
    assert _loss_of(result.checkpoint) == pytest.approx(result.metrics[-1].evaluation["loss"], rel=1e-6)


def test_a_callback_may_take_longer_than_a_step_and_outlive_the_ranks(tmp_path: Path) -> None:
    """A rank that is lost meanwhile is started again, and its answer does not count for the new one's steps."""

    def look(step: StepMetrics) -> None:
        seen.append(step.step)
        if step.step == 1 and seen.count(1) == 1:
            time.sleep(2.5)
        if step.step == 2 and seen.count(2) == 1:
            rank_processes(2)[1].kill()
        if seen.count(2) == 2:
            time.sleep(0.1)
            raise ty.StopTraining

    seen: list[int] = []
    own = trainer(
        tmp_path,
        steps=10**6,
        cluster="local:2",
        callbacks=[look],
        stall_s=1.0,
        max_restarts=1,
    )
    result = own.train()
    assert seen == [0, 1, 2, 0, 1, 2]
    assert [restart.step for restart in result.restarts] == [0]
    assert len(result.metrics) == 3


def test_what_a_trainer_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="cluster and processes each say where"):
        trainer(processes=1)
    with pytest.raises(ty.TrainyardError, match=r"nothing is trained yet, .* call train\(\) first"):
        trainer().evaluate(Rows())
    with pytest.raises(TypeError, match="no option stesp; the nearest name is steps"):
        trainer(stesp=3)

"""A trainer plans and trains, in one call or in a loop, and evaluates what it trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import one_rank
import pytest
from data_sets import Rows
from one_rank import ROWS
from torch.utils.data import DataLoader

import trainyard as ty
from trainyard.job.run.config import StepMetrics
from trainyard.job.run.step.evaluation import Evaluation

LOSS = "loss:loss"


def trainer(folder: Path | None = None, steps: int = 4, **options: Any) -> ty.Trainer:
    options = {"optimizer": one_rank.OPTIMIZER, "cluster": "local:1", "strategies": "data_parallel"} | options
    return ty.Trainer(one_rank.model, Rows(), steps=steps, checkpoint=folder, **options)


def test_a_trainer_trains_evaluates_and_goes_on(tmp_path: Path) -> None:
    seen: list[StepMetrics] = []
    own = trainer(tmp_path, evaluate=Evaluation(Rows(10), 2), callbacks=[seen.append])
    result = own.train()
    _, whole = one_rank.run(None, 4, data=Rows())
    assert tuple(seen) == result.metrics
    assert [m.losses[LOSS] for m in seen] == pytest.approx([s.losses[LOSS] for s in whole], rel=1e-6)
    assert own.evaluate(DataLoader(Rows(10), ROWS)) == pytest.approx(dict(seen[-1].evaluation), rel=1e-6)


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
    with pytest.raises(ValueError, match=r"no checkpoint to evaluate; give the trainer checkpoint=FOLDER"):
        trainer().evaluate(Rows())
    with pytest.raises(TypeError, match="'stesp'"):
        trainer(stesp=3)

"""A loop over the steps of a run: every step once, and an end with a checkpoint when the loop is left."""

from __future__ import annotations

from pathlib import Path

import plans
import pytest

from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.config import StepMetrics
from trainyard.job.run.train import Run

LOSS = "loss:loss"


def test_leaving_the_loop_saves_and_the_run_goes_on_exactly(tmp_path: Path) -> None:
    seen: list[StepMetrics] = []
    for step in Run(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(10**6, tmp_path)).steps():
        seen.append(step)
        if step.step == 1:
            break
    assert [step.step for step in seen] == [0, 1]
    stopped = complete_steps(tmp_path)[0]
    assert stopped >= 2
    run = Run(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(stopped + 2, tmp_path, resume=True))
    rest = list(run.steps())
    assert [step.step for step in rest] == [stopped, stopped + 1]
    assert tuple(rest) == run.result().metrics
    whole = Run(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(stopped + 2))
    losses = [step.losses[LOSS] for step in whole.steps()]
    assert [step.losses[LOSS] for step in (*seen, *rest)] == pytest.approx(
        losses[:2] + losses[stopped:], rel=1e-6
    )


def test_an_error_in_the_loop_is_raised_when_the_run_is_saved(tmp_path: Path) -> None:
    def run() -> None:
        for step in Run(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(10**6, tmp_path)).steps():
            raise KeyError(step.step)

    with pytest.raises(KeyError, match="0"):
        run()
    assert complete_steps(tmp_path)


def test_without_a_folder_of_checkpoints_a_run_that_is_left_ends_at_once() -> None:
    run = Run(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(10**6))
    steps = run.steps()
    next(steps)
    steps.close()
    assert run.result().checkpoint is None

"""A step that is not finite ends the run before its update, or is skipped; good checkpoints are kept."""

from __future__ import annotations

from pathlib import Path

import one_rank
import pytest
import torch
from torch import nn

from trainyard.hardware import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.planning import make_setting
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.checkpoint.saved import complete_steps, path_of, read_about
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import NonFiniteError
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train
from trainyard.job.setting import apply
from trainyard.job.task import Task
from trainyard.program.model import Model

BAD = 3


def spoilt(step: int) -> dict[str, torch.Tensor]:
    found = one_rank.batch(step)
    if step == BAD:
        found["x"][1, 2] = torch.nan
    return found


def large(step: int) -> dict[str, torch.Tensor]:
    """The loss is finite, and its gradient is not."""
    found = one_rank.batch(step)
    return {**found, "y": found["y"] * 1e19} if step == BAD else found


@pytest.mark.parametrize(
    ("batch", "said"), [(spoilt, "loss is nan, norm of the gradient is nan"), (large, "is inf")]
)
def test_the_run_ends_at_that_step_and_keeps_what_was_good(batch, said: str, tmp_path: Path) -> None:
    with pytest.raises(
        NonFiniteError, match=rf"step 4, of data\(3\), is not finite: .*{said}.*of step 3 is kept"
    ):
        one_rank.run(tmp_path, 6, data=batch, checkpoint_every=1)
    assert complete_steps(tmp_path) == [3, 2]
    before = read_whole(path_of(tmp_path, 3))
    assert all(value.isfinite().all() for value in before.values())
    # As the message says: on from there, without that step.
    ready, steps = one_rank.run(tmp_path, 6, resume=True, data=batch, on_nonfinite="skip")
    assert ready.step == 3
    assert [step.skipped for step in steps] == [True, False, False]


def test_a_skipped_step_changes_nothing(tmp_path: Path) -> None:
    """Weights, moments, the number of updates and buffers are as before it."""
    _, steps = one_rank.run(tmp_path, BAD + 1, data=spoilt, checkpoint_every=BAD, on_nonfinite="skip")
    assert [step.skipped for step in steps] == [False] * BAD + [True]
    for field in ("param", "exp_avg", "exp_avg_sq", "buffer"):
        before, after = (read_whole(path_of(tmp_path, step), field) for step in (BAD, BAD + 1))
        assert before
        assert all(torch.equal(after[path], value) for path, value in before.items()), field
    _, (step,) = one_rank.run(tmp_path, BAD + 2, resume=True, data=spoilt, on_nonfinite="skip")
    assert torch.isfinite(torch.tensor(step.losses["loss:loss"]))


def test_a_run_of_which_no_step_was_applied_yet_goes_on(tmp_path: Path) -> None:
    def bad_first(step: int) -> dict[str, torch.Tensor]:
        return spoilt(BAD) if step == 0 else one_rank.batch(step)

    one_rank.run(tmp_path, 1, data=bad_first, on_nonfinite="skip")
    assert read_about(path_of(tmp_path, 1)).num_updates == 0
    _, steps = one_rank.run(tmp_path, 3, resume=True, data=bad_first, on_nonfinite="skip")
    _, whole = one_rank.run(None, 3, data=bad_first, on_nonfinite="skip")
    assert [step.losses for step in steps] == [step.losses for step in whole[1:]]


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    """An update may overflow after a loss and a gradient that did not."""
    rate = OptimizerConfig(lr=3e38)
    with pytest.raises(NonFiniteError, match=r"after step 1, param of layers\.\S+ is not finite"):
        one_rank.run(tmp_path, 1, keep=1, optimizer=rate)
    assert list(tmp_path.iterdir()) == []


def layers() -> Model:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    example = {"x": torch.zeros(one_rank.ROWS, 3), "y": torch.zeros(one_rank.ROWS, 2)}
    return Model("layers", module, lambda m, b: nn.functional.mse_loss(m(b["x"]), b["y"]), example)


@pytest.mark.slow
@pytest.mark.parametrize("strategies", ["gpipe(stages=2, microbatches=2)", "zero(stage=3)"])
def test_all_ranks_skip_the_same_steps(strategies: str, tmp_path: Path) -> None:
    """With two stages, only the last one has the loss; with ZeRO each rank has a part of the gradient."""
    setting = make_setting(Task(layers()), parse_cluster("2x1xV100-16G"))
    plans = (apply(parse_strategies(text), setting) for text in (strategies, "data_parallel"))
    config = TrainConfig(6, OptimizerConfig(lr=0.01), on_nonfinite="skip")
    two, other = (train(layers, plan, FunctionData(spoilt), config).metrics for plan in plans)
    assert [m.step for m in two if m.skipped] == [BAD]
    assert [m.losses["loss:loss"] for m in two if not m.skipped] == pytest.approx(
        [m.losses["loss:loss"] for m in other if not m.skipped], rel=1e-5
    )

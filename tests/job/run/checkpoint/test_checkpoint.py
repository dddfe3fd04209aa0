"""A run saved under one plan continues under another as if it had never stopped; damage is noticed."""

import shutil

import plans
import pytest
import torch

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.checkpoint.saved import (
    complete_steps,
    damage,
    path_of,
    read_about,
    read_run,
    write_run,
)
from trainyard.job.run.errors import CheckpointError
from trainyard.job.run.step.data import DataError
from trainyard.job.run.train import train

PAIRS = {"zero3 to tensor": ({"data": 2, "zero": 3}, {"tensor": 2})}
SLOW_PAIRS = {
    "pipeline to pipeline and data": (
        {"pipeline": 2, "schedule": "gpipe"},
        {"data": 2, "pipeline": 2, "zero": 1},
    ),
    "interleaved to tensor and data": (
        {"pipeline": 2, "per_rank": 2, "schedule": "interleaved"},
        {"tensor": 2, "data": 2, "zero": 3},
    ),
    "everything to nothing": ({"tensor": 2, "data": 2, "zero": 3, "recompute": True}, {}),
}
LONG_PAIRS = {
    "tensor to zero2": ({"tensor": 2}, {"data": 2, "zero": 2, "microbatches": 4}),
    "pipeline to one process": ({"pipeline": 2, "schedule": "gpipe"}, {"recompute": True}),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    result = train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(6, folder))
    return result, read_whole(result.checkpoint)


def _continued(first, second, folder, **options):
    begun = train(plans.MODEL, plans.plan(**first), plans.DATA_SOURCE, plans.config(3, folder))
    result = train(
        plans.MODEL, plans.plan(**second), plans.DATA_SOURCE, plans.config(6, folder, resume=True, **options)
    )
    return begun, result


def _losses(*results):
    return [m.losses["loss:loss"] for r in results for m in r.metrics]


@pytest.mark.parametrize(
    "name",
    [
        *PAIRS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_PAIRS),
        *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long]) for name in LONG_PAIRS),
    ],
)
def test_resumes_under_another_plan(name, tmp_path, undisturbed):
    first, second = (PAIRS | SLOW_PAIRS | LONG_PAIRS)[name]
    begun, result = _continued(first, second, tmp_path)
    whole, params = undisturbed
    assert (result.first_step, len(result.metrics)) == (3, 3)
    assert _losses(begun, result) == pytest.approx(_losses(whole), rel=1e-5)
    found = read_whole(result.checkpoint)
    assert set(found) == set(params)
    for path, value in params.items():
        torch.testing.assert_close(found[path], value, rtol=1e-4, atol=1e-5)
    for field in ("exp_avg", "exp_avg_sq"):
        for path, value in read_whole(whole.checkpoint, field).items():
            torch.testing.assert_close(
                read_whole(result.checkpoint, field)[path], value, rtol=1e-3, atol=1e-5
            )
    about = read_about(result.checkpoint)
    assert (about.step, about.num_updates, about.settings["optimizer"]) == (6, 6, "adamw")


@pytest.mark.slow
def test_masters_of_sixteen_bits_are_kept_whole_and_no_other_precision_goes_on(tmp_path):
    sixteen = {"dtype": "bfloat16", "data": 2, "zero": 1}
    begun, result = _continued(sixteen, {"dtype": "bfloat16"}, tmp_path)
    three = read_whole(path_of(tmp_path, 3))
    assert all(value.dtype == torch.float32 for value in three.values())
    # Values of full precision: not just rounded bfloat16.
    assert any(not torch.equal(v, v.bfloat16().float()) for v in three.values())
    assert _losses(result)[-1] < _losses(begun)[0]
    with pytest.raises(CheckpointError, match="dtype is bfloat16 there and float32 here"):
        train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(7, tmp_path, resume=True))


def test_a_damaged_checkpoint_is_passed_over_with_a_note(tmp_path):
    config = plans.config(4, tmp_path, checkpoint_every=2)
    train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, config)
    assert complete_steps(tmp_path) == [4, 2]
    newest = path_of(tmp_path, 4)
    data = next(newest.glob("*.safetensors"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    result = train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(5, tmp_path, resume=True))
    assert result.first_step == 2
    assert str(data) in result.notes[0]
    assert "checksum" in result.notes[0]
    # What was found damaged is gone, and the older one was not removed for it.
    assert complete_steps(tmp_path) == [5, 2]
    # Truncated, missing: each is named.
    other = next(path_of(tmp_path, 5).glob("*.safetensors"))
    other.write_bytes(other.read_bytes()[:-10])
    assert "bytes" in damage(path_of(tmp_path, 5))
    other.unlink()
    assert f"{other} is missing" == damage(path_of(tmp_path, 5))
    shutil.rmtree(path_of(tmp_path, 2))
    with pytest.raises(CheckpointError, match="no undamaged checkpoint"):
        train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(6, tmp_path, resume=True))


@pytest.fixture
def six_steps(tmp_path, undisturbed):
    """A copy of the folder of a run of six steps."""
    return shutil.copytree(undisturbed[0].checkpoint.parent, tmp_path / "six")


def test_data_that_is_another_since_the_checkpoint_is_refused(six_steps):
    # As a loader that shuffled anew after the first five steps, which were asked for again.
    saved = read_run(path_of(six_steps, 6))
    saved["batch"]["batch.targets"] ^= 1
    write_run(path_of(six_steps, 6), saved)
    with pytest.raises(DataError, match=r"^batch\.targets of step 5 is not the same as when the checkpoint"):
        train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(7, six_steps, resume=True))
    assert complete_steps(six_steps) == [6]


def test_incomplete_and_foreign_checkpoints_do_not_count(six_steps):
    done = path_of(six_steps, 6)
    shutil.copytree(done, six_steps / ".step-00000007.tmp")
    shutil.copytree(done, path_of(six_steps, 9))
    (path_of(six_steps, 9) / "run.json").unlink()
    assert complete_steps(six_steps) == [6]
    with pytest.raises(CheckpointError, match="already holds a checkpoint of step 9"):
        train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(7, six_steps))
    # One of another optimizer is refused.
    config = plans.config(7, six_steps, resume=True, optimizer=OptimizerConfig("sgd", plans.OPTIMIZER.lr))
    with pytest.raises(CheckpointError, match="optimizer is adamw there and sgd here"):
        train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, config)

"""After training, the module that was given has its trained parameters and buffers, under any plan."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import whole_module

from trainyard.job.run.checkpoint.weights import load_tensors, load_weights
from trainyard.job.run.config import WorkerInput
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.train import train
from trainyard.job.task import Task
from trainyard.program.model import Model

STEPS = 3


def _check(module):
    for name, value in whole_module.expected(STEPS).items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert module.head.weight is module.tokens.weight


@pytest.mark.parametrize(
    "how",
    [{"tensor": 2}, {"pipeline": 2}, pytest.param({"data": 2, "zero": 3}, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_given_module_is_trained(how):
    model = whole_module.model()
    weight, plan = model.module.tokens.weight, whole_module.plan(Task(model), **how)
    result = train(model, plan, whole_module.DATA, whole_module.config(STEPS))
    assert model.module.tokens.weight is weight
    assert result.checkpoint is None
    _check(model.module)


def test_with_checkpoints_a_given_module_is_that_of_the_last_one_also_if_nothing_is_left_to_do(tmp_path):
    model, _ = whole_module.trained(tmp_path, STEPS)
    plan = whole_module.plan(Task(model))
    resumed = train(model, plan, whole_module.DATA, whole_module.config(STEPS, tmp_path, resume=True))
    assert not resumed.metrics
    _check(model.module)


def test_a_module_on_the_meta_device_comes_to_the_cpu():
    model = whole_module.model()
    task = Task(model)
    work = WorkerInput(model, whole_module.plan(task), whole_module.DATA, whole_module.config(STEPS))
    with torch.device("meta"):
        there = Model("whole", whole_module.Whole(), whole_module.loss, whole_module.batch(0))

    def take(tensors):
        load_tensors(there.module, tensors)

    assert [*train_rank(work, prepare(work, task), 0, torch.device("cpu"), False, take_trained=take)]
    _check(there.module)
    assert torch.equal(there.module.scale, model.module.scale)


_SCRIPT = """
import json, sys
sys.path[:0] = {folders}
import torch, whole_module
from trainyard.job.run.train import train
from trainyard.job.task import Task
if __name__ == "__main__":
    model = whole_module.model()
    plan = whole_module.plan(Task(model), data=2, zero=3)
    train(model, plan, whole_module.DATA, whole_module.config({steps}))
    import os
    torch.save(model.module.state_dict(), {to!r} + os.environ["RANK"] + ".pt")
"""


@pytest.mark.slow
def test_under_a_launcher_all_ranks_modules_are_trained(tmp_path):
    script = tmp_path / "script.py"
    folders = [str(Path(__file__).parents[i]) for i in (0, 1)]
    script.write_text(_SCRIPT.format(folders=folders, steps=STEPS, to=str(tmp_path / "rank")))
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    subprocess.run(launch, check=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for rank in range(2):
        module = whole_module.model().module
        load_weights(module, tmp_path / f"rank{rank}.pt")
        _check(module)

"""Training in processes: what is reported, what a dead process does, and who may be a worker."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import plans
import pytest
import torch
from forked_ranks import rank_processes

from trainyard.hardware.parse import parse_cluster
from trainyard.job.plan import PlanError
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.processes.fork_server import WorkerError
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train
from trainyard.job.simulate import simulate_plan
from trainyard.program.model import Model

FOUR = {"data": 2, "pipeline": 2, "zero": 1}


def _killing_batches(step):
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def _failing_batches(step):
    if step == 2:
        print("about to fail")
        raise ValueError("no more data")
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def _shrinking_batches(step):
    rows = plans.ROWS // 2 if step == 1 else plans.ROWS
    return {k.removeprefix("batch."): v[:rows] for k, v in plans.DATA_SOURCE.batch(step).items()}


def test_a_later_batch_of_fewer_rows_is_refused():
    with pytest.raises(WorkerError, match=f"DataError: batch.* trains on {plans.ROWS} rows a step"):
        train(plans.MODEL, plans.plan(data=2), FunctionData(_shrinking_batches), plans.config(3))


def test_reports_every_step(tmp_path):
    seen = []
    plan = plans.plan(data=2, zero=3)
    config = plans.config(8, log=tmp_path)
    result = train(plans.MODEL, plan, plans.DATA_SOURCE, config, on_step=seen.append)
    assert [m.step for m in seen] == list(range(8))
    assert tuple(seen) == result.metrics
    assert result.metrics[-1].losses["loss:loss"] < result.metrics[0].losses["loss:loss"]
    one = result.metrics[3]
    assert one.rows_per_s == pytest.approx(plans.ROWS / one.seconds)
    assert one.tokens_per_s == pytest.approx(plans.ROWS * 16 / one.seconds)
    assert len(one.peak_memory_bytes) == len(one.sent_bytes) == 2
    # Two microbatches; each gathers parameters forward and backward, and scatters gradients once.
    size = 4 * sum(torch.Size(p.whole_shape).numel() for p in _params(plan))
    assert one.sent_bytes[0] == pytest.approx(2 * 3 * size / 2, rel=0.05)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["losses"] for line in lines] == [dict(m.losses) for m in seen]
    assert (tmp_path / "rank-1.log").exists()
    for m in seen:
        assert min(m.data_s, m.forward_backward_s, m.wait_s, m.update_s) > 0
        assert m.learning_rate == plans.OPTIMIZER.lr
        assert m.mfu is None


def _params(plan):
    return _lowered(plan).params.values()


def _lowered(plan):
    from trainyard.job.lower.lower import lower

    return lower(plans.program(plan.num_microbatches, plan.dtype), plan)


@pytest.mark.parametrize("axes", [{"data": 2, "tensor": 2}, {"data": 2, "pipeline": 2, "zero": 1}], ids=str)
def test_ranks_on_two_axes_send_what_the_simulation_says(axes):
    plan = plans.plan(**axes)
    predicted = simulate_plan(_lowered(plan), parse_cluster("1x4xA100-80G")).sent_bytes
    (step,) = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(1)).metrics
    assert len(step.sent_bytes) == 4
    for rank, sent in enumerate(step.sent_bytes):
        # Numbers that all ranks agree on at the end of a step (norm, losses) are not counted by the runtime.
        assert sent == pytest.approx(predicted[plan.coordinate(rank)["pipeline"]], rel=1e-3, abs=64)


def test_bfloat16_trains_and_float16_is_refused_where_stages_are_updated_early():
    plan = plans.plan(tensor=2, dtype="bfloat16")
    result = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(12))
    first, last = (sum(m.losses["loss:loss"] for m in result.metrics[i : i + 3]) for i in (0, 9))
    assert last < 0.9 * first
    early = plans.plan(pipeline=2, microbatches=2, schedule="pipedream", dtype="float16")
    with pytest.raises(PlanError, match="pipedream updates stages before it is known whether all gradients"):
        train(plans.MODEL, early, plans.DATA_SOURCE, plans.config(1))


def test_a_failing_rank_is_named_with_its_output(tmp_path):
    config = plans.config(4, tmp_path, checkpoint_every=1)
    with pytest.raises(WorkerError, match="failed: ValueError: no more data") as caught:
        train(plans.MODEL, plans.plan(data=2), FunctionData(_failing_batches), config)
    assert "about to fail" in str(caught.value)
    # The checkpoint of step 2 may still have been on its way to the disk.
    assert re.search(rf"--resume continues from step [12] \({tmp_path}\)", str(caught.value))


def test_a_killed_rank_is_named_and_all_are_stopped():
    with pytest.raises(WorkerError, match="was ended by SIGKILL after 1 restart\\."):
        train(
            plans.MODEL, plans.plan(data=2), FunctionData(_killing_batches), plans.config(4, max_restarts=1)
        )
    assert not rank_processes(2)


def _with_compiled_forward():
    model = plans.MODEL()
    model.module.forward = torch.compile(model.module.forward)
    return model


def _of_a_local_class():
    class Local(torch.nn.Linear):
        pass

    return Model("local", Local(2, 1), plans.MODEL().loss, {"x": torch.ones(2, 2)})


@pytest.mark.parametrize("make", [_with_compiled_forward, _of_a_local_class, lambda: lambda: plans.MODEL()])
def test_a_model_that_cannot_be_sent_is_refused_before_anything_is_written(make, tmp_path):
    config = plans.config(1, tmp_path / "checkpoints", log=tmp_path / "log")
    with pytest.raises(
        TypeError, match=r"the model cannot be sent .* top level of a module and builds the model"
    ):
        train(make(), plans.plan(), plans.DATA_SOURCE, config)
    assert not list(tmp_path.iterdir())


def test_data_that_cannot_be_sent_is_refused():
    data = FunctionData(lambda step: {})
    with pytest.raises(TypeError, match=r"the data cannot be sent .* top level of a module"):
        train(plans.MODEL, plans.plan(), data, plans.config(1))


@pytest.mark.parametrize(
    "kills",
    [pytest.param(1, marks=pytest.mark.slow), pytest.param(10, marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_killed_at_random_ends_as_undisturbed(kills, tmp_path):
    steps, generator, killed = 12 * kills + 24, random.Random(kills), []
    plan = plans.plan(**FOUR)
    undisturbed = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(steps, tmp_path / "a"))
    stop = threading.Event()

    def kill() -> None:
        while len(killed) < kills and not stop.wait(generator.uniform(0.2, 1.0)):
            ranks = rank_processes(4)
            if ranks:
                victim = generator.choice(ranks)
                victim.kill()
                killed.append(victim.pid)
                # Until it has been noticed, so that every kill is a restart of its own.
                victim.wait(10)
                stop.wait(0.5)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        config = plans.config(steps, tmp_path / "b", checkpoint_every=5, max_restarts=2 * kills)
        result = train(plans.MODEL, plan, plans.DATA_SOURCE, config)
    finally:
        stop.set()
        thread.join()
    assert killed
    assert len(result.restarts) >= 1
    assert all("SIGKILL" in r.reason and r.seconds < 10 for r in result.restarts)
    expected, found = (read_whole(r.checkpoint) for r in (undisturbed, result))
    for path, value in expected.items():
        torch.testing.assert_close(found[path], value, rtol=0, atol=1e-6)


_SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {folders!r}
import plans
from trainyard.job.run.train import train
from trainyard.job.simulate import simulate_plan
if __name__ == "__main__":
    result = train(plans.MODEL, plans.plan(data=2), plans.DATA_SOURCE, plans.config(3, log=Path({log!r})))
    assert len(result.metrics) in (0, 3)
"""


@pytest.mark.slow
def test_the_same_call_is_a_rank_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        _SCRIPT.format(folders=[str(Path(__file__).parents[i]) for i in (0, 1)], log=str(tmp_path))
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    subprocess.run(command, check=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    here = train(plans.MODEL, plans.plan(data=2), plans.DATA_SOURCE, plans.config(3))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["losses"] for line in lines] == [dict(m.losses) for m in here.metrics]
    assert len(lines[0]["peak_memory_bytes"]) == 2

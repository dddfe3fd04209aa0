"""Batches of several lengths train as plain PyTorch does on the same padded batches, on any ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lengths_run
import pytest
import torch
from lengths_run import LENGTHS, OF_STEPS, PADDED, ROWS, Counting, Net
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.lower.other_length import lower_at_length
from trainyard.job.plan import PlanError
from trainyard.job.run.config import TrainConfig, WorkerInput
from trainyard.job.run.errors import CheckpointError
from trainyard.job.run.processes.fork_server import WorkerError, run_ranks
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data import DataError, FunctionData
from trainyard.job.run.step.evaluation import Evaluation
from trainyard.job.task import Task
from trainyard.job.trainer import Trainer
from trainyard.program.model import Model
from trainyard.program.placement import Shard

STEPS = 4


def check(found: tuple[dict[str, Tensor], Any], steps: int = STEPS, kind: type[Net] = Net) -> None:
    values, reports = found
    wanted, losses = lengths_run.expected(steps, kind)
    assert values.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(values[name].view(value.shape), value, rtol=1e-5, atol=1e-6, msg=name)
    assert [r.losses["loss:loss"] for r in reports] == pytest.approx(losses[-len(reports) :], rel=1e-5)
    assert [r.length for r in reports] == [PADDED[r.step % 4] for r in reports]


@pytest.mark.parametrize(("microbatches", "kind"), [(2, Net), (1, Counting)])
def test_one_rank_trains_as_plain_pytorch(microbatches: int, kind: type[Net]) -> None:
    check(lengths_run.trained(0, STEPS, {"microbatches": microbatches}, kind=kind), kind=kind)


@pytest.mark.parametrize(
    "how",
    [
        {"pipeline": 2, "microbatches": 2},
        pytest.param({"data": 2}, marks=pytest.mark.slow),
        pytest.param({"data": 2, "zero": 3, "microbatches": 2}, marks=pytest.mark.slow),
    ],
    ids=["pipeline", "data", "zero"],
)
def test_several_ranks_train_as_plain_pytorch(how: dict[str, Any]) -> None:
    found = run_ranks(2, lengths_run.trained, STEPS, how)
    check((found[0][0], found[0][1]))
    check((found[0][0], found[1][1]))


def test_a_run_goes_on_from_a_checkpoint_with_what_all_lengths_have_made(tmp_path: Path) -> None:
    first = lengths_run.trained(0, 2, {}, checkpoint=tmp_path, kind=Counting)
    check(first, 2, Counting)
    check(lengths_run.trained(0, STEPS, {}, checkpoint=tmp_path, resume=True, kind=Counting), kind=Counting)


def test_a_run_does_not_go_on_with_other_lengths(tmp_path: Path) -> None:
    lengths_run.trained(0, 1, {}, checkpoint=tmp_path)
    others = replace(LENGTHS, sizes=(6, 8))
    with pytest.raises(CheckpointError, match="another loss or other lengths"):
        lengths_run.trained(0, 2, {}, lengths=others, checkpoint=tmp_path, resume=True)


def test_a_skipped_step_of_one_length_leaves_buffers_for_the_others() -> None:
    def scaled(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return lengths_run.loss(module, batch) * batch["scale"].mean()

    def data(step: int) -> dict[str, Tensor]:
        return {**lengths_run.batch(step), "scale": torch.full((ROWS,), torch.inf if step == 1 else 1.0)}

    whole = Model("net", Counting(), scaled, data(0), lengths=LENGTHS)
    task = Task(whole)
    seen: dict[str, Tensor] = {}
    config = TrainConfig(3, lengths_run.OPTIMIZER, on_nonfinite="skip")
    work = WorkerInput(whole, lengths_run.plan(task), FunctionData(data), config)
    arguments = (work, prepare(work, task), 0, torch.device("cpu"), False)
    said: list[Any] = [*train_rank(*arguments, take_trained=seen.update)]
    assert [step.skipped for step in said[1:]] == [False, True, False]
    assert seen["buffer/seen"].item() == ROWS * (OF_STEPS[0] + OF_STEPS[2])


def _of_own_length(rank: int) -> None:
    def data(step: int) -> dict[str, Tensor]:
        found = lengths_run.batch(step)
        return {n: t[:, :2] for n, t in found.items()} if rank and step == 3 else found

    lengths_run.trained(rank, 4, {"data": 2}, data)


@pytest.mark.slow
def test_ranks_whose_batches_have_other_lengths_are_refused() -> None:
    with pytest.raises(WorkerError, match="batch of step 3 is padded to 4 on some ranks and to 8 on others"):
        run_ranks(2, _of_own_length)


def _longer(step: int) -> dict[str, Tensor]:
    return {n: t.repeat(1, 2) for n, t in lengths_run.batch(step).items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_longer, r"step 1, of data\(1\): batch.tokens has length 14; the largest of lengths is 8"),
        (
            lambda step: {**lengths_run.batch(step), "labels": lengths_run.batch(step)["labels"][:, 1:]},
            "step 0.* several lengths: batch.tokens 3, batch.labels 2; pad them to one",
        ),
        (
            lambda step: {**lengths_run.batch(step), "labels": lengths_run.batch(step)["labels"][:, 0]},
            r"batch.labels has shape \(4,\) and so no dimension 1, which lengths pads",
        ),
        (lambda step: {"tokens": lengths_run.batch(step)["tokens"]}, "the data has no batch.labels"),
    ],
    ids=["too long", "two lengths", "no length", "missing"],
)
def test_a_batch_that_no_length_holds_is_refused(change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        lengths_run.trained(0, 2, {}, change)


def test_a_trainer_knows_the_lengths_of_a_model_that_a_function_builds() -> None:
    rows = [{name: [1] * size for name in ("tokens", "labels")} for size in (1, 3, 5, 2)]
    result = Trainer(lengths_run.model, rows, steps=1, processes=1).train()
    assert result.metrics[0].length == 8


class Batches:
    """Yields batches whenever it is iterated."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def test_an_evaluation_may_have_any_lengths() -> None:
    held_out = [lengths_run.batch(step) for step in range(2)]
    values, reports = lengths_run.trained(0, 1, {}, evaluate=Evaluation(Batches(held_out)))
    module = lengths_run.model().module
    module.load_state_dict({n: values[n].view(v.shape) for n, v in module.state_dict().items()})
    means = [lengths_run.loss(module, each).item() for each in held_out]
    assert reports[-1].evaluation["loss"] == pytest.approx(sum(means) / 2, rel=1e-5)


class OnlyLong(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        found = super().forward(tokens)
        return found + self.unused(found[..., :2]).sum() if tokens.shape[1] > 4 else found


def test_a_model_that_trains_other_parameters_at_another_length_is_refused() -> None:
    task = Task(lengths_run.model(OnlyLong))
    lowered = lower(task.program(ROWS), lengths_run.plan(task))
    with pytest.raises(PlanError, match="cannot be applied at length 4: ranks would keep other parameters"):
        lower_at_length(lowered, task.shorter[4].program(ROWS), 4)


def test_a_plan_that_cannot_cut_a_shorter_batch_is_refused_with_its_length() -> None:
    whole = lengths_run.model(lengths=replace(LENGTHS, sizes=(3, 8)))
    task = Task(whole)
    plan = lengths_run.plan(task, data=2)
    placed = {name: Shard(1) for name in ("batch.tokens", "batch.labels")}
    plan = replace(plan, stages=(replace(plan.stages[0], rows=()),)).with_placements("data", placed)
    work = WorkerInput(whole, plan, FunctionData(lengths_run.batch), TrainConfig(1))
    with pytest.raises(PlanError, match=r"cannot be applied at length 3: .*Leave the size out of lengths"):
        prepare(work, task)


def test_steps_of_several_lengths_are_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="leave profile out"):
        lengths_run.trained(0, 1, {}, profile=True, log=tmp_path)

"""Evaluation while training: the values of plain PyTorch in evaluation mode, and what follows from them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import one_rank
import plans
import pytest
import torch
from data_sets import Columns, Rows
from one_rank import ROWS
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trainyard.errors import TrainyardError
from trainyard.job.run.best import EarlyStop, KeepBest
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.step.data import DataError
from trainyard.job.run.step.evaluation import Evaluation, evaluation_batches
from trainyard.job.run.train import train
from trainyard.program.model import Model
from trainyard.zoo.registry import build

HELD_OUT = 10  # rows: two batches of four, and one of two


def errors(module: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"largest": (module(batch["x"]) - batch["y"]).abs().amax()}


def roots(means: Mapping[str, float]) -> dict[str, float]:
    return {"root": math.sqrt(means["loss"])}


def plain(
    model: Model, weights: Mapping[str, Tensor], batches: list[Any], metrics: Any = None
) -> dict[str, float]:
    """Means over rows by plain PyTorch in evaluation mode."""
    module = copy.deepcopy(model.module)
    state = module.state_dict()
    module.load_state_dict({n: weights[n].view(state[n].shape) for n in state if n in weights}, strict=False)
    module.eval()
    sums: dict[str, float] = {}
    rows = 0
    with torch.no_grad():
        for batch in batches:
            count = len(next(iter(batch.values())))
            loss = model.loss(module, batch)
            assert isinstance(loss, Tensor)
            values = {"loss": loss, **(metrics(module, batch) if metrics else {})}
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value.item() * count
            rows += count
    return {name: value / rows for name, value in sums.items()}


def batches_of(data: Any, sizes: tuple[int, ...]) -> list[dict[str, Tensor]]:
    found, first = [], 0
    for size in sizes:
        read = [data[i] for i in range(first, first + size)]
        found.append({name: torch.stack([row[name] for row in read]) for name in read[0]})
        first += size
    return found


def test_one_process_evaluates_as_plain_pytorch_in_evaluation_mode(tmp_path: Path) -> None:
    evaluation = Evaluation(Rows(HELD_OUT), 2, errors, roots)
    _, whole = one_rank.run(None, 5)
    _, steps = one_rank.run(tmp_path, 5, evaluate=evaluation, checkpoint_every=2, keep=9)
    assert [s.losses for s in steps] == [s.losses for s in whole]  # training is what it would be without
    assert [bool(s.evaluation) for s in steps] == [False, True, False, True, True]
    for step in (2, 4, 5):
        folder = tmp_path / f"step-{step:08d}"
        weights = read_whole(folder) | read_whole(folder, "buffer")
        expected = plain(one_rank.model(), weights, batches_of(Rows(HELD_OUT), (4, 4, 2)), errors)
        said = dict(steps[step - 1].evaluation)
        assert said.pop("root") == math.sqrt(said["loss"])
        assert said == pytest.approx(expected, rel=1e-6)


def test_two_processes_evaluate_as_plain_pytorch(tmp_path: Path) -> None:
    model = build("gpt-tiny", plans.ROWS)
    tokens = torch.randint(0, 128, (HELD_OUT, 17), generator=torch.Generator().manual_seed(3))
    held_out = [{"tokens": row[:-1], "targets": row[1:]} for row in tokens]
    loader: Any = DataLoader(held_out, 4, shuffle=True)  # type: ignore[arg-type]
    config = plans.config(2, tmp_path, evaluate=Evaluation(loader, 1))
    result = train(plans.MODEL, plans.plan(data=2, zero=3), plans.DATA_SOURCE, config)
    assert [bool(m.evaluation) for m in result.metrics] == [True, True]
    expected = plain(model, read_whole(tmp_path / "step-00000002"), batches_of(held_out, (4, 4, 2)))
    assert dict(result.metrics[-1].evaluation) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "data",
    [
        Rows(HELD_OUT),
        Columns(HELD_OUT),
        [Rows()[i] for i in range(HELD_OUT)],
        DataLoader(Rows(HELD_OUT), ROWS, shuffle=True),
        DataLoader(DataLoader(Rows(HELD_OUT), ROWS).dataset, ROWS, sampler=range(HELD_OUT)),
    ],
    ids=["dataset", "columns", "list", "loader", "sampler"],
)
def test_ranks_evaluate_every_row_once(data: Any) -> None:
    wanted = batches_of(Rows(HELD_OUT), (4, 4, 2))
    by_rank = [list(evaluation_batches(data, ROWS, None, rank, 2)) for rank in (0, 1)]
    assert [[number for number, _ in batches] for batches in by_rank] == [[0, 2], [1]]
    for number, batch in (*by_rank[0], *by_rank[1]):
        assert all(torch.equal(batch[name], wanted[number][name]) for name in wanted[number])


def test_a_held_out_set_that_cannot_be_read_again_or_is_empty_is_refused() -> None:
    with pytest.raises(DataError, match="tuple_iterator cannot be read again at each evaluation"):
        evaluation_batches(iter((1, 2)), ROWS, None)
    with pytest.raises(DataError, match="held-out set has no rows"):
        one_rank.run(None, 1, evaluate=Evaluation([]))
    with pytest.raises(TrainyardError, match="is a str; a batch holds tensors only"):
        one_rank.run(None, 10**6, evaluate=Evaluation("abcd"))


def history_of(*losses: float) -> list[tuple[int, dict[str, float]]]:
    return [(10 * (i + 1), {"loss": loss, "accuracy": -loss}) for i, loss in enumerate(losses)]


def test_a_run_stops_when_a_metric_gets_no_better() -> None:
    history = history_of(3.0, 2.0, 2.5, math.nan, 2.0)
    assert EarlyStop(patience=4).reason(history) == ""
    reason = EarlyStop(patience=3).reason(history)
    assert reason.startswith(
        "stopped early after step 50: loss was best after step 20 (2), and no better in 3"
    )
    assert EarlyStop("accuracy", "max", patience=3).reason(history)
    assert EarlyStop(patience=3, min_delta=1.5).reason(history_of(3.0, 2.0, 1.0)) == ""
    assert EarlyStop(patience=2, min_delta=5.0).reason(history_of(3.0, 2.0, 1.0))
    with pytest.raises(ValueError, match="no metric 'f1'; it has loss, accuracy"):
        EarlyStop("f1").reason(history)
    assert KeepBest(num=2).steps(history) == [20, 50]
    assert KeepBest("accuracy", "max").steps(history) == [20]


def test_an_early_stop_holds_for_a_resumed_run_and_the_best_checkpoints_stay(tmp_path: Path) -> None:
    """With the negative loss as the metric, the first evaluation is the best."""
    evaluation = Evaluation(Rows(HELD_OUT), 1, from_means=worse_and_worse)
    how = {"evaluate": evaluation, "keep": 1, "keep_best": KeepBest("worse", num=2)}
    _, steps = one_rank.run(tmp_path, 3, **how)
    assert complete_steps(tmp_path) == [3, 2, 1]
    stop = EarlyStop("worse", patience=4)
    _, more = one_rank.run(tmp_path, 9, resume=True, early_stop=stop, **how)
    assert [s.step for s in more] == [3, 4]
    assert more[-1].note.startswith("stopped early after step 5: worse was best after step 1 (")
    assert complete_steps(tmp_path) == [5, 2, 1]
    ready, none = one_rank.run(tmp_path, 9, resume=True, early_stop=stop, **how)
    assert not none
    assert ready.notes == (more[-1].note,)
    assert steps[0].evaluation["worse"] < steps[1].evaluation["worse"]


@pytest.mark.parametrize(
    "options", [{"early_stop": EarlyStop("f1")}, {"keep_best": KeepBest("f1"), "checkpoint_every": 0}]
)
def test_a_metric_that_no_evaluation_gives_is_refused_before_the_first_step(
    options: dict[str, Any], tmp_path: Path
) -> None:
    batches = []

    def metrics(module: nn.Module, batch: Any) -> dict[str, float]:
        batches.append(len(batch["x"]))
        return {"accuracy": 1.0}

    evaluation = Evaluation(Rows(HELD_OUT), 1, metrics, worse_and_worse)
    with pytest.raises(TrainyardError, match=r"no metric .f1.; it has loss, accuracy, worse\. Give one"):
        one_rank.run(tmp_path, 3, evaluate=evaluation, **options)
    assert batches == [ROWS]
    assert not complete_steps(tmp_path)


def test_what_is_made_of_means_is_not_asked_for_early_without_need() -> None:
    numbers = iter((3, 3))

    def later(means: Mapping[str, float]) -> dict[str, float]:
        return {"rest": float(next(numbers))}

    evaluation = Evaluation(Rows(HELD_OUT), 1, from_means=later)
    _, steps = one_rank.run(None, 2, evaluate=evaluation, early_stop=EarlyStop())
    assert [step.evaluation["rest"] for step in steps] == [3.0, 3.0]


def worse_and_worse(means: Mapping[str, float]) -> dict[str, float]:
    """A value that grows while the loss falls."""
    return {"worse": -means["loss"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"early_stop": EarlyStop()}, "compare evaluations: give evaluate"),
        ({"evaluate": Evaluation([]), "keep_best": KeepBest()}, "keep_best needs the folder"),
    ],
)
def test_options_without_what_they_need_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(1, **options)

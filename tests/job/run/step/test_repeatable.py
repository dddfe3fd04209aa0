"""Data that is no function of the step is refused before anything is planned or trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from trainyard.cli.main import main
from trainyard.job.run.step.data import DataError, FunctionData
from trainyard.job.run.step.repeatable import Repeatable, repeatable

ROWS, NUM_STEPS = 2, 5
Batch = dict[str, Any]

STATEFUL_FILE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(64).float()[:, None].repeat(1, 4), torch.arange(64) % 4)
batches = iter(DataLoader(rows, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7)))


def model():
    loss = lambda module, batch: torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"])
    return torch.nn.Linear(4, 4), loss, {"x": torch.zeros(8, 4), "y": torch.zeros(8, dtype=torch.int64)}


def data(step):
    x, y = next(batches)
    return {"x": x / 64, "y": y}
"""


def shuffled_loader() -> Callable[[int], Batch]:
    loader = DataLoader(TensorDataset(torch.arange(64.0)), ROWS, shuffle=True)
    batches = iter(loader)
    return lambda step: {"x": next(batches)[0], "y": torch.ones(ROWS)}


def cycled(length: int) -> Callable[[int], Batch]:
    batches = itertools.cycle([{"x": torch.full((ROWS,), float(i))} for i in range(length)])
    return lambda step: next(batches)


def last_remembered() -> Callable[[int], Batch]:
    """As one that makes a batch when the step has changed since the call before."""
    known: dict[int, Batch] = {}

    def batch(step: int) -> Batch:
        if step not in known:
            known.clear()
            known[step] = {"x": torch.randn(ROWS)}
        return known[step]

    return batch


def growing() -> Callable[[int], Batch]:
    lengths = itertools.count(ROWS)
    return lambda step: {"x": torch.zeros(next(lengths))}


def in_turns() -> Callable[[int], Batch]:
    names = itertools.cycle("xy")
    return lambda step: {next(names): torch.zeros(ROWS)}


def all_remembered() -> Callable[[int], Batch]:
    """The same within a process only."""
    batches = itertools.count()
    return cache(lambda step: {"x": torch.full((ROWS,), float(next(batches)))})


def of_the_step(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return {"x": {"a": torch.randn(ROWS, generator=generator)}, "gap": torch.tensor([float("nan"), step])}


def reused() -> Callable[[int], Batch]:
    buffer = torch.empty(ROWS)
    return lambda step: {"x": buffer.fill_(step)}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (shuffled_loader, r"batch\.x"),
        (lambda: lambda step: {"x": torch.ones(ROWS), "noise": torch.randn(ROWS)}, r"batch\.noise"),
        (lambda: cycled(2), r"batch\.x"),
        (lambda: cycled(3), r"batch\.x"),
        (last_remembered, r"batch\.x"),
        (growing, r"batch\.x"),
        (in_turns, r"batch\.[xy]"),
    ],
    ids=["loader", "global random", "cycle of 2", "cycle of 3", "last remembered", "shape", "names"],
)
def test_data_with_a_position_of_its_own_is_refused_with_the_remedy(
    make: Callable[[], Callable[[int], Batch]], name: str
) -> None:
    with pytest.raises(
        DataError, match=rf"^{name} of step \d is not the same when .*index .*manual_seed\(step\)$"
    ):
        repeatable(FunctionData(make()), NUM_STEPS)


@pytest.mark.parametrize(
    "make", [lambda: of_the_step, reused, lambda: cycled(1)], ids=["step", "reused", "fixed"]
)
def test_functions_of_the_step_pass_and_are_asked_for_steps_of_the_run_only(
    make: Callable[[], Callable[[int], Batch]],
) -> None:
    for num_steps in (0, 1, NUM_STEPS):
        asked: list[int] = []
        function = make()

        def noted(step: int, asked: list[int] = asked, function: Callable[[int], Batch] = function) -> Batch:
            asked.append(step)
            return function(step)

        found = repeatable(FunctionData(noted), num_steps)
        assert set(asked) == set(range(min(num_steps, 2)))
        assert repeatable(found, num_steps) is found
        assert torch.equal(found.batch(3).popitem()[1].nan_to_num(), by_name(function(3)).nan_to_num())


def by_name(batch: Batch) -> Tensor:
    value = list(batch.values())[-1]
    assert isinstance(value, Tensor)
    return value


def test_what_differs_between_processes_is_refused() -> None:
    found = repeatable(FunctionData(all_remembered()), NUM_STEPS)
    elsewhere = Repeatable(FunctionData(all_remembered()), found.seen, process=0)
    with pytest.raises(DataError, match=r"^batch\.x of step 1 is not the same in another process\. "):
        repeatable(elsewhere, NUM_STEPS)
    kept = replace(repeatable(FunctionData(of_the_step), NUM_STEPS), process=0)
    assert repeatable(kept, NUM_STEPS) is kept


def test_an_iterator_at_its_end_and_a_function_that_fails_are_told_apart() -> None:
    few = iter([{"x": torch.zeros(ROWS)}])
    with pytest.raises(DataError, match=r"no batch of step 1: an iterator is at its end\. .*index the data"):
        repeatable(FunctionData(lambda step: next(few)), NUM_STEPS)
    table = [{"x": torch.zeros(ROWS)}]
    with pytest.raises(DataError, match=r"of step 1 cannot be made: IndexError: .*test_repeatable\.py"):
        repeatable(FunctionData(lambda step: table[step]), NUM_STEPS)


def test_the_command_line_refuses_a_shuffling_loader_before_it_plans(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("trainyard.job.planning.plan", None)
    monkeypatch.setattr("trainyard.hardware.local_profile", None)
    (tmp_path / "stateful_loader.py").write_text(STATEFUL_FILE)
    command = ["train", str(tmp_path / "stateful_loader.py"), "--checkpoint", str(tmp_path / "run")]
    assert main([*command, "--steps", "4"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "error: batch.x of step" in said
    assert "manual_seed(step)" in said
    assert not (tmp_path / "run").exists()

"""The CTC loss of any lengths is one graph, whose rows are apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_capture import assert_captured
from torch import Tensor, nn

from trainyard.job.lower.split import split
from trainyard.program.ctc_loss import CTC_LOSS, CTC_LOSS_BACKWARD
from trainyard.program.model import Model

ROWS, TIME, CLASSES, MOST = 4, 9, 5, 3
LENGTHS = torch.tensor([3, 1, 2, 1])
TARGETS = torch.tensor([[1, 1, 2], [4, 0, 0], [3, 2, 0], [2, 0, 0]])
BATCH = {
    "x": torch.linspace(-1, 1, ROWS * TIME * 6).sin().view(ROWS, TIME, 6),
    "targets": TARGETS,
    "inputs": torch.tensor([TIME, 4, 6, 7]),
    "lengths": LENGTHS,
}
CONCATENATED = BATCH | {"targets": torch.cat([row[:n] for row, n in zip(TARGETS, LENGTHS, strict=True)])}


def loss(
    module: nn.Module, batch: Any, function: Callable[..., Tensor] = F.ctc_loss, time: int = TIME
) -> Tensor:
    """The mean over what a function makes of the first steps of time."""
    scores = F.log_softmax(module(batch["x"]), -1).transpose(0, 1)[:time]
    inputs = batch["inputs"].clamp(max=time)
    return function(scores, batch["targets"], inputs, batch["lengths"]).mean()


def given_lists(scores: Tensor, targets: Tensor, *_: Tensor) -> Tensor:
    return F.ctc_loss(scores, targets, [TIME] * scores.shape[1], (2,) * scores.shape[1])


WAYS: dict[str, Callable[..., Tensor]] = {
    "mean": loss,
    "sum": partial(loss, function=partial(F.ctc_loss, reduction="sum")),
    "none": partial(loss, function=partial(F.ctc_loss, reduction="none")),
    "module": partial(loss, function=nn.CTCLoss(blank=1)),
    "some of infinite loss": partial(loss, function=partial(F.ctc_loss, zero_infinity=True), time=2),
    "lists": partial(loss, function=given_lists),
}


def check(way: str, batch: dict[str, Tensor], whole: tuple[str, ...] = ()) -> Any:
    program = assert_captured(Model(way, nn.Linear(6, CLASSES), WAYS[way], batch, whole))
    targets = {node.target for node in program.graph.nodes}
    assert {CTC_LOSS, CTC_LOSS_BACKWARD} <= targets
    return split(program, 2)


@pytest.mark.parametrize("way", WAYS)
def test_lengths_may_be_any_and_rows_are_apart(way: str) -> None:
    assert not check(way, BATCH).totals


@pytest.mark.parametrize("way", ["mean", "some of infinite loss"])
def test_targets_of_all_rows_may_follow_each_other(way: str) -> None:
    # Where a row's targets begin depends on the lengths of those before: all lengths are known before the first half.
    half = check(way, CONCATENATED, ("targets",))
    assert [entry.path for entry in half.inputs if entry.kind == "total"] != []

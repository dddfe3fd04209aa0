"""Ops of the user's own whose rows are declared: split exactly, and refused where the declaration is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from split_steps import check_splits
from torch import Tensor, nn

import trainyard
from trainyard.job.lower.split import CoupledRowsError, split
from trainyard.job.planning import load_model
from trainyard.program.capture import capture
from trainyard.program.capture_error import CaptureError
from trainyard.program.model import Model

ROWS = 8


@trainyard.rows(shared=["weight"])
@torch.library.custom_op("test_rows::scaled", mutates_args=())
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sin()


@trainyard.rows(shared=["weight"], summed=[1])
@torch.library.custom_op("test_rows::scaled_backward", mutates_args=())
def scaled_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    inner = grad * (x * weight).cos()
    return inner * weight, (inner * x).sum(0)


@scaled.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


@scaled_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


scaled.register_autograd(
    lambda ctx, grad: scaled_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def _op(name: str, function: Callable[[Tensor], Tensor]) -> Any:
    """An op of one argument whose result has its shape, and without a gradient."""

    @torch.library.custom_op(f"test_rows::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return function(x)

    op.register_fake(lambda x: torch.empty_like(x))
    return op


def _model(op: Callable[[Tensor], Tensor]) -> Model:
    torch.manual_seed(0)
    batch = {"x": torch.randn(ROWS, 4)}
    return Model("own", nn.Linear(4, 4), lambda m, b: (m(b["x"]) * op(b["x"])).square().mean(), batch)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.weight = nn.Linear(4, 6), nn.Parameter(torch.linspace(0.5, 2, 6))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = scaled(self.inner(x), self.weight)
        return found


def test_declared_ops_are_split_forward_and_backward() -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(ROWS, 4)}
    check_splits(Model("own", Net(), lambda m, b: m(b["x"]).square().mean(), batch))


def test_the_example_of_the_documentation_is_split() -> None:
    check_splits(load_model(str(Path(__file__).parents[3] / "examples" / "exact_own_op.py")), 4)


def test_an_op_is_apart_only_once_it_is_declared() -> None:
    op = _op("later", lambda x: x * 2)
    model = Model(
        "own", nn.Linear(4, 4), lambda m, b: (m(b["x"]) * op(m(b["x"]).detach())).mean(), _model(op).batch
    )
    with pytest.raises(CoupledRowsError, match="nothing says how the rows of the op later"):
        split(capture(model), 2)
    assert trainyard.rows(op) is op
    check_splits(model)


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(0),
    "neighbour": lambda x: x + x.roll(1, 0),
    "position": lambda x: x + torch.arange(len(x))[:, None],
    "random": lambda x: x + torch.rand(x.shape),
    "infinite": lambda x: torch.cat([torch.full_like(x[:, :1], torch.inf), (x - x.mean(0))[:, 1:]], 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_is_refused_when_the_model_is_captured(name: str) -> None:
    op = trainyard.rows(_op(name, WRONG[name]))
    with pytest.raises(
        CaptureError, match=rf"test_rows.{name}.* result 0 is another one for 4 rows at once than for 1 and 3"
    ):
        capture(_model(op))


def test_arguments_are_drawn_apart() -> None:
    @trainyard.rows
    @torch.library.custom_op("test_rows::apart", mutates_args=())
    def apart(x: Tensor, y: Tensor) -> Tensor:
        return x + (x - y).sum(0)  # nothing, where both are the same

    apart.register_fake(lambda x, y: torch.empty_like(x))
    batch = {name: torch.randn(ROWS, 4) for name in "ab"}
    model = Model("own", nn.Linear(4, 4), lambda m, b: (m(b["a"]) * apart(b["a"], b["b"])).sum(), batch)
    with pytest.raises(CaptureError, match="another one for 4 rows at once"):
        capture(model)


def test_calls_of_one_form_are_checked_once() -> None:
    runs = []

    def count(x: Tensor) -> Tensor:
        runs.append(len(x))
        return x * 2

    op = trainyard.rows(_op("counted", count))
    batch = {"x": torch.randn(ROWS, 4)}
    capture(
        Model(
            "own",
            nn.Linear(4, 4),
            lambda m, b: (m(op(op(b["x"]))) + op(b["x"][:, :2]).sum(1, True)).mean(),
            batch,
        )
    )
    assert runs == [4, 1, 3] * 2


def test_a_gpu_that_nothing_is_trained_on_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    capture(_model(trainyard.rows(_op("sine_beside_a_gpu", torch.sin))))
    for name in ("mean", "position"):
        with pytest.raises(CaptureError, match="result 0 is another one for 4 rows at once"):
            capture(_model(trainyard.rows(_op(f"{name}_beside_a_gpu", WRONG[name]))))


def test_an_op_that_cannot_be_run_on_drawn_numbers_is_checked_on_an_example() -> None:
    def positive(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative numbers have no root")
        return x.sqrt()

    op = trainyard.rows(_op("root", positive))
    with pytest.raises(CaptureError, match=r"fails on 4 rows.*no root.*example="):
        capture(_model(op))
    trainyard.rows(op, example=[torch.rand(4, 2)])
    capture(_model(op))


def test_tensors_without_the_rows_of_the_declaration_are_refused() -> None:
    trainyard.rows(scaled)
    try:
        with pytest.raises(CaptureError, match=r"shapes \[\(8, 6\), \(6,\)\].*equally many rows"):
            capture(Model("own", Net(), lambda m, b: m(b["x"]).mean(), {"x": torch.randn(ROWS, 4)}))
    finally:
        trainyard.rows(scaled, shared=["weight"])


def test_what_is_no_op_of_ones_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"given <built-in.*torch.library.custom_op"):
        trainyard.rows(torch.sin)
    with pytest.raises(ValueError, match="PyTorch's own ops are known"):
        trainyard.rows(torch.ops.aten.sin.default)
    with pytest.raises(ValueError, match=r"shared=\['bias'\].*\['x', 'weight'\]"):
        trainyard.rows(scaled, shared=["bias"])

    @torch.library.custom_op("test_rows::written", mutates_args=["x"])
    def written(x: Tensor) -> None:
        x.zero_()

    with pytest.raises(ValueError, match="writes to its arguments"):
        trainyard.rows(written)


@pytest.mark.parametrize(
    ("example", "compute", "why"),
    [
        ([torch.randn(1, 4)], lambda x: x - x.mean(0), "has not 4 rows"),
        ([torch.randn(4, 4), 1], lambda x: x.clone(), "more arguments than the op"),
        ([], lambda x: (x - 1e9).log() - 1, "no number of a result is finite"),
        ([], lambda x: (x - 1e9).relu() * (x - x.mean(0)), "all numbers of the results are 0"),
    ],
    ids=["few rows", "many arguments", "no number", "zeros"],
)
def test_examples_on_which_nothing_shows_are_refused(example: Any, compute: Any, why: str) -> None:
    op = trainyard.rows(_op(f"example_{why[:3].strip()}", compute), example=example)
    with pytest.raises(CaptureError, match=why):
        capture(_model(op))

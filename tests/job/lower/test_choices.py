"""Choices that a plan gives: complete ones are run as they are said, and any of them compute what one device does."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from lockstep import joined_values, whole_values
from one_block import MEGATRON, ROWS, drawn_choices, task
from torch import Tensor

from trainyard.job.lower.shard import complete, shard
from trainyard.job.run.step.data import by_path
from trainyard.program import spmd
from trainyard.program.capture import capture
from trainyard.program.choices import ChoiceError
from trainyard.program.model import Model
from trainyard.program.placement import REPLICATE, OpChoice, Placement, Shard, parse_op_choice
from trainyard.program.program import Program
from trainyard.program.propagate import Axis

ALL_R = (REPLICATE, REPLICATE)
TENSOR = Axis("tensor", 2)


@cache
def program() -> Program:
    return task().program(ROWS)


@cache
def inputs() -> dict[str, Tensor]:
    model = task().model
    found = by_path(model.batch) | dict(program().constants) | {"rng": torch.tensor([3, 0, 0])}
    return (
        found
        | {n: p.detach() for n, p in model.module.named_parameters()}
        | dict(model.module.named_buffers())
    )


@cache
def alone() -> dict[str, Tensor]:
    return whole_values(program(), inputs())


def grads(placed: dict[str, Placement]) -> dict[str, Placement]:
    """A gradient lies as its parameter does."""
    return {f"grad:{i.path}": placed.get(i.path, REPLICATE) for i in program().params} | placed


def check(wanted: dict[str, Placement], said: dict[str, OpChoice]) -> None:
    """All ranks together compute the loss and gradients of one device."""
    found = joined_values(shard(program(), TENSOR, wanted, said), TENSOR.size, inputs())
    assert found.keys() == alone().keys()
    for name, value in alone().items():
        scale = max(float(value.abs().max()), 1e-3)
        assert float((found[name] - value).abs().max()) <= 1e-5 * scale, name


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 100))]
)
def test_any_complete_choices_compute_what_one_device_does(seed: int) -> None:
    said = drawn_choices(program(), TENSOR.size, seed)
    assignment = complete(program(), TENSOR, grads({}), said)
    assert assignment.program is program(), "nothing is written out unasked"
    assert assignment.decided() == said
    check(grads({}), said)


PLACED = {
    "nothing": {},
    "megatron": MEGATRON,
    "rows": dict.fromkeys(("batch.tokens", "batch.targets"), Shard(0)),
}


@pytest.mark.parametrize("name", PLACED)
def test_what_propagation_decides_can_be_given_back(name: str) -> None:
    wanted = grads(dict(PLACED[name]))
    first = shard(program(), TENSOR, wanted)
    text = {name: str(choice) for name, choice in first.assignment.decided().items()}
    again = shard(program(), TENSOR, wanted, {name: parse_op_choice(c) for name, c in text.items()})
    assert {name: str(choice) for name, choice in again.assignment.decided().items()} == text
    assert str(again.program.graph) == str(first.program.graph)
    check(wanted, dict(again.assignment.decided()))


def test_one_op_runs_as_it_is_said_and_the_rest_is_completed() -> None:
    """Of a product that propagation would cut by columns, the weights' rows are cut."""
    free = shard(program(), TENSOR, grads(MEGATRON))
    assert str(free.assignment.decided()["blocks.0.up:mm"]) == "R S1 -> S1"
    said = {
        "blocks.0.up:mm": parse_op_choice("S1 S0 -> P -> R"),
        "blocks.*:backward.mul*": OpChoice(ALL_R, ALL_R[:1]),
    }
    found = shard(program(), TENSOR, grads(MEGATRON), said)
    assert str(found.assignment.decided()["blocks.0.up:mm"]) == "S1 S0 -> P -> R"
    assert str(found.assignment.decided()["blocks.0:backward.mul"]) == "R R -> R"
    sums = [
        n
        for n in found.program.graph.nodes
        if n.target is spmd.all_reduce and n.meta["layer"] == "blocks.0.up"
    ]
    assert [n.meta["moved_from"] for n in sums if n.meta["phase"] == "forward"] == [
        (program().addresses.nodes["blocks.0.up:mm"].name,)
    ]
    check(grads(MEGATRON), said)


def test_parts_that_are_named_are_written_out() -> None:
    """The softmax of the loss, cut over the vocabulary, and its gradient with it."""
    said = {":_log_softmax/sum": parse_op_choice("S1 -> P -> R")}
    found = shard(program(), TENSOR, grads({}), said)
    assert str(found.assignment.decided()[":_log_softmax/sum"]) == "S1 -> P -> R"
    assert ":backward._log_softmax_backward_data/sum" in found.assignment.decided()
    check(grads({}), said)


def test_a_softmax_is_written_out_where_its_dimension_is_cut() -> None:
    module = torch.nn.Linear(4, 8)
    weights = torch.randn(3, 8)
    model = Model(
        "net", module, lambda m, b: (m(b["x"]).softmax(-1) * weights).sum(), {"x": torch.randn(3, 4)}
    )
    traced = capture(model)
    given = by_path(model.batch) | dict(traced.constants) | {"rng": torch.tensor([3, 0, 0])}
    given |= {name: p.detach() for name, p in module.named_parameters()}
    unplaced: dict[str, Placement] = {"grad:weight": REPLICATE, "grad:bias": REPLICATE}
    found = shard(traced, TENSOR, unplaced, {":_softmax/sum": parse_op_choice("S1 -> P -> R")})
    assert str(found.assignment.decided()[":_softmax/sum"]) == "S1 -> P -> R"
    joined = joined_values(found, TENSOR.size, given)
    for name, value in whole_values(traced, given).items():
        torch.testing.assert_close(joined[name], value)


class _Sum(torch.nn.Module):
    """A product with the sum of two parameters, whose gradients are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.randn(4, 8)), torch.nn.Parameter(torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a + self.b)


def test_a_gradient_of_two_parameters_lies_as_each_of_them() -> None:
    module = _Sum()
    model = Model("sum", module, lambda m, b: m(b["x"]).square().sum(), {"x": torch.randn(3, 4)})
    traced = capture(model)
    given = by_path(model.batch) | {
        "rng": torch.tensor([3, 0, 0]),
        "a": module.a.detach(),
        "b": module.b.detach(),
    }
    placed: dict[str, Placement] = {"a": Shard(0), "b": Shard(1), "grad:a": Shard(0), "grad:b": Shard(1)}
    joined = joined_values(shard(traced, TENSOR, placed), TENSOR.size, given)
    for name, value in whole_values(traced, given).items():
        torch.testing.assert_close(joined[name], value)


@pytest.mark.parametrize(
    ("name", "choice", "why"),
    [
        (
            "blocks.0.up:mm",
            "S0 S0 -> S0",
            "blocks.0.up:mm cannot run as S0 S0 -> S0 on 2 ranks; it can as R R -> R, ",
        ),
        ("blocks.0.up:mm", "R -> R", "cannot run as R -> R"),
        ("blocks.0.up:mm", "S7 R -> S7", "cannot run as S7 R -> S7"),
        ("blocks.0.up:mm", "R R -> R -> Pmax", "cannot be moved to Pmax"),
        ("blocks.0.up:mm", "R R -> R -> S2", "cannot be moved to S2: its result of shape (32, 32)"),
        ("blocks.0.up:mn", "R R -> R", "'blocks.0.up:mn' is no op of the model; there are blocks.*.up:mm"),
        (
            ":_log_softmax/sun",
            "S1 -> P",
            "':_log_softmax/sun' is no op of the model; there are :_log_softmax/sum",
        ),
    ],
)
def test_what_an_op_cannot_do_is_refused(name: str, choice: str, why: str) -> None:
    with pytest.raises(ChoiceError, match=re.escape(why)):
        shard(program(), TENSOR, grads({}), {name: parse_op_choice(choice)})


@pytest.mark.parametrize("text", ["R R", "R -> R -> R -> R", "R -> R R -> R", "X -> R", "R -> R ->", ""])
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (choice of an op|placement)"):
        parse_op_choice(text)


def test_the_text_form_reads_back() -> None:
    said = drawn_choices(program(), TENSOR.size, 0)
    assert {name: parse_op_choice(str(choice)) for name, choice in said.items()} == said

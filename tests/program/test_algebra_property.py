"""Every choice of every rule, run on parts: put together, the parts are the whole."""

from __future__ import annotations

import operator
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))
from algebra_cases import CASES, NOT_DRAWN, POINTWISE, Case, Draw

import trainyard.program.algebra  # noqa: F401  (registers the rules)
from trainyard.program.algebra.local import Offset, local_call
from trainyard.program.algebra.notation import Choice, choices
from trainyard.program.algebra.rules import RULES, axes_of, tensor_args
from trainyard.program.placement import Partial, Placement, Shard
from trainyard.program.spmd import take_part

aten = torch.ops.aten


def make_node(target: Any, args: tuple[Any, ...]) -> tuple[fx.Node, dict[fx.Node, Tensor]]:
    """The op as a node of a graph, and the values of its tensor arguments."""
    graph = fx.Graph()
    values: dict[fx.Node, Tensor] = {}

    def placeholder(value: Tensor) -> fx.Node:
        node = graph.placeholder(f"x{len(values)}")
        node.meta["val"] = value
        values[node] = value
        return node

    kwargs = args[-1] if isinstance(args[-1], dict) else {}
    args = args[:-1] if kwargs else args
    given = pytree.tree_map_only(Tensor, placeholder, (args, kwargs))
    node = graph.call_function(target, tuple(given[0]), given[1])
    node.meta["val"] = target(*args, **kwargs)
    return node, values


def part_of(value: Tensor, placement: Placement, rank: int, num_ranks: int) -> Tensor:
    """A rank's part; the terms of a partial operand are random and add up."""
    if isinstance(placement, Shard):
        return take_part(value, rank, placement.dim, placement.blocks, num_ranks)
    if isinstance(placement, Partial):
        generator = torch.Generator().manual_seed(value.numel())
        terms = [
            torch.randn(value.shape, generator=generator, dtype=value.dtype) for _ in range(num_ranks - 1)
        ]
        return terms[rank] if rank < num_ranks - 1 else value - torch.stack(terms).sum(0)
    return value


def put_together(parts: list[Tensor], placement: Placement) -> Tensor:
    if isinstance(placement, Shard):
        cut = [p.unflatten(placement.dim, (placement.blocks, -1)) for p in parts]
        return torch.cat(cut, placement.dim + 1).flatten(placement.dim, placement.dim + 1)
    stacked = torch.stack(parts)
    if isinstance(placement, Partial):
        reduced = {"sum": stacked.sum, "avg": stacked.mean, "max": stacked.amax, "min": stacked.amin}
        return reduced[placement.reduction](0)
    for other in parts[1:]:
        torch.testing.assert_close(other, parts[0], rtol=0, atol=0, equal_nan=True)
    return parts[0]


def run_rank(
    node: fx.Node, values: dict[fx.Node, Tensor], choice: Choice, rank: int, num_ranks: int
) -> list[Tensor]:
    needs = dict(zip(range(len(values)), choice.operands, strict=True))
    parts = {n: part_of(values[n], needs[i], rank, num_ranks) for i, n in enumerate(tensor_args(node))}
    call = local_call(node, choice, num_ranks)

    def local(argument: Any) -> Any:
        if isinstance(argument, Offset):
            return local(argument.base) + rank * argument.scale
        return parts[argument] if isinstance(argument, fx.Node) else argument

    is_leaf = lambda a: isinstance(a, fx.Node | Offset)  # noqa: E731
    args, kwargs = pytree.tree_map(local, (call.args, call.kwargs), is_leaf=is_leaf)
    return results_of(call.target(*args, **kwargs))


def results_of(value: Any) -> list[Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, Tensor)]


def check_all_choices(target: Any, args: tuple[Any, ...], num_ranks: int, blocks: int) -> int:
    """Run every choice; returns how many cut something."""
    node, values = make_node(target, args)
    wanted = results_of(node.meta["val"])
    axes = axes_of(node)
    options = choices(axes, num_ranks, tuple((factor, blocks) for factor in axes.sizes))
    for choice in options:
        answers = [run_rank(node, values, choice, rank, num_ranks) for rank in range(num_ranks)]
        for i, (whole, placement) in enumerate(zip(wanted, choice.results, strict=True)):
            found = put_together([a[i] for a in answers], placement)
            torch.testing.assert_close(
                found, whole, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda m, c=choice: f"{c}\n{m}"
            )
    return len(options) - 1


def test_every_rule_has_a_case() -> None:
    # But for ops of a user's own, which are checked when a model is captured.
    described = {t for t in RULES if getattr(t, "namespace", "aten") in ("aten", "trainyard")}
    ruled = {t for t in described if t != "pointwise"}
    missing = [str(t) for t in ruled if t not in CASES and t not in NOT_DRAWN]
    assert not missing, f"draw arguments for {missing} in algebra_cases"
    assert not [str(t) for t in CASES if t not in RULES], "cases of ops without a rule"


ALL: dict[Any, Case] = {**CASES, **POINTWISE}


def check_drawn(target: Any, max_examples: int) -> int:
    """Draw arguments of an op and run every choice; returns how many cut something."""
    cut = 0

    @settings(max_examples=max_examples, derandomize=True, database=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        nonlocal cut
        args = ALL[target](Draw(data))
        num_ranks = data.draw(st.sampled_from([2, 4]), "ranks")
        cut += check_all_choices(target, args, num_ranks, data.draw(st.sampled_from([2, 3]), "blocks"))

    check()
    return cut


@pytest.mark.parametrize("target", ALL, ids=lambda target: target.__name__)
def test_parts_of_every_choice_make_the_whole(target: Any) -> None:
    # Of some ops few of the arguments that are drawn can be cut.
    assert check_drawn(target, 8) or check_drawn(target, 60), f"the rule of {target} never cuts anything"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("target", ALL, ids=lambda target: target.__name__)
def test_parts_of_every_choice_of_many_arguments_make_the_whole(target: Any) -> None:
    check_drawn(target, 100)


def _of_zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


NUMBER, NONE = torch.tensor(2.0, dtype=torch.float64), torch.tensor(0)
UNUSUAL: list[tuple[Any, tuple[Any, ...]]] = [
    *((op, (NUMBER, d, False)) for op in (aten._softmax.default, aten._log_softmax.default) for d in (0, -1)),
    *((op, (NUMBER, 0)) for op in (aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)),
    *((op, (NUMBER, -1)) for op in (aten.cummax.default, aten.cummin.default, aten.sort.default)),
    (aten.topk.default, (NUMBER, 1)),
    (aten.transpose.int, (NUMBER, 0, -1)),
    (aten.squeeze.dim, (NUMBER, 0)),
    (aten.flip.default, (NUMBER, [0])),
    (aten.gather.default, (NUMBER, 0, NONE)),
    (aten.index_select.default, (NUMBER, 0, NONE)),
    (aten.scatter.value, (NUMBER, 0, NONE, 1.0)),
    (aten.scatter.value, (torch.eye(4).double(), 0, torch.zeros(0, dtype=torch.int64), 1.0)),
    (aten.gather.default, (torch.eye(4).double(), 0, torch.zeros(0, dtype=torch.int64))),
    (aten.nansum.default, (torch.eye(4).double(), [])),
    (aten.view.default, (_of_zeros(4, 0), [2, 2, 0])),
    (aten.unsqueeze.default, (_of_zeros(4, 0), 1)),
    (aten.squeeze.default, (_of_zeros(0),)),
    (aten.cat.default, ([_of_zeros(0), torch.eye(4).double()],)),
    (aten.cat.default, ([torch.eye(4).double(), _of_zeros(0), torch.eye(4).double()], 1)),
    (aten.cat.default, ([_of_zeros(0), _of_zeros(0)], -1)),
    (aten.any.dims, (torch.eye(4), [])),
    (aten._linalg_solve_ex.default, (torch.eye(3).expand(4, 5, 3, 3).double(), _of_zeros(4, 5, 3))),
]
"""Arguments that PyTorch takes and few models give: tensors without dimensions or elements, no dimension, no index."""


@pytest.mark.parametrize(("target", "args"), UNUSUAL, ids=[f"{i}-{op}" for i, (op, _) in enumerate(UNUSUAL)])
def test_unusual_arguments_have_choices_too(target: Any, args: tuple[Any, ...]) -> None:
    check_all_choices(target, args, 2, 2)
    node, values = make_node(target, args)
    axes = axes_of(node)
    assert [len(dims) for dims in axes.operands] == [value.dim() for value in values.values()]
    assert [len(dims) for dims in axes.results] == [value.dim() for value in results_of(node.meta["val"])]


def test_taking_a_tuple_apart_has_no_axes() -> None:
    graph = fx.Graph()
    node = graph.call_function(operator.getitem, (graph.placeholder("x"), 0))
    with pytest.raises(TypeError, match="no axes of its own"):
        axes_of(node)

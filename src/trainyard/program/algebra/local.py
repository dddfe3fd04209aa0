"""How an op is called on one rank's parts.

Most ops are called as they are. The exceptions name a shape, a length or an index of the whole tensor in their
arguments, and are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from trainyard.program import spmd
from trainyard.program.algebra.indexing import COUNTERS
from trainyard.program.algebra.notation import Choice
from trainyard.program.algebra.rules import args_of, first_index, result_shapes
from trainyard.program.algebra.shapes import SPLITS
from trainyard.program.algebra.spatial import UPSAMPLE_BACKWARD
from trainyard.program.placement import Divisor, Placement, Shard, local_shape

aten = torch.ops.aten
DROPOUT = torch.ops.trainyard.dropout.default
DRAW = torch.ops.trainyard.draw.default


@dataclass(frozen=True)
class Offset:
    """Stands in an argument for where this rank's part begins, if it has ``scale`` of a dimension, added to ``base``."""

    scale: int
    base: Any = 0


@dataclass(frozen=True)
class LocalCall:
    """An op as one rank calls it; tensor arguments are still the nodes of the whole graph."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Localiser = Callable[[fx.Node, Choice, Divisor], LocalCall]
_LOCALISERS: dict[Any, Localiser] = {}


def local_call(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    """What a rank calls to compute its part of ``node`` under ``choice`` (see `Divisor`)."""
    special = _LOCALISERS.get(node.target)
    if special is not None and choice.factor is not None:
        return special(node, choice, divisor)
    return LocalCall(node.target, args_of(node), dict(node.kwargs))


def _localiser(*targets: Any) -> Callable[[Localiser], Localiser]:
    def register(function: Localiser) -> Localiser:
        for target in targets:
            _LOCALISERS[target] = function
        return function

    return register


def _replaced(node: fx.Node, position: int, value: Any) -> LocalCall:
    args = list(args_of(node))
    args[position] = value
    return LocalCall(node.target, tuple(args), dict(node.kwargs))


def _local(shape: Sequence[int], placement: Placement, divisor: Divisor) -> list[int]:
    return list(local_shape(tuple(shape), placement, divisor))


@_localiser(aten.view.default, aten.expand.default)
def _shape_second(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    return _replaced(node, 1, _local(result_shapes(node)[0], choice.results[0], divisor))


@_localiser(*COUNTERS)
def _counter(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    """The places of an order that this part has of its own, counted from its first."""
    (length,) = _local(result_shapes(node)[0], choice.results[0], divisor)
    return LocalCall(aten.arange.default, (length,), dict(node.kwargs))


@_localiser(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    """A dimension that is one only on a rank is not squeezed."""
    shape = _local(result_shapes(node)[0], choice.results[0], divisor)
    return LocalCall(aten.view.default, (args_of(node)[0], shape), {})


@_localiser(aten.full.default, aten.zeros.default, aten.ones.default)
def _shape_first(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    return _replaced(node, 0, _local(result_shapes(node)[0], choice.results[0], divisor))


_NAMES_RESULT: dict[Any, str] = {
    aten.affine_grid_generator.default: "size",
    aten.select_backward.default: "input_sizes",
    aten.diagonal_backward.default: "input_sizes",
    aten.unfold_backward.default: "input_sizes",
    **dict.fromkeys(UPSAMPLE_BACKWARD, "input_size"),
}
"""Ops that name the size of their result, and in which argument."""


@_localiser(*_NAMES_RESULT)
def _result_size(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    position = names.index(_NAMES_RESULT[node.target])
    return _replaced(node, position, _local(args_of(node)[position], choice.results[0], divisor))


@_localiser(aten.native_group_norm.default, aten.native_group_norm_backward.default)
def _group_norm(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    """The number of images is an argument."""
    position = 3 if node.target is aten.native_group_norm.default else 5
    return _replaced(node, position, args_of(node)[position] // divisor)


@_localiser(aten.slice.Tensor)
def _slice(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    source, result = choice.operands[0], choice.results[0]
    args = list(args_of(node)) + [0, None, None][len(args_of(node)) - 1 :]
    dim = args[1] % len(result_shapes(node)[0])
    if not (isinstance(result, Shard) and result.dim == dim and isinstance(source, Shard)):
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    part = result_shapes(node)[0][dim]
    first = first_index(
        args_of(node)[2] if len(args_of(node)) > 2 else 0, args_of(node)[0].meta["val"].shape[dim]
    )
    start = first // divisor
    return LocalCall(node.target, (args[0], dim, start, start + part // divisor), {})


@_localiser(aten.slice_backward.default)
def _slice_backward(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    grad, sizes, dim, start, end, step = args_of(node)
    local = _local(sizes, choice.results[0], divisor)
    source = choice.operands[0]
    if (
        isinstance(source, Shard)
        and source.dim == dim % len(local)
        and local[source.dim] != sizes[source.dim]
    ):
        part = args_of(node)[0].meta["val"].shape[source.dim] // divisor
        start = first_index(start, sizes[source.dim]) // divisor
        end = start + part
    return LocalCall(node.target, (grad, local, dim, start, end, step), {})


@_localiser(*SPLITS)
def _split(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    dim = (args_of(node)[2] if len(args_of(node)) > 2 else 0) % len(result_shapes(node)[0])
    result = choice.results[0]
    if not (isinstance(result, Shard) and result.dim == dim):
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    size: Any = args_of(node)[1]
    local = size // divisor if isinstance(size, int) else [s // divisor for s in size]
    return _replaced(node, 1, local)


@_localiser(aten.convolution_backward.default)
def _convolution_backward(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    sizes: Any = args_of(node)[3]
    if sizes is None or choice.operands[0] != Shard(1):
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    return _replaced(node, 3, [sizes[0] // divisor])


@_localiser(DRAW)
def _draw(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    """As ``dropout``, and of the shape of this part."""
    placed = _positional(node, choice, divisor)
    return replace(
        placed, args=(_local(result_shapes(node)[0], choice.results[0], divisor), *placed.args[1:])
    )


@_localiser(DROPOUT)
def _positional(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    """What is drawn is a function of global positions: say where this part begins."""
    part = choice.results[0]
    assert isinstance(part, Shard)
    position = [a.name for a in DROPOUT._schema.arguments].index("offsets")
    offsets: list[Any] = list(args_of(node)[position])
    local = result_shapes(node)[0][part.dim] // divisor
    offsets[part.dim] = Offset(local, offsets[part.dim])
    return _replaced(node, position, offsets)


@_localiser(aten.embedding.default)
def _embedding(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    if choice.operands[0] != Shard(0):
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    table, indices = args_of(node)[:2]
    rows = table.meta["val"].shape[0]
    return LocalCall(spmd.embed_part, (table, indices, Offset(rows // divisor), rows), {})


@_localiser(aten.embedding_dense_backward.default)
def _embedding_backward(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    if choice.results[0] != Shard(0):
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    grad, indices, rows, padding_row = args_of(node)[:4]
    local = rows // divisor
    return LocalCall(spmd.embed_part_backward, (grad, indices, Offset(local), local, padding_row), {})


@_localiser(aten.nll_loss_forward.default)
def _nll_loss(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    if choice.factor != "c":
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    scores, target, weight, _, ignored = args_of(node)
    classes = scores.meta["val"].shape[1]
    return LocalCall(
        spmd.nll_part, (scores, target, weight, ignored, Offset(classes // divisor), classes), {}
    )


@_localiser(aten.nll_loss_backward.default)
def _nll_loss_backward(node: fx.Node, choice: Choice, divisor: Divisor) -> LocalCall:
    if choice.factor != "c":
        return LocalCall(node.target, args_of(node), dict(node.kwargs))
    grad, scores, target, weight, _, ignored, count = args_of(node)
    classes = scores.meta["val"].shape[1] // divisor
    # All tensors are passed on, in their order, so that placements and arguments agree.
    args = (grad, scores, target, weight, ignored, count, Offset(classes))
    return LocalCall(spmd.nll_part_backward, args, {})

"""How an op is called on one rank's parts.

Most ops are called as they are. The exceptions name a shape, a length or an index of the whole tensor in their
arguments, and are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trainyard.program import spmd
from trainyard.program.algebra.notation import Choice
from trainyard.program.algebra.rules import first_index, result_shapes
from trainyard.program.placement import Placement, Shard, local_shape

aten = torch.ops.aten


@dataclass(frozen=True)
class Offset:
    """Stands in an argument for this rank's index on the axis times ``scale``, added to ``base``."""

    scale: int
    base: Any = 0


@dataclass(frozen=True)
class LocalCall:
    """An op as one rank calls it; tensor arguments are still the nodes of the whole graph."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Localiser = Callable[[fx.Node, Choice, int], LocalCall]
_LOCALISERS: dict[Any, Localiser] = {}


def local_call(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    """What a rank calls to compute its part of ``node`` under ``choice``."""
    special = _LOCALISERS.get(node.target)
    if special is not None and choice.factor is not None:
        return special(node, choice, num_ranks)
    return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]


def _localiser(*targets: Any) -> Callable[[Localiser], Localiser]:
    def register(function: Localiser) -> Localiser:
        for target in targets:
            _LOCALISERS[target] = function
        return function

    return register


def _replaced(node: fx.Node, position: int, value: Any) -> LocalCall:
    args = list(node.args)
    args[position] = value
    return LocalCall(node.target, tuple(args), dict(node.kwargs))  # type: ignore[arg-type]


def _local(shape: Sequence[int], placement: Placement, num_ranks: int) -> list[int]:
    return list(local_shape(tuple(shape), placement, num_ranks))


@_localiser(aten.view.default, aten.expand.default, aten.new_zeros.default, aten.new_ones.default)
def _shape_second(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    return _replaced(node, 1, _local(result_shapes(node)[0], choice.results[0], num_ranks))


@_localiser(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    """A dimension that is one only on a rank is not squeezed."""
    shape = _local(result_shapes(node)[0], choice.results[0], num_ranks)
    return LocalCall(aten.view.default, (node.args[0], shape), {})


@_localiser(aten.full.default, aten.zeros.default, aten.ones.default)
def _shape_first(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    return _replaced(node, 0, _local(result_shapes(node)[0], choice.results[0], num_ranks))


@_localiser(aten.new_full.default)
def _new_full(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    return _shape_second(node, choice, num_ranks)


@_localiser(aten.select_backward.default)
def _select_backward(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    return _replaced(node, 1, _local(node.args[1], choice.results[0], num_ranks))  # type: ignore[arg-type]


@_localiser(aten.slice.Tensor)
def _slice(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    source, result = choice.operands[0], choice.results[0]
    args = list(node.args) + [0, None, None][len(node.args) - 1 :]
    dim = args[1] % len(result_shapes(node)[0])  # type: ignore[operator]
    if not (isinstance(result, Shard) and result.dim == dim and isinstance(source, Shard)):
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    part = result_shapes(node)[0][dim]
    first = first_index(node.args[2] if len(node.args) > 2 else 0, node.args[0].meta["val"].shape[dim])  # type: ignore[union-attr]
    start = first // num_ranks
    return LocalCall(node.target, (args[0], dim, start, start + part // num_ranks), {})  # type: ignore[arg-type]


@_localiser(aten.slice_backward.default)
def _slice_backward(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    grad, sizes, dim, start, end, step = node.args
    local = _local(sizes, choice.results[0], num_ranks)  # type: ignore[arg-type]
    source = choice.operands[0]
    if (
        isinstance(source, Shard)
        and source.dim == dim % len(local)
        and local[source.dim] != sizes[source.dim]
    ):  # type: ignore[operator,index]
        part = node.args[0].meta["val"].shape[source.dim] // num_ranks  # type: ignore[union-attr]
        start = first_index(start, sizes[source.dim]) // num_ranks  # type: ignore[index]
        end = start + part
    return LocalCall(node.target, (grad, local, dim, start, end, step), {})  # type: ignore[arg-type]


@_localiser(aten.split.Tensor, aten.split_with_sizes.default)
def _split(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    dim = (node.args[2] if len(node.args) > 2 else 0) % len(result_shapes(node)[0])  # type: ignore[operator]
    result = choice.results[0]
    if not (isinstance(result, Shard) and result.dim == dim):
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    size: Any = node.args[1]
    local = size // num_ranks if isinstance(size, int) else [s // num_ranks for s in size]
    return _replaced(node, 1, local)


@_localiser(aten.convolution_backward.default)
def _convolution_backward(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    sizes: Any = node.args[3]
    if sizes is None or choice.operands[0] != Shard(1):
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    return _replaced(node, 3, [sizes[0] // num_ranks])


@_localiser(torch.ops.trainyard.dropout.default)
def _dropout(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    """The mask is a function of global positions: say where this part begins."""
    part = choice.results[0]
    assert isinstance(part, Shard)
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    position = names.index("offsets")
    offsets: list[Any] = list(node.args[position])  # type: ignore[arg-type]
    local = result_shapes(node)[0][part.dim] // num_ranks
    offsets[part.dim] = Offset(local, offsets[part.dim])
    return _replaced(node, position, offsets)


@_localiser(aten.embedding.default)
def _embedding(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    if choice.operands[0] != Shard(0):
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    table, indices = node.args[:2]
    rows = table.meta["val"].shape[0] // num_ranks  # type: ignore[union-attr]
    return LocalCall(spmd.embed_part, (table, indices, Offset(rows)), {})


@_localiser(aten.embedding_dense_backward.default)
def _embedding_backward(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    if choice.results[0] != Shard(0):
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    grad, indices, rows, padding_row = node.args[:4]
    local = rows // num_ranks  # type: ignore[operator]
    return LocalCall(spmd.embed_part_backward, (grad, indices, Offset(local), local, padding_row), {})


@_localiser(aten.nll_loss_forward.default)
def _nll_loss(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    if choice.factor != "c":
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    scores, target, weight, _, ignored = node.args
    classes = scores.meta["val"].shape[1] // num_ranks  # type: ignore[union-attr]
    return LocalCall(spmd.nll_part, (scores, target, weight, ignored, Offset(classes)), {})


@_localiser(aten.nll_loss_backward.default)
def _nll_loss_backward(node: fx.Node, choice: Choice, num_ranks: int) -> LocalCall:
    if choice.factor != "c":
        return LocalCall(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    grad, scores, target, weight, _, ignored, count = node.args
    classes = scores.meta["val"].shape[1] // num_ranks  # type: ignore[union-attr]
    # All tensors are passed on, in their order, so that placements and arguments agree.
    args = (grad, scores, target, weight, ignored, count, Offset(classes))
    return LocalCall(spmd.nll_part_backward, args, {})

"""Operands of an op that are indices, and their bounds, so that random operands are in range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import fx

from trainyard.program import spmd
from trainyard.program.ctc_loss import CTC_LOSS, CTC_LOSS_BACKWARD
from trainyard.program.program import tensor_of

__all__ = ["index_bounds"]

aten = torch.ops.aten

Bounds = Iterator[tuple[Any, int]]


def index_bounds(node: fx.Node) -> list[tuple[fx.Node, int]]:
    """Operands by which an op looks up or scatters, and the least number that is too large for each."""
    if node.op != "call_function" or node.target not in _INDICES:
        return []
    return [(n, bound) for n, bound in _INDICES[node.target](node) if isinstance(n, fx.Node) and _counts(n)]


def _counts(node: fx.Node) -> bool:
    """Return whether a tensor holds integers; a mask chooses by position and is always in range."""
    dtype = tensor_of(node).dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor_of(value).shape)


def _given(index: int, bound: int) -> Callable[[fx.Node], Bounds]:
    """Operand ``index`` stays below the number that argument ``bound`` is."""

    def find(node: fx.Node) -> Bounds:
        number = node.args[bound]
        if isinstance(number, int):
            yield node.args[index], number

    return find


def _rows(index: int, table: int) -> Callable[[fx.Node], Bounds]:
    """Operand ``index`` counts rows of operand ``table``."""

    def find(node: fx.Node) -> Bounds:
        yield node.args[index], _sizes(node.args[table])[0]

    return find


def _classes(index: int, scores: int) -> Callable[[fx.Node], Bounds]:
    """Operand ``index`` counts classes, which are the second dim of batched scores."""

    def find(node: fx.Node) -> Bounds:
        sizes = _sizes(node.args[scores])
        yield node.args[index], sizes[1 if len(sizes) > 1 else 0]

    return find


def _along_dim(node: fx.Node) -> Bounds:
    """``op(self, dim, index, ...)``."""
    sizes = _sizes(node.args[0])
    dim = node.args[1]
    assert isinstance(dim, int)
    yield node.args[2], sizes[dim] if sizes else 1


def _listed(node: fx.Node) -> Bounds:
    """``op(self, indices, ...)`` with one index per dim, of which a mask takes as many as it has."""
    sizes, dim = _sizes(node.args[0]), 0
    for index in node.args[1]:  # type: ignore[union-attr]
        if isinstance(index, fx.Node):
            mask = tensor_of(index)
            if mask.dtype == torch.bool:
                dim += mask.ndim
                continue
            yield index, sizes[dim]
        dim += 1


def _elements(node: fx.Node) -> Bounds:
    """``op(self, index, ...)`` over all elements."""
    yield node.args[1], prod(_sizes(node.args[0]))


def _pooled(index: int, num_dims: int) -> Callable[[fx.Node], Bounds]:
    """Operand ``index`` counts places in the last dims of operand 1."""

    def find(node: fx.Node) -> Bounds:
        yield node.args[index], prod(_sizes(node.args[1])[-num_dims:])

    return find


def _unpooled(node: fx.Node) -> Bounds:
    yield node.args[1], prod(node.args[2])  # type: ignore[arg-type]


def _ctc(first: int) -> Callable[[fx.Node], Bounds]:
    """Operand ``first`` is the log probabilities, then targets, lengths of inputs and lengths of targets."""

    def find(node: fx.Node) -> Bounds:
        log_probs, targets, inputs, lengths = node.args[first : first + 4]
        time, _, classes = _sizes(log_probs)
        yield targets, classes
        yield inputs, time + 1
        yield lengths, _sizes(targets)[1] + 1

    return find


_INDICES: dict[Any, Callable[[fx.Node], Bounds]] = {
    aten.embedding.default: _rows(1, 0),
    aten.embedding_dense_backward.default: _given(1, 2),
    aten._embedding_bag.default: _rows(1, 0),
    aten._embedding_bag_forward_only.default: _rows(1, 0),
    spmd.embed_part: _rows(1, 0),
    spmd.embed_part_backward: _given(1, 3),
    aten.nll_loss_forward.default: _classes(1, 0),
    aten.nll_loss_backward.default: _classes(2, 1),
    aten.nll_loss2d_forward.default: _classes(1, 0),
    aten.nll_loss2d_backward.default: _classes(2, 1),
    aten.multi_margin_loss.default: _classes(1, 0),
    aten.multi_margin_loss_backward.default: _classes(2, 1),
    CTC_LOSS: _ctc(0),
    CTC_LOSS_BACKWARD: _ctc(1),
    aten.take.default: _elements,
    aten.put.default: _elements,
    aten.max_pool2d_with_indices_backward.default: _pooled(7, 2),
    aten.max_pool3d_with_indices_backward.default: _pooled(7, 3),
    aten.adaptive_max_pool2d_backward.default: _pooled(2, 2),
    aten.adaptive_max_pool3d_backward.default: _pooled(2, 3),
    aten.max_unpool2d.default: _unpooled,
    aten.max_unpool3d.default: _unpooled,
    **dict.fromkeys(
        (
            aten.gather.default,
            aten.index_select.default,
            aten.index_add.default,
            aten.index_copy.default,
            aten.index_fill.int_Scalar,
            aten.index_fill.int_Tensor,
            aten.index_reduce.default,
            aten.scatter.src,
            aten.scatter.value,
            aten.scatter.reduce,
            aten.scatter.value_reduce,
            aten.scatter_add.default,
            aten.scatter_reduce.two,
        ),
        _along_dim,
    ),
    **dict.fromkeys(
        (
            aten.index.Tensor,
            aten._unsafe_index.Tensor,
            aten.index_put.default,
            aten._unsafe_index_put.default,
        ),
        _listed,
    ),
}

"""Ops that treat every element alike, and reductions over dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

import trainyard.program.random.positional  # noqa: F401  (defines the random ops)
from trainyard.program.algebra.notation import OpAxes
from trainyard.program.algebra.rules import (
    args_of,
    named,
    resized,
    result_shapes,
    rule,
    shapes,
    sizes_of,
)
from trainyard.program.nodes import argument
from trainyard.program.placement import Reduction

aten = torch.ops.aten
DROPOUT = torch.ops.trainyard.dropout.default
DRAW = torch.ops.trainyard.draw.default

_JOINTLY_LINEAR = {aten.add.Tensor, aten.sub.Tensor, aten.complex.default}
_LINEAR_IN_EACH = {aten.mul.Tensor}
_BACKWARD = {
    aten.elu_backward.default,
    aten.hardshrink_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.leaky_relu_backward.default,
    aten.mish_backward.default,
    aten.softplus_backward.default,
    aten.softshrink_backward.default,
    aten._prelu_kernel_backward.default,
    aten.rrelu_with_noise_backward.default,
}
"""Gradients of pointwise ops, pointwise themselves and linear in the gradient that they are given."""
_LINEAR_IN_FIRST = {
    *_BACKWARD,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.mul.Scalar,
    aten.neg.default,
    aten.clone.default,
    aten._neg_view.default,
}


@rule(
    "pointwise",
    aten.clone.default,
    aten._to_copy.default,
    aten.copy.default,
    aten.floor_divide.default,
    aten.floor_divide.Scalar,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.hardswish.default,
    aten.polar.default,
    aten.complex.default,
    aten._neg_view.default,
    aten._prelu_kernel.default,
    *_BACKWARD,
)
def pointwise(node: fx.Node) -> OpAxes:
    """Broadcast to the right; every dimension is mapped."""
    (shape,) = set(result_shapes(node))
    dims = named("d", shape)
    operands = tuple(
        tuple(f if n != 1 else () for f, n in zip(dims[len(shape) - len(s) :], s, strict=True))
        for s in shapes(node)
    )
    count = len(operands)
    linear: tuple[frozenset[int], ...] = ()
    if node.target in _JOINTLY_LINEAR and count == 2:
        linear = (frozenset({0, 1}),)
    elif node.target is aten.where.self:
        linear = (frozenset({1, 2}),)
    elif node.target in _LINEAR_IN_EACH:
        linear = (
            tuple(frozenset({i}) for i in range(count))
            if count < 2 or args_of(node)[0] is not args_of(node)[1]
            else ()
        )
    elif node.target in _LINEAR_IN_FIRST or _keeps_sums(node):
        linear = (frozenset({0}),)
    results = (dims,) * len(result_shapes(node))
    return OpAxes(operands, results, sizes_of("d", shape), linear=linear)


def _keeps_sums(node: fx.Node) -> bool:
    """Whether an op only changes the type of real numbers: terms of a sum may be rounded before they are added."""
    dtype = node.kwargs.get("dtype")
    is_real = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
    return node.target is aten._to_copy.default and is_real


_REDUCTIONS: dict[Any, Reduction | None] = {
    aten.sum.dim_IntList: "sum",
    aten.sum.default: "sum",
    aten.nansum.default: "sum",
    aten.count_nonzero.default: "sum",
    aten.count_nonzero.dim_IntList: "sum",
    aten.mean.dim: "avg",
    aten.mean.default: "avg",
    aten.amax.default: "max",
    aten.max.default: "max",
    aten.amin.default: "min",
    aten.min.default: "min",
    aten.all.dim: None,
    aten.all.dims: None,
    aten.aminmax.default: None,
    aten.any.dim: None,
    aten.any.dims: None,
    aten.argmax.default: None,
    aten.argmin.default: None,
    aten.kthvalue.default: None,
    aten.linalg_vector_norm.default: None,
    aten.logsumexp.default: None,
    aten.max.dim: None,
    aten.median.dim: None,
    aten.min.dim: None,
    aten.mode.default: None,
    aten.nanmedian.dim: None,
    aten.norm.ScalarOpt_dim: None,
    aten.prod.dim_int: None,
    aten.std.correction: None,
    aten.std_mean.correction: None,
    aten.var.correction: None,
    aten.var_mean.correction: None,
}
"""Reductions, and how the results of parts combine; None where they do not."""


@rule(*_REDUCTIONS)
def reduction(node: fx.Node) -> OpAxes:
    """Some dimensions go away; parts of them combine by the op's own reduction, or they are whole."""
    (shape,) = shapes(node)
    given = argument(node, "dim")
    listed = [given] if isinstance(given, int) else given or range(len(shape))
    gone = {d % max(1, len(shape)) for d in listed}
    keepdim = bool(argument(node, "keepdim"))
    dims = named("d", shape)
    kept = tuple(() if d in gone else f for d, f in enumerate(dims) if keepdim or d not in gone)
    kind = _REDUCTIONS[node.target]
    sizes = sizes_of("d", shape)
    return OpAxes(
        (dims,),
        (kept,) * len(result_shapes(node)),
        sizes,
        whole=frozenset(f for d in gone for f in dims[d]) if shape and kind is None else frozenset(),
        reductions=dict.fromkeys(sizes, kind) if kind else {},
        linear=(frozenset({0}),) if node.target in _LINEAR_REDUCTIONS else (),
    )


_LINEAR_REDUCTIONS = {aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default}


@rule(
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
)
def constant(node: fx.Node) -> OpAxes:
    """A constant is replicated, or cut with its pattern tensor; it costs nothing to make."""
    (shape,) = result_shapes(node)
    dims = named("r", shape)
    operands = tuple(
        dims if s == shape and str(node.target).split(".")[1].endswith("_like") else tuple(() for _ in s)
        for s in shapes(node)
    )
    return OpAxes(operands, (dims,), sizes_of("r", shape))


@rule(DROPOUT)
def dropout(node: fx.Node) -> OpAxes:
    """Linear for a given mask; every dimension is mapped, because the mask depends on global positions."""
    shape = result_shapes(node)[0]
    dims = named("d", shape)
    operands = (dims, *(tuple(() for _ in s) for s in shapes(node)[1:]))
    sizes = sizes_of("d", shape)
    return OpAxes(operands, (dims,), sizes, linear=(frozenset({0}),), contiguous=frozenset(sizes))


@rule(DRAW)
def draw(node: fx.Node) -> OpAxes:
    """Every dimension is mapped, because a number depends on its global position; the counter is whole."""
    (shape,) = result_shapes(node)
    sizes = sizes_of("d", shape)
    counters = tuple(tuple(() for _ in s) for s in shapes(node))
    return OpAxes(counters, (named("d", shape),), sizes, contiguous=frozenset(sizes))


@rule(aten.log_sigmoid_forward.default, aten.log_sigmoid_backward.default)
def log_sigmoid(node: fx.Node) -> OpAxes:
    """Pointwise; the second result, kept for the backward op, is of the same shape or empty."""
    shape = shapes(node)[0]
    dims = named("d", shape)
    operands, results = (
        tuple(dims if s == shape else tuple(() for _ in s) for s in given)
        for given in (shapes(node), result_shapes(node))
    )
    linear = (frozenset({0}),) if node.target is aten.log_sigmoid_backward.default else ()
    return OpAxes(operands, results, sizes_of("d", shape), linear=linear)


@rule(aten.glu.default, aten.glu_backward.default)
def gated(node: fx.Node) -> OpAxes:
    """One half of a dimension, which is whole, gates the other."""
    linear = (frozenset({0}),) if node.target is aten.glu_backward.default else ()
    return resized(node, [argument(node, "dim")], linear)


@rule(aten.bucketize.Tensor, aten.isin.Tensor_Tensor)
def compared(node: fx.Node) -> OpAxes:
    """Pointwise in the values; the boundaries, or the values to compare with, are whole."""
    shape, others = shapes(node)
    dims = named("d", shape)
    return OpAxes((dims, tuple(() for _ in others)), (dims,), sizes_of("d", shape))

"""Ops that treat every element alike, and reductions over dimensions."""

from __future__ import annotations

import torch
from torch import fx

import trainyard.program.random  # noqa: F401  (defines the random ops)
from trainyard.program.algebra.notation import OpAxes
from trainyard.program.algebra.rules import args_of, named, result_shapes, rule, shapes, sizes_of
from trainyard.program.placement import Reduction

aten = torch.ops.aten
DROPOUT = torch.ops.trainyard.dropout.default
DRAW = torch.ops.trainyard.draw.default

_JOINTLY_LINEAR = {aten.add.Tensor, aten.sub.Tensor}
_LINEAR_IN_EACH = {aten.mul.Tensor}
_LINEAR_IN_FIRST = {
    aten.div.Tensor,
    aten.div.Scalar,
    aten.mul.Scalar,
    aten.neg.default,
    aten.clone.default,
}


@rule("pointwise", aten.clone.default, aten._to_copy.default)
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
    elif node.target in _LINEAR_IN_EACH:
        linear = (
            tuple(frozenset({i}) for i in range(count))
            if count < 2 or args_of(node)[0] is not args_of(node)[1]
            else ()
        )
    elif node.target in _LINEAR_IN_FIRST:
        linear = (frozenset({0}),)
    results = (dims,) * len(result_shapes(node))
    return OpAxes(operands, results, sizes_of("d", shape), linear=linear)


_REDUCTIONS: dict[object, Reduction] = {
    aten.sum.dim_IntList: "sum",
    aten.sum.default: "sum",
    aten.mean.dim: "avg",
    aten.mean.default: "avg",
    aten.amax.default: "max",
    aten.amin.default: "min",
}


@rule(*_REDUCTIONS)
def reduction(node: fx.Node) -> OpAxes:
    """Some dimensions go away; parts of them combine by the op's own reduction."""
    (shape,) = shapes(node)
    given = args_of(node)[1] if len(args_of(node)) > 1 else None
    gone = {d % len(shape) for d in given} if given else set(range(len(shape)))
    keepdim = len(args_of(node)) > 2 and bool(args_of(node)[2])
    dims = named("d", shape)
    kept = tuple(() if d in gone else f for d, f in enumerate(dims) if keepdim or d not in gone)
    kind = _REDUCTIONS[node.target]
    linear = (frozenset({0}),) if kind in ("sum", "avg") else ()
    return OpAxes(
        (dims,),
        (kept,),
        sizes_of("d", shape),
        reductions=dict.fromkeys(sizes_of("d", shape), kind),
        linear=linear,
    )


@rule(
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
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


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid(node: fx.Node) -> OpAxes:
    """Pointwise; its second result, kept for the backward op, is of the same shape or empty."""
    (shape,) = shapes(node)
    dims = named("d", shape)
    results = tuple(dims if s == shape else tuple(() for _ in s) for s in result_shapes(node))
    return OpAxes((dims,), results, sizes_of("d", shape))

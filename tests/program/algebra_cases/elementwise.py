"""Arguments of ops that treat every element alike, of reductions and of constants."""

from __future__ import annotations

from typing import Any

import torch

from algebra_cases.drawing import Case, Draw, case
from trainyard.program.algebra.elementwise import DROPOUT

aten = torch.ops.aten


@case(aten.clone.default, aten.sum.default, aten.mean.default)
def _small(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape(1, 2)),)


@case(
    aten._to_copy.default, aten.log_sigmoid_forward.default, aten.zeros_like.default, aten.ones_like.default
)
def _one(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape()),)


@case(aten.full_like.default)
def _full_like(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), 3.0


@case(aten.full.default)
def _full(d: Draw) -> tuple[Any, ...]:
    return d.shape(), 2.0


@case(aten.zeros.default, aten.ones.default)
def _shape_only(d: Draw) -> tuple[Any, ...]:
    return (d.shape(),)


@case(aten.new_zeros.default, aten.new_ones.default)
def _new(d: Draw) -> tuple[Any, ...]:
    return d.real(2), d.shape()


@case(aten.new_full.default)
def _new_full(d: Draw) -> tuple[Any, ...]:
    return d.real(2), d.shape(), 5.0


@case(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
def _reduce(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    dims = sorted({d.dim(len(shape)) % len(shape) for _ in range(2)})
    return d.real(*shape), dims, d.pick(True, False)


@case(DROPOUT)
def _dropout(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    row = torch.Size(shape).numel() // shape[0]
    return d.real(*shape), torch.tensor([1, 2, 3]), 0.5, 7, 0, row, shape, [0] * len(shape)


def _scaled(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), 2.0


def _pair(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    other = [d.pick(n, 1) for n in shape][d.pick(0, 1) :]
    return d.pick((d.real(*shape), d.real(*other)), (d.real(*other), d.real(*shape)), (d.real(*shape), 2.0))


def _where(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape) > 0, d.real(*shape), d.real(*shape)


def _masked_fill(d: Draw) -> tuple[Any, ...]:
    mask, x, _ = _where(d)
    return x, mask, 3.0


def _gradient_of(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape), d.real(*shape)


POINTWISE: dict[Any, Case] = {
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), _pair),
    **dict.fromkeys((aten.add.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.pow.Tensor_Scalar), _scaled),
    **dict.fromkeys((aten.neg.default, aten.exp.default, aten.relu.default, aten.gelu.default), _one),
    **dict.fromkeys((aten.tanh.default, aten.sigmoid.default), _one),
    aten.gt.Scalar: lambda d: (d.real(*d.shape()), 0.0),
    aten.where.self: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.gelu_backward.default: _gradient_of,
    aten.threshold_backward.default: lambda d: (*_gradient_of(d), 0),
}
"""A sample of the ops that PyTorch tags as pointwise, the ones with a special case among them."""

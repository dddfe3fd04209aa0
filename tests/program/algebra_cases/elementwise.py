"""Arguments of ops that treat every element alike, of reductions and of constants."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from algebra_cases.drawing import Case, Draw, case
from trainyard.program.algebra.elementwise import DRAW, DROPOUT

aten = torch.ops.aten


@case(
    aten.clone.default,
    aten.sum.default,
    aten.nansum.default,
    aten.mean.default,
    aten.max.default,
    aten.min.default,
    aten.count_nonzero.default,
    aten.hardswish.default,
)
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


@case(
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.amax.default,
    aten.amin.default,
    aten.logsumexp.default,
)
def _reduce(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    dims = sorted({d.dim(len(shape)) % len(shape) for _ in range(2)})
    return d.real(*shape), dims, d.pick(True, False)


@case(aten.aminmax.default)
def _both_ends(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, {"dim": d.pick(None, dim), "keepdim": d.pick(True, False)}


@case(aten.all.dims, aten.any.dims)
def _truth(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x > 0, [dim], d.pick(True, False)


@case(
    aten.mode.default,
    aten.nanmedian.dim,
    aten.max.dim,
    aten.min.dim,
    aten.median.dim,
    aten.prod.dim_int,
    aten.all.dim,
    aten.any.dim,
)
def _reduce_one(d: Draw) -> tuple[Any, ...]:
    return *d.with_dim(), d.pick(True, False)


@case(aten.argmax.default, aten.argmin.default)
def _position(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return d.pick((x,), (x, dim), (x, dim, True))


@case(aten.kthvalue.default)
def _kth(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, d.data.draw(st.integers(1, x.shape[dim])), dim, d.pick(True, False)


@case(aten.count_nonzero.dim_IntList)
def _count(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x > 0, [dim]


@case(aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim)
def _norm(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, d.pick(1, 2, float("inf")), [dim], d.pick(True, False)


@case(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def _variance(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, d.pick(None, [dim]), {"correction": 0, "keepdim": d.pick(True, False)}


@case(aten.copy.default, aten.polar.default, aten.complex.default)
def _same_shape(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape), d.real(*shape)


@case(aten.floor_divide.default)
def _floor_divide(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.index(9, *shape), d.index(3, *shape) + 1


@case(aten.floor_divide.Scalar)
def _floor_divide_by_one(d: Draw) -> tuple[Any, ...]:
    return d.index(9, *d.shape()), 2


@case(aten._neg_view.default)
def _negated(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape()),)


@case(aten.rrelu_with_noise_backward.default)
def _rrelu_backward(d: Draw) -> tuple[Any, ...]:
    x = d.real(*d.shape())
    return x, x + 1, x.abs(), 0.1, 0.3, d.pick(True, False), False


@case(aten.fill.Scalar)
def _fill(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), 2.0


@case(aten.fill.Tensor)
def _fill_tensor(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), d.real()


@case(aten._prelu_kernel.default)
def _prelu(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2)
    return d.real(*shape), d.real(1, d.pick(1, shape[1]), *(1 for _ in shape[2:]))


@case(aten._prelu_kernel_backward.default)
def _prelu_backward(d: Draw) -> tuple[Any, ...]:
    x, weight = _prelu(d)
    return d.real(*x.shape), x, weight


@case(aten.hardsigmoid_backward.default, aten.hardswish_backward.default, aten.mish_backward.default)
def _gradient(d: Draw) -> tuple[Any, ...]:
    return _gradient_of(d)


@case(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def _shrink_backward(d: Draw) -> tuple[Any, ...]:
    return *_gradient_of(d), 0.5


@case(aten.hardtanh_backward.default, aten.softplus_backward.default)
def _two_numbers_backward(d: Draw) -> tuple[Any, ...]:
    return *_gradient_of(d), -0.5, 0.5


@case(aten.leaky_relu_backward.default)
def _leaky_backward(d: Draw) -> tuple[Any, ...]:
    return *_gradient_of(d), 0.1, d.pick(True, False)


@case(aten.elu_backward.default)
def _elu_backward(d: Draw) -> tuple[Any, ...]:
    grad, x = _gradient_of(d)
    return grad, 1.5, 2.0, 0.5, d.pick(True, False), x


@case(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(d: Draw) -> tuple[Any, ...]:
    grad, x = _gradient_of(d)
    return grad, x, aten.log_sigmoid_forward.default(x)[1]


def _even(d: Draw) -> tuple[Tensor, int]:
    shape = d.shape()
    dim = d.dim(len(shape))
    shape[dim] = d.pick(2, 4, 8)
    return d.real(*shape), dim


@case(aten.glu.default)
def _glu(d: Draw) -> tuple[Any, ...]:
    return _even(d)


@case(aten.glu_backward.default)
def _glu_backward(d: Draw) -> tuple[Any, ...]:
    x, dim = _even(d)
    return d.real(*aten.glu.default(x, dim).shape), x, dim


@case(aten.bucketize.Tensor)
def _bucketize(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), torch.tensor([-1.0, 0.0, 1.0])


@case(aten.isin.Tensor_Tensor)
def _isin(d: Draw) -> tuple[Any, ...]:
    return d.index(4, *d.shape()), torch.tensor([1, 2])


@case(DROPOUT)
def _dropout(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    row = torch.Size(shape).numel() // shape[0]
    return d.real(*shape), torch.tensor([1, 2, 3]), 0.5, 7, 0, row, shape, [0] * len(shape)


@case(DRAW)
def _draw(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    row = torch.Size(shape).numel() // shape[0]
    kind = d.pick("uniform", "normal")
    numbers = (7, 0, row, shape, [0] * len(shape))
    return (
        shape,
        torch.tensor([1, 2, 3]),
        kind,
        *numbers,
        {"dtype": torch.float64, "device": torch.device("cpu")},
    )


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

"""For every op with a rule, how to draw arguments for it; a dictionary at the end holds keyword arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from trainyard.program.algebra.elementwise import DROPOUT

aten = torch.ops.aten


class Draw:
    """Sizes, choices and random tensors of one example."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000), "seed"))

    def pick(self, *options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def size(self) -> int:
        return int(self.pick(1, 2, 3, 4, 6, 8))

    def shape(self, low: int = 1, high: int = 4) -> list[int]:
        return [self.size() for _ in range(self.data.draw(st.integers(low, high), "rank"))]

    def dim(self, rank: int) -> int:
        return self.data.draw(st.integers(-rank, rank - 1), "dim")

    def real(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def index(self, below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=self.generator)


Case = Callable[[Draw], tuple[Any, ...]]
CASES: dict[Any, Case] = {}
NOT_DRAWN = {
    operator.getitem: "takes a tuple apart; propagation handles it itself",
    aten.empty_like.default: "its values mean nothing; the rule is that of zeros_like",
}


def case(*targets: Any) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        for target in targets:
            CASES[target] = function
        return function

    return register


@case(aten.clone.default, aten.sum.default, aten.mean.default, aten.t.default, aten.squeeze.default)
def _one(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape(1, 2)),)


@case(aten._to_copy.default, aten.log_sigmoid_forward.default)
def _copy(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape()),)


@case(aten.full_like.default)
def _full_like(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), 3.0


@case(aten.zeros_like.default, aten.ones_like.default)
def _like(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape()),)


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


@case(aten.mm.default)
def _mm(d: Draw) -> tuple[Any, ...]:
    m, k, n = d.size(), d.size(), d.size()
    return d.real(m, k), d.real(k, n)


@case(aten.bmm.default)
def _bmm(d: Draw) -> tuple[Any, ...]:
    b, m, k, n = d.size(), d.size(), d.size(), d.size()
    return d.real(b, m, k), d.real(b, k, n)


@case(aten.dot.default)
def _dot(d: Draw) -> tuple[Any, ...]:
    k = d.size()
    return d.real(k), d.real(k)


@case(aten.mv.default)
def _mv(d: Draw) -> tuple[Any, ...]:
    m, k = d.size(), d.size()
    return d.real(m, k), d.real(k)


@case(aten.addmm.default)
def _addmm(d: Draw) -> tuple[Any, ...]:
    left, right = _mm(d)
    m, n = left.shape[0], right.shape[1]
    return d.real(*d.pick((n,), (m, n), (1, n))), left, right


@case(aten.baddbmm.default)
def _baddbmm(d: Draw) -> tuple[Any, ...]:
    left, right = _bmm(d)
    return d.real(left.shape[0], left.shape[1], right.shape[2]), left, right


def _convolved(d: Draw) -> tuple[Tensor, Tensor, int, list[int]]:
    groups = d.pick(1, 1, 2)
    inputs, outputs = d.pick(2, 4, 8), d.pick(2, 4, 8)
    image = d.real(d.size(), inputs, 5, 4)
    return image, d.real(outputs, inputs // groups, 3, 3), groups, [d.pick(1, 2)] * 2


@case(aten.convolution.default)
def _convolution(d: Draw) -> tuple[Any, ...]:
    image, weight, groups, stride = _convolved(d)
    bias = d.real(weight.shape[0]) if d.pick(True, False) else None
    return image, weight, bias, stride, [1, 1], [1, 1], False, [0, 0], groups


@case(aten.convolution_backward.default)
def _convolution_backward(d: Draw) -> tuple[Any, ...]:
    image, weight, groups, stride = _convolved(d)
    rest = (stride, [1, 1], [1, 1], False, [0, 0], groups)
    out = aten.convolution.default(image, weight, None, *rest)
    mask = [True, d.pick(True, False), d.pick(True, False)]
    return d.real(*out.shape), image, weight, [weight.shape[0]], *rest, mask


def _attended(d: Draw) -> list[Tensor]:
    b, h = d.size(), d.size()
    return [d.real(b, h, 4, 8) for _ in range(3)]


@case(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(d: Draw) -> tuple[Any, ...]:
    return *_attended(d), 0.0, d.pick(True, False)


@case(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(d: Draw) -> tuple[Any, ...]:
    q, k, v = _attended(d)
    causal = d.pick(True, False)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, causal)
    return d.real(*out.shape), q, k, v, out, lse, 0.0, causal


@case(aten.max_pool2d_with_indices.default, aten.avg_pool2d.default)
def _pool(d: Draw) -> tuple[Any, ...]:
    return d.real(d.size(), d.size(), 6, 6), [2, 2], [2, 2]


@case(aten._adaptive_avg_pool2d.default)
def _adaptive(d: Draw) -> tuple[Any, ...]:
    return d.real(d.size(), d.size(), 6, 6), [2, 2]


@case(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(d: Draw) -> tuple[Any, ...]:
    x = d.real(d.size(), d.size(), 6, 6)
    out, indices = aten.max_pool2d_with_indices.default(x, [2, 2], [2, 2])
    return d.real(*out.shape), x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices


@case(aten.avg_pool2d_backward.default)
def _avg_pool_backward(d: Draw) -> tuple[Any, ...]:
    x = d.real(d.size(), d.size(), 6, 6)
    return d.real(*x.shape[:2], 3, 3), x, [2, 2], [2, 2], [0, 0], False, True, None


@case(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_backward(d: Draw) -> tuple[Any, ...]:
    x = d.real(d.size(), d.size(), 6, 6)
    return d.real(*x.shape[:2], 3, 3), x


@case(aten._softmax.default, aten._log_softmax.default)
def _softmax(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape), d.dim(len(shape)), False


@case(aten._safe_softmax.default)
def _safe_softmax(d: Draw) -> tuple[Any, ...]:
    return _softmax(d)[:2]


@case(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return d.real(*x.shape), x, dim, torch.float64


@case(aten.cumsum.default, aten.cumprod.default)
def _cumulative(d: Draw) -> tuple[Any, ...]:
    return _softmax(d)[:2]


@case(aten.native_layer_norm.default)
def _layer_norm(d: Draw) -> tuple[Any, ...]:
    lead, last = d.shape(1, 3), d.pick(2, 4)
    affine = d.pick(True, False)
    weights = [d.real(last), d.real(last)] if affine else [None, None]
    return d.real(*lead, last), [last], *weights, 1e-5


@case(aten.native_layer_norm_backward.default)
def _layer_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, normalised, weight, bias, eps = _layer_norm(d)
    _, mean, scale = aten.native_layer_norm.default(x, normalised, weight, bias, eps)
    asked = [True, weight is not None, weight is not None]
    return d.real(*x.shape), x, normalised, mean, scale, weight, bias, asked


@case(aten._fused_rms_norm.default)
def _rms_norm(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(1, 3), 4), [4], d.real(4), 1e-5


@case(aten._native_batch_norm_legit_functional.default)
def _batch_norm(d: Draw) -> tuple[Any, ...]:
    x = d.real(d.pick(2, 4), d.pick(2, 4, 6), 3, 2)
    channels = [d.real(x.shape[1]) for _ in range(3)]
    return x, *channels, d.real(x.shape[1]).abs(), d.pick(True, False), 0.1, 1e-5


@case(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_given(d: Draw) -> tuple[Any, ...]:
    *tensors, _, momentum, eps = _batch_norm(d)
    return *tensors, momentum, eps


@case(aten.native_batch_norm_backward.default)
def _batch_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, mean, var, training, _, eps = _batch_norm(d)
    found = aten._native_batch_norm_legit_functional.default(x, weight, bias, mean, var, training, 0.1, eps)
    return d.real(*x.shape), x, weight, mean, var, found[1], found[2], training, eps, [True, True, True]


@case(aten.nll_loss_forward.default)
def _nll(d: Draw) -> tuple[Any, ...]:
    n, c = d.size(), d.pick(2, 4, 8)
    weight = d.pick(None, d.real(c).abs() + 0.1)
    ignored = d.pick(-100, 1)
    target = d.index(c, n)
    # With a mean the op is not cut at all; capture writes it as a sum.
    return d.real(n, c), target, weight, d.pick(1, 2, 2), ignored


@case(aten.nll_loss_backward.default)
def _nll_backward(d: Draw) -> tuple[Any, ...]:
    scores, target, weight, reduction, ignored = _nll(d)
    _, count = aten.nll_loss_forward.default(scores, target, weight, reduction, ignored)
    return d.real(), scores, target, weight, reduction, ignored, count


@case(aten.view.default)
def _view(d: Draw) -> tuple[Any, ...]:
    a, b, c = d.size(), d.size(), d.size()
    shapes = [[a, b, c], [a * b, c], [a, b * c], [a * b * c], [b, a, c], [1, a, b, c], [c, b * a]]
    return d.real(*d.pick(*map(tuple, shapes))), list(d.pick(*map(tuple, shapes)))


@case(aten.permute.default)
def _permute(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape), d.data.draw(st.permutations(range(len(shape))))


@case(aten.transpose.int)
def _transpose(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2)
    return d.real(*shape), d.dim(len(shape)), d.dim(len(shape))


@case(aten.unsqueeze.default, aten.squeeze.dim)
def _unsqueeze(d: Draw) -> tuple[Any, ...]:
    return _softmax(d)[:2]


@case(aten.squeeze.dims)
def _squeeze(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return x, [dim]


@case(aten.expand.default)
def _expand(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1, 3)
    wide = [d.size() if n == 1 else n for n in shape]
    return d.real(*shape), [*d.shape(0, 1), *wide]


@case(aten.select.int)
def _select(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return x, dim, d.data.draw(st.integers(0, x.shape[dim] - 1))


@case(aten.select_backward.default)
def _select_backward(d: Draw) -> tuple[Any, ...]:
    x, dim, at = _select(d)
    return d.real(*x.select(dim, at).shape), list(x.shape), dim, at


@case(aten.slice.Tensor)
def _slice(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    size = x.shape[dim]
    start = d.data.draw(st.integers(0, size - 1))
    start = d.pick(start, start - size, size // 2 if size > 1 else 0)
    first = start % size
    end = d.pick(d.data.draw(st.integers(first + 1, size)), 2**63 - 1)
    return x, dim, start, end, d.pick(1, 1, 2)


@case(aten.slice_backward.default)
def _slice_backward(d: Draw) -> tuple[Any, ...]:
    x, dim, start, end, step = _slice(d)
    part = aten.slice.Tensor(x, dim, start, end, step)
    return d.real(*part.shape), list(x.shape), dim, start, end, step


@case(aten.split.Tensor)
def _split(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return x, d.data.draw(st.integers(1, x.shape[dim])), dim


@case(aten.split_with_sizes.default)
def _split_with_sizes(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    first = d.data.draw(st.integers(1, x.shape[dim]))
    return x, [n for n in (first, x.shape[dim] - first) if n], dim


@case(aten.unbind.int)
def _unbind(d: Draw) -> tuple[Any, ...]:
    return _softmax(d)[:2]


@case(aten.cat.default)
def _cat(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    dim = d.dim(len(shape))
    other = list(shape)
    other[dim] = d.pick(shape[dim], d.size())
    return [d.real(*shape), d.real(*other)], dim


@case(aten.stack.default)
def _stack(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return [d.real(*shape), d.real(*shape)], d.dim(len(shape) + 1)


@case(aten.constant_pad_nd.default)
def _pad(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(1, 3)), [d.pick(0, 1), d.pick(-1, 0, 2)], d.pick(0.0, 1.5)


@case(aten.flip.default)
def _flip(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return x, [dim]


@case(aten.roll.default)
def _roll(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return d.pick((x, [1], [dim]), (x, [1]))


@case(aten.repeat.default)
def _repeat(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1, 3)
    return d.real(*shape), [d.pick(1, 2) for _ in range(len(shape) + d.pick(0, 1))]


@case(aten.embedding.default)
def _embedding(d: Draw) -> tuple[Any, ...]:
    rows = d.pick(2, 4, 8)
    return d.real(rows, d.size()), d.index(rows, *d.shape(1, 2))


@case(aten.embedding_dense_backward.default)
def _embedding_backward(d: Draw) -> tuple[Any, ...]:
    table, index = _embedding(d)
    grad = d.real(*index.shape, table.shape[1])
    return grad, index, table.shape[0], d.pick(-1, 0, table.shape[0] - 1), False


@case(aten.gather.default)
def _gather(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    shape = list(x.shape)
    shape[dim] = d.size()
    if d.pick(True, False):
        other = d.dim(len(shape)) % len(shape)
        shape[other] = d.data.draw(st.integers(1, shape[other]))
    return x, dim, d.index(x.shape[dim], *shape)


@case(aten.scatter_add.default, aten.scatter.src)
def _scatter(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    # Each place is written at most once, so that the order of writes does not matter.
    index = torch.argsort(d.real(*x.shape), dim)
    return x, dim, index, d.real(*x.shape)


@case(aten.scatter.value)
def _scatter_value(d: Draw) -> tuple[Any, ...]:
    return *_scatter(d)[:3], 4.0


@case(aten.topk.default)
def _topk(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return x, d.data.draw(st.integers(1, x.shape[dim])), dim


@case(aten.sort.default)
def _sort(d: Draw) -> tuple[Any, ...]:
    return _softmax(d)[:2]


@case(aten.sort.stable)
def _sort_stable(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return x, {"stable": True, "dim": dim, "descending": d.pick(True, False)}


@case(aten.argsort.default)
def _argsort(d: Draw) -> tuple[Any, ...]:
    return _softmax(d)[:2]


@case(aten.argmax.default)
def _argmax(d: Draw) -> tuple[Any, ...]:
    x, dim, _ = _softmax(d)
    return d.pick((x,), (x, dim), (x, dim, True))


@case(aten.triu.default, aten.tril.default)
def _triangle(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(2)), d.pick(-1, 0, 1)


@case(aten.index.Tensor)
def _index(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2, 3)
    at = d.pick(0, 1)
    given: list[Tensor | None] = [None] * at + [d.index(shape[at], *d.shape(1, 2))]
    return d.real(*shape), given


@case(aten.index_put.default)
def _index_put(d: Draw) -> tuple[Any, ...]:
    x, given = _index(d)
    values = aten.index.Tensor(x, given)
    return x, given, d.real(*values.shape), True


POINTWISE: dict[Any, Case] = {
    aten.add.Tensor: lambda d: _pair(d),
    aten.sub.Tensor: lambda d: _pair(d),
    aten.mul.Tensor: lambda d: _pair(d),
    aten.div.Tensor: lambda d: _pair(d),
    aten.add.Scalar: lambda d: (d.real(*d.shape()), 2.0),
    aten.mul.Scalar: lambda d: (d.real(*d.shape()), 2.0),
    aten.div.Scalar: lambda d: (d.real(*d.shape()), 2.0),
    aten.neg.default: lambda d: (d.real(*d.shape()),),
    aten.gelu.default: lambda d: (d.real(*d.shape()),),
    aten.relu.default: lambda d: (d.real(*d.shape()),),
    aten.tanh.default: lambda d: (d.real(*d.shape()),),
    aten.exp.default: lambda d: (d.real(*d.shape()),),
    aten.sigmoid.default: lambda d: (d.real(*d.shape()),),
    aten.pow.Tensor_Scalar: lambda d: (d.real(*d.shape()), 2),
    aten.gt.Scalar: lambda d: (d.real(*d.shape()), 0.0),
    aten.where.self: lambda d: _where(d),
    aten.masked_fill.Scalar: lambda d: (*_where(d)[1::-1], 3.0),
    aten.gelu_backward.default: lambda d: (lambda s: (d.real(*s), d.real(*s)))(d.shape()),
    aten.threshold_backward.default: lambda d: (lambda s: (d.real(*s), d.real(*s), 0))(d.shape()),
}
"""A sample of the ops that PyTorch tags as pointwise, the ones with a special case among them."""


def _pair(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    other = [d.pick(n, 1) for n in shape][d.pick(0, 1) :]
    return d.pick((d.real(*shape), d.real(*other)), (d.real(*other), d.real(*shape)), (d.real(*shape), 2.0))


def _where(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape) > 0, d.real(*shape), d.real(*shape)

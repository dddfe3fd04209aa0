"""Arguments of products: matrix products, convolutions, attention, pools."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algebra_cases.drawing import Draw, case

aten = torch.ops.aten


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


def _convolved(d: Draw) -> tuple[Tensor, Tensor, int, tuple[Any, ...]]:
    groups, transposed = d.pick(1, 1, 2), d.pick(False, True)
    inputs, outputs = d.pick(2, 4, 8), d.pick(2, 4, 8)
    channels = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    rest = ([d.pick(1, 2)] * 2, [1, 1], [1, 1], transposed, [0, 0], groups)
    return d.real(d.size(), inputs, 5, 4), d.real(*channels, 3, 3), outputs, rest


@case(aten.convolution.default)
def _convolution(d: Draw) -> tuple[Any, ...]:
    image, weight, outputs, rest = _convolved(d)
    return image, weight, d.real(outputs) if d.pick(True, False) else None, *rest


@case(aten.convolution_backward.default)
def _convolution_backward(d: Draw) -> tuple[Any, ...]:
    image, weight, outputs, rest = _convolved(d)
    out = aten.convolution.default(image, weight, None, *rest)
    mask = [True, d.pick(True, False), d.pick(True, False)]
    return d.real(*out.shape), image, weight, [outputs], *rest, mask


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

"""Arguments of products: matrix products, convolutions, attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algebra_cases.drawing import Draw, case
from trainyard.program.grouped_product import GROUPED_GRADIENT, GROUPED_PRODUCT

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
    q, *rest = _attended(d)
    masks = [d.real(*shape) for shape in ((4, 4), (1, 4, 4), (q.shape[0], 1, 1, 4), (*q.shape[:2], 4, 4))]
    return d.pick((q, *rest, 0.0, True), (q, *rest, 0.0, False, {"attn_mask": d.pick(*masks)}))


@case(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(d: Draw) -> tuple[Any, ...]:
    q, k, v = _attended(d)
    causal = d.pick(True, False)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, causal)
    return d.real(*out.shape), q, k, v, out, lse, 0.0, causal


@case(aten._cdist_forward.default)
def _cdist(d: Draw) -> tuple[Any, ...]:
    *lead, m = d.shape(1, 2)
    return d.real(*lead, d.size(), m), d.real(*lead, d.size(), m), d.pick(1.0, 2.0), None


@case(aten._cdist_backward.default)
def _cdist_backward(d: Draw) -> tuple[Any, ...]:
    left, right, p, _ = _cdist(d)
    found = aten._cdist_forward.default(left, right, p, None)
    return d.real(*found.shape), left, right, p, found


@case(aten._trilinear.default)
def _trilinear(d: Draw) -> tuple[Any, ...]:
    """As ``F.bilinear`` writes it: n i, o i j, n j -> n o."""
    n, o, i, j = d.size(), d.size(), d.size(), d.size()
    return d.real(n, i), d.real(o, i, j), d.real(n, j), [1, 3], [0], [1, 2], [2, 3]


@case(aten.linalg_cross.default)
def _cross(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1, 2)
    wide = [n if d.pick(True, False) else 1 for n in shape]
    return d.pick((d.real(*shape, 3), d.real(*wide, 3)), (d.real(3, *shape), d.real(3, *wide), {"dim": 0}))


@case(GROUPED_PRODUCT)
def _grouped_product(d: Draw) -> tuple[Any, ...]:
    num_groups, m, k, n = d.size(), d.size(), d.size(), d.size()
    return d.index(num_groups, m).sort().values, d.real(m, k), d.real(num_groups, k, n)


@case(GROUPED_GRADIENT)
def _grouped_gradient(d: Draw) -> tuple[Any, ...]:
    num_groups, m, k, n = d.size(), d.size(), d.size(), d.size()
    return d.index(num_groups, m).sort().values, d.real(m, k), d.real(m, n), num_groups

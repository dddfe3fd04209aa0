"""Arguments of products: matrix products, convolutions, attention, matrices."""

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
    return *_attended(d), 0.0, d.pick(True, False)


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


def _matrices(d: Draw) -> Tensor:
    """Well-conditioned square matrices."""
    return d.real(*d.shape(0, 2), 3, 3) + 10 * torch.eye(3, dtype=torch.float64)


@case(aten.linalg_inv_ex.default, aten._linalg_det.default)
def _matrix(d: Draw) -> tuple[Any, ...]:
    return (_matrices(d),)


@case(aten.linalg_cholesky_ex.default)
def _cholesky(d: Draw) -> tuple[Any, ...]:
    x = _matrices(d)
    return (x + x.mT,)


@case(aten._linalg_solve_ex.default)
def _solve(d: Draw) -> tuple[Any, ...]:
    x = _matrices(d)
    return x, d.real(*x.shape[:-1], 2)


@case(aten.linalg_solve_triangular.default)
def _solve_triangular(d: Draw) -> tuple[Any, ...]:
    return *_solve(d), {"upper": True}


@case(aten.linalg_lu_solve.default)
def _lu_solve(d: Draw) -> tuple[Any, ...]:
    x, right = _solve(d)
    lu, pivots, _ = torch.linalg.lu_factor_ex(x)
    return lu, pivots, right


@case(GROUPED_PRODUCT)
def _grouped_product(d: Draw) -> tuple[Any, ...]:
    num_groups, m, k, n = d.size(), d.size(), d.size(), d.size()
    return d.index(num_groups, m).sort().values, d.real(m, k), d.real(num_groups, k, n)


@case(GROUPED_GRADIENT)
def _grouped_gradient(d: Draw) -> tuple[Any, ...]:
    num_groups, m, k, n = d.size(), d.size(), d.size(), d.size()
    return d.index(num_groups, m).sort().values, d.real(m, k), d.real(m, n), num_groups

"""Arguments of ops on batches of matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algebra_cases.drawing import Draw, case

aten = torch.ops.aten


def _matrices(d: Draw) -> Tensor:
    """Well-conditioned square matrices."""
    return d.real(*d.shape(0, 2), 3, 3) + 10 * torch.eye(3, dtype=torch.float64)


def _positive(d: Draw) -> Tensor:
    x = _matrices(d)
    return x + x.mT


def _lu(x: Tensor) -> tuple[Tensor, Tensor]:
    lu, pivots, _ = torch.linalg.lu_factor_ex(x)
    return lu, pivots


@case(
    aten.linalg_inv_ex.default,
    aten._linalg_det.default,
    aten._linalg_slogdet.default,
    aten._linalg_eigvals.default,
    aten.linalg_eig.default,
    aten.linalg_lu_factor_ex.default,
    aten.linalg_matrix_exp.default,
)
def _matrix(d: Draw) -> tuple[Any, ...]:
    return (_matrices(d),)


@case(aten.linalg_cholesky_ex.default)
def _symmetric(d: Draw) -> tuple[Any, ...]:
    return (_positive(d),)


@case(aten._linalg_eigh.default)
def _eigh(d: Draw) -> tuple[Any, ...]:
    return _positive(d), "L", d.pick(True, False)


@case(aten._linalg_svd.default)
def _svd(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(0, 2), 3, 4), False, d.pick(True, False)


@case(aten.linalg_qr.default)
def _qr(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(0, 2), 3, 4), d.pick("reduced", "r")


@case(aten.linalg_lu.default)
def _with_pivots(d: Draw) -> tuple[Any, ...]:
    return _matrices(d), {"pivot": True}


@case(aten.linalg_pinv.atol_rtol_tensor)
def _pinv(d: Draw) -> tuple[Any, ...]:
    x = d.real(*d.shape(0, 2), 3, 4)
    return x, {"rtol": d.real(*d.pick((), x.shape[:-2])).abs() * 1e-3}


@case(aten._linalg_solve_ex.default)
def _solve(d: Draw) -> tuple[Any, ...]:
    x = _matrices(d)
    return x, d.real(*d.pick((*x.shape[:-1], 2), (3, 2), x.shape[:-1]))


@case(aten.linalg_solve_triangular.default)
def _solve_triangular(d: Draw) -> tuple[Any, ...]:
    x = _matrices(d)
    return x, d.real(*d.pick(x.shape[:-1], (3,)), 2), {"upper": True}


@case(aten.linalg_lu_solve.default)
def _lu_solve(d: Draw) -> tuple[Any, ...]:
    x = _matrices(d)
    return *_lu(x), d.real(*x.shape[:-1], 2)


@case(aten.lu_unpack.default)
def _lu_unpack(d: Draw) -> tuple[Any, ...]:
    return *_lu(_matrices(d)), True, d.pick(True, False)


@case(aten.cholesky_solve.default)
def _cholesky_solve(d: Draw) -> tuple[Any, ...]:
    x = _positive(d)
    return d.real(*x.shape[:-1], 2), torch.linalg.cholesky(x)


@case(aten.cholesky_inverse.default)
def _cholesky_inverse(d: Draw) -> tuple[Any, ...]:
    return (torch.linalg.cholesky(_positive(d)),)


@case(aten.linalg_householder_product.default)
def _householder(d: Draw) -> tuple[Any, ...]:
    x = d.real(*d.shape(0, 2), 4, 3)
    return x, x[..., 0, :]


@case(aten.searchsorted.Tensor)
def _searchsorted(d: Draw) -> tuple[Any, ...]:
    lead = d.shape(1, 2)
    edges = d.real(*lead, 5).sort(-1).values
    return d.pick((edges, d.real(*lead, d.size())), (torch.linspace(-1, 1, 5).double(), d.real(*lead)))

"""Ops on batches: of every operand and result the last dimensions are whole, and those before them are a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.algebra.rules import named, replicated, result_shapes, rule, shapes, sizes_of

aten = torch.ops.aten

_Shapes = list[tuple[int, ...]]

_SIGNATURES: dict[Any, tuple[str, ...]] = {
    aten._linalg_det.default: ("2 -> 0 2 1",),
    aten._linalg_eigh.default: ("2 -> 1 2",),
    aten._linalg_eigvals.default: ("2 -> 1",),
    aten._linalg_slogdet.default: ("2 -> 0 0 2 1",),
    aten._linalg_solve_ex.default: ("2 2 -> 2 2 1 0", "2 1 -> 1 2 1 0"),
    aten._linalg_svd.default: ("2 -> 2 1 2",),
    aten.cholesky_inverse.default: ("2 -> 2",),
    aten.cholesky_solve.default: ("2 2 -> 2",),
    aten.linalg_cholesky_ex.default: ("2 -> 2 0",),
    aten.linalg_eig.default: ("2 -> 1 2",),
    aten.linalg_householder_product.default: ("2 1 -> 2",),
    aten.linalg_inv_ex.default: ("2 -> 2 0",),
    aten.linalg_lu.default: ("2 -> 2 2 2",),
    aten.linalg_lu_factor_ex.default: ("2 -> 2 1 0",),
    aten.linalg_lu_solve.default: ("2 1 2 -> 2",),
    aten.linalg_matrix_exp.default: ("2 -> 2",),
    aten.linalg_pinv.atol_rtol_tensor: ("2 0 0 -> 2",),
    aten.linalg_qr.default: ("2 -> 2 2",),
    aten.linalg_solve_triangular.default: ("2 2 -> 2",),
    aten.lu_unpack.default: ("2 1 -> 2 2 2",),
    aten.searchsorted.Tensor: ("1 1 1 -> 1",),
}
"""How many of the last dimensions are whole, by operand and by result; where an op has several forms, one for each.

Operands at the end may be left out. The batches of operands are broadcast to the right.
"""


@rule(*_SIGNATURES)
def batched(node: fx.Node) -> OpAxes:
    """Matrices, or rows to look up in, are whole, and independent of each other."""
    operands, results = shapes(node), result_shapes(node)
    for signature in _SIGNATURES[node.target]:
        left, right = ([int(n) for n in side.split()] for side in signature.split("->"))
        batch = _batch(operands, left, results, right)
        if batch is not None:
            return _axes(batch, operands, left, results, right)
    return replicated(node)


def _batch(operands: _Shapes, left: list[int], results: _Shapes, right: list[int]) -> tuple[int, ...] | None:
    """The shape of the batch, if these numbers of whole dimensions go with the shapes."""
    if any(len(s) < count for s, count in zip(operands, left, strict=False)):
        return None
    try:
        batch = torch.broadcast_shapes(*(_lead(s, n) for s, n in zip(operands, left, strict=False)))
    except RuntimeError:
        return None
    made = [_lead(s, count) for s, count in zip(results, right, strict=True) if s != (0,)]
    return batch if all(lead == batch for lead in made) else None


def _lead(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return shape[: len(shape) - count]


def _axes(
    batch: tuple[int, ...], operands: _Shapes, left: list[int], results: _Shapes, right: list[int]
) -> OpAxes:
    dims = named("d", batch)

    def aligned(shape: tuple[int, ...], count: int) -> Dims:
        lead = _lead(shape, count)
        own = (f if n != 1 else () for f, n in zip(dims[len(dims) - len(lead) :], lead, strict=True))
        return (*own, *(() for _ in range(count)))

    sizes = sizes_of("d", batch)
    # Results that are not asked for are empty.
    empty = frozenset((i, f) for i, s in enumerate(results) if s == (0,) for f in sizes)
    return OpAxes(
        tuple(aligned(s, n) for s, n in zip(operands, left, strict=False)),
        tuple(((),) if s == (0,) else aligned(s, n) for s, n in zip(results, right, strict=True)),
        sizes,
        unaffected=empty,
    )

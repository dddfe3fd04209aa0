"""Ops that read or write a table by one operand of numbers, and how they are cut where the numbers count in a part."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.nodes import argument

__all__ = ["Lookup", "lookup_of", "within_parts"]

aten = torch.ops.aten

_LISTED = {aten.index.Tensor, aten.index_put.default}
_ROWS = {
    aten.index_select.default,
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
}
_ELEMENTS = {
    aten.gather.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
}
_READS = {aten.index.Tensor, aten.index_select.default, aten.gather.default}
# Ops that write the same whatever the order of what they write at one place.
_ADDS = {
    aten.index_add.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.scatter.value,
    aten.scatter_add.default,
}
_REPLACES = {aten.index_put.default, aten.index_copy.default, aten.scatter.src}


@dataclass(frozen=True)
class Lookup:
    """How an op looks up.

    Attributes
    ----------
    dim : of the table, operand 0, in which it looks up.
    index : number of the operand with the numbers, among the tensors.
    along : dimension of this operand that has more than one element.
    found : dimension, of what is read or of the values that are written, which follows that one.
    writes : whether the result is the table with values written into it.
    adds : whether the order in which values are written at one place does not matter.
    replaces : whether each value that is written takes the place of what the table had.
    """

    dim: int
    index: int
    along: int
    found: int
    writes: bool
    adds: bool
    replaces: bool


def lookup_of(node: fx.Node) -> Lookup | None:
    """How an op looks up by one operand of whole numbers; None if it does otherwise, or not at all."""
    if node.target not in _LISTED | _ROWS | _ELEMENTS:
        return None
    table = node.args[0].meta["val"]  # type: ignore[union-attr]
    if node.target in _LISTED:
        given = list(node.args[1])  # type: ignore[arg-type]
        indices = [d for d, index in enumerate(given) if index is not None]
        if len(indices) != 1 or given[indices[0]].meta["val"].dtype == torch.bool:
            return None
        dim, index = indices[0], given[indices[0]].meta["val"]
    else:
        dim, index = int(argument(node, "dim")) % max(1, table.dim()), argument(node, "index").meta["val"]
    long = [d for d, size in enumerate(index.shape) if size > 1]
    if node.target in _ELEMENTS:
        values = argument(node, "src")
        if isinstance(values, fx.Node) and values.meta["val"].shape[dim] != index.shape[dim]:
            return None
        along = found = dim
    elif len(long) == 1:
        (along,) = long
        found = dim + along
    else:
        return None
    if node.target is aten.index_put.default:
        # Values have fewer dimensions than what is indexed, from the left.
        found -= table.dim() - 1 + index.dim() - argument(node, "values").meta["val"].dim()
    adds = node.target in _ADDS or bool(argument(node, "accumulate"))
    return Lookup(
        dim, 1, along, found, node.target not in _READS, adds, not adds and node.target in _REPLACES
    )


def within_parts(node: fx.Node, axes: OpAxes) -> OpAxes:
    """The axes of an op whose numbers count within a part: the table is cut where the numbers are."""
    lookup = lookup_of(node)
    assert lookup is not None
    operands, results = list(axes.operands), list(axes.results)
    if node.target in _ELEMENTS:
        factor, cut = "own", range(len(operands))
        results = [_with(dims, lookup.dim, factor) for dims in results]
    else:
        (factor,), cut = operands[lookup.index][lookup.along], range(1)
        if lookup.writes:
            results = [_with(dims, lookup.dim, factor) for dims in results]
    for i in cut:
        if operands[i]:
            operands[i] = _with(operands[i], lookup.dim, factor)
    tensors = [a.meta["val"].shape for a in (node.args[0], _index(node))]  # type: ignore[union-attr]
    size = math.gcd(tensors[0][lookup.dim], tensors[1][lookup.along])
    return replace(
        axes,
        operands=tuple(operands),
        results=tuple(results),
        sizes={**axes.sizes, factor: size},
        whole=axes.whole - {factor},
        contiguous=axes.contiguous | {factor},
    )


def _index(node: fx.Node) -> fx.Node:
    listed: Any = node.args[1] if node.target in _LISTED else [argument(node, "index")]
    found: fx.Node = next(index for index in listed if index is not None)
    return found


def _with(dims: Dims, dim: int, factor: str) -> Dims:
    return (*dims[:dim], (factor,), *dims[dim + 1 :])

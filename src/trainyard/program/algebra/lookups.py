"""Ops that read or write a table by one operand of numbers, and how they are cut where the numbers count in a part."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.nodes import argument

__all__ = ["INDEX", "Lookup", "lookup_of", "within_parts"]

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


INDEX = 1
"""The operand with the numbers, among the tensors of each of these ops; operand 0 is the table."""


@dataclass(frozen=True)
class Lookup:
    """How an op looks up.

    Attributes
    ----------
    dim : of the table in which it looks up.
    along : dimension of the numbers that has more than one element.
    found : dimension, of what is read or of the values that are written, which follows that one.
    effect : "reads" the table; "adds" values to it, or writes the same ones, so that their order does not matter;
        "replaces" what the table had; or changes it in another way.
    """

    dim: int
    along: int
    found: int
    effect: Literal["reads", "adds", "replaces", "changes"]


def lookup_of(node: fx.Node) -> Lookup | None:
    """Return how an op looks up by one operand of whole numbers; None if it does otherwise, or not at all."""
    if node.target not in _LISTED | _ROWS | _ELEMENTS:
        return None
    table, dim, index = node.args[0].meta["val"], _dim(node), _numbers(node)  # type: ignore[union-attr]
    if dim is None or index is None:
        return None
    long = [d for d, size in enumerate(index.shape) if size > 1]
    if node.target in _ELEMENTS:
        values = argument(node, "src")
        if isinstance(values, fx.Node) and values.meta["val"].shape[dim] != index.shape[dim]:
            return None
        return Lookup(dim, dim, dim, _effect(node))
    if len(long) != 1:
        return None
    found = dim + long[0]
    if node.target is aten.index_put.default:
        # Values have fewer dimensions than what is indexed, from the left.
        found -= table.dim() - 1 + index.dim() - argument(node, "values").meta["val"].dim()
    return Lookup(dim, long[0], found, _effect(node))


def _dim(node: fx.Node) -> int | None:
    """The dimension in which an op looks up; None if there are several."""
    if node.target in _LISTED:
        given: Any = node.args[1]
        dims: list[int] = [d for d, index in enumerate(given) if index is not None]
        return dims[0] if len(dims) == 1 else None
    table: Any = node.args[0]
    dim: int = argument(node, "dim") % max(1, table.meta["val"].dim())
    return dim


def _numbers(node: fx.Node) -> torch.Tensor | None:
    """The numbers by which an op looks up; None for a mask."""
    given: Any = node.args[1] if node.target in _LISTED else [argument(node, "index")]
    index: torch.Tensor = next(index for index in given if index is not None).meta["val"]
    return None if index.dtype in (torch.bool, torch.uint8) else index


def _effect(node: fx.Node) -> Literal["reads", "adds", "replaces", "changes"]:
    if node.target in _READS:
        return "reads"
    if node.target in _ADDS or argument(node, "accumulate"):
        return "adds"
    return "replaces" if node.target in _REPLACES else "changes"


def within_parts(node: fx.Node, axes: OpAxes) -> OpAxes:
    """Let the table be cut where the numbers are, for an op whose numbers count within a part."""
    lookup, index, table = lookup_of(node), _numbers(node), node.args[0].meta["val"]  # type: ignore[union-attr]
    assert lookup is not None
    assert index is not None
    operands, results = list(axes.operands), list(axes.results)
    if node.target in _ELEMENTS:
        factor, cut = "own", range(len(operands))
    else:
        (factor,), cut = operands[INDEX][lookup.along], range(1)
    if node.target in _ELEMENTS or lookup.effect != "reads":
        results = [_with(dims, lookup.dim, factor) for dims in results]
    for i in cut:
        if operands[i]:
            operands[i] = _with(operands[i], lookup.dim, factor)
    size = math.gcd(table.shape[lookup.dim], index.shape[lookup.along])
    return replace(
        axes,
        operands=tuple(operands),
        results=tuple(results),
        sizes={**axes.sizes, factor: size},
        whole=axes.whole - {factor},
        contiguous=axes.contiguous | {factor},
    )


def _with(dims: Dims, dim: int, factor: str) -> Dims:
    return (*dims[:dim], (factor,), *dims[dim + 1 :])

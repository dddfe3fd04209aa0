"""Kinds of whole numbers in a graph: copies of others, numbers in order, or places where something was found."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from trainyard.program.algebra.indexing import COUNTERS
from trainyard.program.nodes import argument

__all__ = ["SAME_NUMBERS", "SORTS", "copied", "counts_up", "is_ascending", "keeps_numbers", "num_places"]

aten = torch.ops.aten

SORTS = frozenset({aten.sort.default, aten.sort.stable})
SAME_NUMBERS = frozenset(
    {
        aten.view.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.expand.default,
        aten.clone.default,
        aten._to_copy.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
    }
)
"""Ops whose results have the numbers of their one operand, in another shape or type."""
_WIDE = (
    torch.int32,
    torch.int64,
    torch.float32,
    torch.float64,
)  # what neither wraps nor rounds numbers of groups
_FINDS = SORTS | {aten.topk.default, aten.max.dim, aten.min.dim}


def keeps_numbers(node: fx.Node) -> bool:
    """Whether a node has the numbers of its operand: each once, in another order of dimensions, shape or type."""
    is_same = node.target in SAME_NUMBERS and node.target is not aten.expand.default
    return is_same and node.meta["val"].dtype in _WIDE


def copied(node: Any) -> fx.Node:
    """Find what a node is a copy of, perhaps of another type."""
    while node.target in (aten._to_copy.default, aten.clone.default) and keeps_numbers(node):
        node = node.args[0]
    found: fx.Node = node
    return found


def counts_up(node: fx.Node, first: int = 0) -> bool:
    """Whether a node is ``first``, ``first + 1`` and so on, perhaps as a column."""
    while node.target in (aten.unsqueeze.default, aten.view.default):
        node = node.args[0]  # type: ignore[assignment]
    return (
        node.target in COUNTERS
        and (argument(node, "start") or 0) == first
        and argument(node, "step") in (None, 1)
    )


def is_ascending(node: fx.Node) -> bool:
    """Whether a node sorts a row of numbers, the least first."""
    return node.target in SORTS and not argument(node, "descending") and node.args[0].meta["val"].dim() == 1  # type: ignore[union-attr]


def num_places(node: fx.Node) -> int | None:
    """Return how many places there are, for numbers that say at which of them something was found; None for others."""
    args: Any = node.args
    if keeps_numbers(node):
        return None if node.meta["val"].is_floating_point() else num_places(args[0])
    if node.target in (aten.argmax.default, aten.argmin.default):
        return _size(args[0], argument(node, "dim"))
    if node.target is not operator.getitem:
        return None
    source, result = args
    if result == 0:
        return num_places(source.args[0]) if source.target in SORTS else None
    return _size(source.args[0], argument(source, "dim")) if source.target in _FINDS else None


def _size(node: fx.Node, dim: int | None) -> int:
    tensor: torch.Tensor = node.meta["val"]
    return tensor.numel() if dim is None or not tensor.dim() else tensor.shape[dim]

"""Products of groups as ops of our own: they take the group of each row, instead of where the rows of a group end.

Ends count rows of the whole batch, so that a product by ends is of all rows at once. The group of a row is the row's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from trainyard.program.grouped_product import (
    GROUPED_GRADIENT,
    GROUPED_PRODUCT,
    grouped_gradient,
    grouped_product,
)
from trainyard.program.nodes import add_op, argument, remove_dead
from trainyard.program.tracing.group_ends import groups_behind, source_of
from trainyard.program.tracing.numbers import copied, counts_up, is_ascending

__all__ = ["grouped_by_ends", "write_grouped"]

aten = torch.ops.aten
_PYTORCH = torch._grouped_mm


def grouped_by_ends(
    rows: Tensor,
    weights: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch._grouped_mm`` by our ops, which any type of numbers may have."""
    dims = rows.dim(), weights.dim()
    if bias is None and out_dtype is None and offs is None and dims == (3, 3):
        return torch.bmm(rows, weights)
    if bias is not None or out_dtype is not None or offs is None or dims not in ((2, 3), (2, 2)):
        found: Tensor = _PYTORCH(rows, weights, offs, bias, out_dtype)
        return found
    places = torch.arange(
        weights.shape[0] if dims == (2, 2) else rows.shape[0], device=offs.device, dtype=offs.dtype
    )
    groups = torch.searchsorted(offs, places, right=True)
    if dims == (2, 2):
        return grouped_gradient(groups, rows.t(), weights, offs.shape[0])
    return grouped_product(groups, rows, weights)


def write_grouped(graph: fx.Graph) -> None:
    """Let products of groups take numbers that the graph sorted, instead of where the rows of a group end; in place."""
    sorts: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if is_ascending(node):
            sorts.setdefault(source_of(node.args[0]), node)
        write = _WRITERS.get(str(node.target))
        ends = None if write is None else _ends(node)
        numbers = None if ends is None else groups_behind(ends)
        sort = None if numbers is None else sorts.get(source_of(numbers))
        if write is None or sort is None or _num_rows(sort.args[0]) != _num_rows(_rows(node)):
            continue
        groups = _sorted_by(sort)
        with graph.inserting_before(node):
            write(node, groups)
    remove_dead(graph)


def _rows(node: fx.Node) -> Any:
    return node.args[1] if node.target in (GROUPED_PRODUCT, GROUPED_GRADIENT) else node.args[0]


def _num_rows(node: Any) -> int:
    return int(node.meta["val"].shape[0])


def _ends(node: fx.Node) -> fx.Node | None:
    """Where the rows of each group end, if a product of groups follows from it."""
    if node.target not in (GROUPED_PRODUCT, GROUPED_GRADIENT):
        found: fx.Node = argument(node, "offs")
        return found
    # As `grouped_by_ends` writes it.
    groups: Any = copied(node.args[0])
    is_by_ends = groups.target is aten.searchsorted.Tensor and argument(groups, "right")
    return groups.args[0] if is_by_ends and counts_up(copied(groups.args[1])) else None


def _sorted_by(sort: fx.Node) -> fx.Node:
    """The sorted numbers."""
    taken = next((user for user in sort.users if user.args[1] == 0), None)
    if taken is None:
        with sort.graph.inserting_after(sort):
            taken = add_op(sort.graph, operator.getitem, (sort, 0), {})
        taken.meta = dict(sort.meta) | {"val": sort.meta["val"][0]}
    return taken


def _own(node: fx.Node, groups: fx.Node) -> None:
    """An op of our own."""
    node.args = (groups, *node.args[1:])


def _product(node: fx.Node, groups: fx.Node) -> None:
    """A product by an op of transformers."""
    rows, weights = node.args[:2]
    _replace(node, _add(node, GROUPED_PRODUCT, groups, rows, weights))


def _gradients(node: fx.Node, groups: fx.Node) -> None:
    """Gradients of rows and of weights, by one op of transformers."""
    rows, weights, _, grads = node.args
    turned = _add(node, aten.transpose.int, weights, 1, 2)
    of_weights = (groups, rows, grads, weights.meta["val"].shape[0])  # type: ignore[union-attr]
    for taken in list(node.users):
        call = (
            (GROUPED_PRODUCT, groups, grads, turned)
            if taken.args[1] == 0
            else (GROUPED_GRADIENT, *of_weights)
        )
        with node.graph.inserting_before(taken):
            _replace(taken, _add(taken, *call))


def _add(place: fx.Node, target: Any, *args: Any) -> fx.Node:
    new = add_op(place.graph, target, args, {})
    new.meta = dict(place.meta)
    new.meta["val"] = target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args))
    return new


def _replace(node: fx.Node, new: fx.Node) -> None:
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


_WRITERS: dict[str, Callable[[fx.Node, fx.Node], None]] = {
    "trainyard.grouped_product.default": _own,
    "trainyard.grouped_gradient.default": _own,
    "transformers.grouped_mm_fallback.default": _product,
    "transformers.grouped_mm_fallback_backward.default": _gradients,
}

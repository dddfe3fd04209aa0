"""Products of groups as ops of our own: they take the group of each row, instead of where the rows of a group end.

Ends count rows of the whole batch, so that a product by ends is of all rows at once. The group of a row is the row's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor, fx

from trainyard.program.grouped_product import GROUPED_GRADIENT, GROUPED_PRODUCT, grouped_product
from trainyard.program.nodes import add_op, argument, remove_dead

__all__ = ["write_grouped"]

aten = torch.ops.aten
_PYTORCH = torch._grouped_mm

_COPIES = {aten._to_copy.default, aten.clone.default}
_SORTS = {aten.sort.default, aten.sort.stable}
_SAME = {
    aten.view.default,
    aten.clone.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.permute.default,
}
_FINDS = _SORTS | {aten.topk.default, aten.max.dim, aten.min.dim}


def grouped_by_ends(
    rows: Tensor,
    weights: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch._grouped_mm`` by our op where it multiplies rows by the matrix of their group."""
    if offs is None or bias is not None or out_dtype is not None or (rows.dim(), weights.dim()) != (2, 3):
        found: Tensor = _PYTORCH(rows, weights, offs, bias, out_dtype)
        return found
    places = torch.arange(rows.shape[0], device=offs.device, dtype=offs.dtype)
    return grouped_product(torch.searchsorted(offs, places, right=True), rows, weights)


def write_grouped(graph: fx.Graph) -> None:
    """Let products of groups take numbers that the graph sorted, instead of where the rows of a group end; in place."""
    before = set[fx.Node]()
    for node in list(graph.nodes):
        before.add(node)
        write = _WRITERS.get(str(node.target))
        ends = None if write is None else _ends(node)
        groups = None if ends is None else _groups(ends, before)
        if write is not None and groups is not None and _num_rows(groups) == _num_rows(_rows(node)):
            with graph.inserting_before(node):
                write(node, groups)
    remove_dead(graph)


def _rows(node: fx.Node) -> Any:
    return node.args[1] if node.target in (GROUPED_PRODUCT, GROUPED_GRADIENT) else node.args[0]


def _num_rows(node: fx.Node) -> int:
    return int(node.meta["val"].shape[0])


def _ends(node: fx.Node) -> fx.Node | None:
    """Where the rows of each group end, if a product of groups follows from it."""
    if node.target not in (GROUPED_PRODUCT, GROUPED_GRADIENT):
        return _copied(argument(node, "offs"))
    groups = _copied(node.args[0])
    is_by_ends = groups.target is aten.searchsorted.Tensor and _is_range(_copied(groups.args[1]))
    return _copied(groups.args[0]) if is_by_ends and _counts_equal(groups) else None


def _counts_equal(searched: fx.Node) -> bool:
    """Whether what is equal to a number counts as before it."""
    return bool(argument(searched, "right")) or argument(searched, "side") == "right"


def _groups(ends: fx.Node, before: Set[fx.Node]) -> fx.Node | None:
    """The group of each row, in ascending order, if the graph has it before the product."""
    num_groups = ends.meta["val"].shape[0]
    if ends.target is aten.searchsorted.Tensor:
        found, every = _copied(ends.args[0]), _copied(ends.args[1])
        return _sorted(found, before) if _counts_equal(ends) and _is_range(every) else None
    if ends.target is not aten.cumsum.default:
        return None
    counts = _copied(ends.args[0])
    ranges = [(num_groups, 0, num_groups - 1), (num_groups, 0, num_groups)]
    if counts.target is not aten.histc.default or num_groups < 2 or counts.args[1:] not in ranges:
        return None
    return _sorted(_copied(counts.args[0]), before)


def _copied(node: Any) -> fx.Node:
    """What a node is a copy of, perhaps of another type."""
    while node.target in _COPIES:
        node = node.args[0]
    found: fx.Node = node
    return found


def _sorted(numbers: fx.Node, before: Set[fx.Node]) -> fx.Node | None:
    """Numbers of groups in ascending order: themselves, or the result of a sort of them."""
    if not _are_indices(numbers):
        return None
    if numbers.target is operator.getitem and _is_ascending(numbers.args[0]) and numbers.args[1] == 0:
        return numbers
    for user in numbers.users:
        if user in before and _is_ascending(user):
            return next((taken for taken in user.users if taken.args[1] == 0), None) or _values(user)
    return None


def _are_indices(node: Any) -> bool:
    """Whether numbers are whole and not negative, for they say where something was found."""
    if node.target in _SAME or node.target in _SORTS:
        return _are_indices(node.args[0])
    if node.target is not operator.getitem:
        return node.target in (aten.argmax.default, aten.argmin.default)
    source, place = node.args
    return source.target in _FINDS if place else source.target in _SORTS and _are_indices(source)


def _values(sort: fx.Node) -> fx.Node:
    """The sorted numbers, of which nothing was asked so far."""
    with sort.graph.inserting_after(sort):
        found = add_op(sort.graph, operator.getitem, (sort, 0), {})
    found.meta = dict(sort.meta) | {"val": sort.meta["val"][0]}
    return found


def _is_ascending(node: Any) -> bool:
    return node.target in _SORTS and not argument(node, "descending")


def _is_range(node: fx.Node) -> bool:
    return node.target is aten.arange.default and len(node.args) == 1


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

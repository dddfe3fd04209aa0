"""Picking one or several places in each row: ``x[arange(n), at]`` as ``gather``, which shows that rows are apart.

That the first index counts the rows is known of the graph only, not of one op, and is lost once rows are cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trainyard.program.nodes import add_op, argument
from trainyard.program.tracing.numbers import counts_up

aten = torch.ops.aten


def write_picks(graph: fx.Graph) -> None:
    """Replace ``index`` and ``index_put`` at one place or a list of places of each row; in place."""
    for node in list(graph.nodes):
        if node.target not in (aten.index.Tensor, aten.index_put.default):
            continue
        places = _places(node)
        if places is None:
            continue
        with graph.inserting_before(node):
            found = _get(node, places) if node.target is aten.index.Tensor else _put(node, places)
        node.replace_all_uses_with(found)
        graph.erase_node(node)


def _places(node: fx.Node) -> fx.Node | None:
    """The places in dimension 1, [n] or [n, k], if the index of dimension 0 counts all rows in order."""
    args: Any = node.args
    table, indices, *values = args
    if len(indices) != 2 or None in indices:
        return None
    rows, at = indices
    num_rows, row_shape, shape = (_shape(table)[0], _shape(rows), _shape(at))
    if row_shape != (num_rows, 1)[: len(shape)] or shape[:1] != (num_rows,) or len(shape) > 2:
        return None
    if values and _shape(values[0]) not in ((), (*shape, *_shape(table)[2:])):
        return None
    return at if at.meta["val"].dtype == torch.int64 and counts_up(rows) else None


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _get(node: fx.Node, places: fx.Node) -> fx.Node:
    found = _write(node, aten.gather.default, node.args[0], 1, _spread(node, places))
    return found if len(_shape(places)) == 2 else _write(node, aten.squeeze.dim, found, 1)


def _put(node: fx.Node, places: fx.Node) -> fx.Node:
    args: Any = node.args
    table, _, values, *_ = args
    where = _spread(node, places)
    if _shape(values) == ():
        values = _write(node, aten.expand.default, values, list(_shape(where)))
    elif len(_shape(places)) == 1:
        values = _write(node, aten.unsqueeze.default, values, 1)
    op = aten.scatter_add.default if argument(node, "accumulate") else aten.scatter.src
    return _write(node, op, table, 1, where, values)


def _spread(node: fx.Node, places: fx.Node) -> fx.Node:
    """The places, counted from the beginning, for every element of what is found there: [n, k, ..]."""
    _, length, *rest = _shape(node.args[0])
    from_end = _write(node, aten.lt.Scalar, places, 0)
    places = _write(node, aten.where.self, from_end, _write(node, aten.add.Tensor, places, length), places)
    for _ in range(2 + len(rest) - len(_shape(places))):
        places = _write(node, aten.unsqueeze.default, places, -1)
    return _write(node, aten.expand.default, places, [*_shape(places)[:2], *rest]) if rest else places


def _write(user: fx.Node, target: Any, *args: Any) -> fx.Node:
    """One op of what stands for another one."""
    new = add_op(user.graph, target, args, {})
    new.meta = dict(user.meta)
    new.meta["val"] = target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args))
    return new

"""Clean a traced graph: what costs nothing on a device should cost nothing in the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trainyard.program.nodes import add_op, argument, remove_dead
from trainyard.program.tracing.picks import write_picks

aten = torch.ops.aten

_IDENTITIES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.lift_fresh.default}
_CONSTANTS: dict[Any, int | str] = {
    aten.ones_like.default: 1,
    aten.zeros_like.default: 0,
    aten.full_like.default: "fill_value",
    aten.new_ones.default: 1,
    aten.new_zeros.default: 0,
    aten.new_full.default: "fill_value",
    # What is never read may have any value.
    aten.empty_like.default: 0,
    aten.new_empty.default: 0,
    aten.new_empty_strided.default: 0,
}
"""Constants that take shape or type from a tensor: their value, or the argument that holds it."""
_SUM = 2  # as losses number their reductions
_VIEWS = {aten._unsafe_view.default, aten.reshape.default, aten.view.default}


def simplify(graph: fx.Graph) -> None:
    """Remove aliases, double transposes and dead nodes; write views with their full sizes; in place."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.cat.default:
            _leave_out_nothing(node)
        replacement = _replacement(node)
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            graph.erase_node(node)
        elif node.target in _VIEWS or _is_plain_view(node):
            source = node.args[1] if node.target is aten.as_strided_scatter.default else node.args[0]
            node.target = aten.view.default
            node.args = (source, list(node.meta["val"].shape))
        elif node.target in _CONSTANTS:
            _make_constant(node)
        elif node.target is aten._to_copy.default and not node.all_input_nodes:
            _make_number(node)
        elif node.target is aten.expand.default:
            node.args = (node.args[0], list(node.meta["val"].shape))
        elif node.target is aten.nll_loss_backward.default and node.args[4] == _SUM:
            _forget_count(graph, node)
    write_picks(graph)
    remove_dead(graph)
    graph.set_codegen(fx.graph.CodeGen())  # placeholders and outputs are flat


def _leave_out_nothing(node: fx.Node) -> None:
    """Caches of keys and values begin as an empty tensor of one dimension, which fits to all others."""
    parts, *rest = node.args
    kept = [p for p in parts if tuple(p.meta["val"].shape) != (0,)]  # type: ignore[union-attr]
    if kept:
        node.args = (kept, *rest)


def _forget_count(graph: fx.Graph, node: fx.Node) -> None:
    """The gradient of a sum of losses is handed how many there were, and does not use it."""
    *args, count = node.args
    value = count.meta["val"]  # type: ignore[union-attr]
    with graph.inserting_before(node):
        one = add_op(graph, aten.full.default, ([], 1.0), {"dtype": value.dtype, "device": value.device})
    one.meta = {**node.meta, "val": value}
    node.args = (*args, one)


def _make_constant(node: fx.Node) -> None:
    """A constant needs the shape of its pattern, not the pattern itself, which would be kept alive for it."""
    value = _CONSTANTS[node.target]
    result = node.meta["val"]
    node.args = (list(result.shape), argument(node, value) if isinstance(value, str) else value)
    node.kwargs = {"dtype": result.dtype, "device": result.device}
    node.target = aten.full.default


def _make_number(node: fx.Node) -> None:
    """A number that vmap made a tensor of, and autocast converted, is a constant."""
    result = node.meta["val"]
    node.args, node.kwargs = ([], node.args[0]), {"dtype": result.dtype, "device": result.device}
    node.target = aten.full.default


def _is_plain_view(node: fx.Node) -> bool:
    """Whether strides say no more than that all elements follow each other, as pools of one element write it."""
    args: Any = node.args
    if node.target is aten.as_strided.default:
        source, (size, stride, *offset) = args[0], args[1:]
    elif node.target is aten.as_strided_scatter.default:
        # All of a tensor is written over with another one.
        source, (size, stride, *offset) = args[1], args[2:]
    else:
        return False
    elements, result = source.meta["val"], node.meta["val"]
    following, step = True, 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        following, step = following and (n == 1 or s == step), step * n
    whole = not any(offset) and elements.numel() == step == result.numel()
    return bool(following and whole and elements.is_contiguous() and result.is_contiguous())


def _replacement(node: fx.Node) -> fx.Node | None:
    """An earlier node with the same value, if there is one."""
    source = node.args[0] if node.args else None
    if node.target is aten.cat.default and len(source) == 1:  # type: ignore[arg-type]
        return source[0]  # type: ignore[index,return-value]
    if not isinstance(source, fx.Node):
        return None
    if node.target in _IDENTITIES:
        return source
    if node.target is aten.t.default and source.target is aten.t.default:
        return source.args[0]  # type: ignore[return-value]
    if node.target in _VIEWS and node.meta["val"].shape == source.meta["val"].shape:
        return source
    return None

"""Leave out conversions between 16 bits and float32 that a graph need not do, or need not keep the results of.

Autocast converts what comes to a norm or a softmax to float32, and what comes from it back to 16 bits for the next
product. PyTorch's kernels do the same inside, where they are given 16 bits.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trainyard.program.nodes import add_op, remove_dead

aten = torch.ops.aten

HALF = (torch.bfloat16, torch.float16)
"""Types of 16 bits."""

# Ops that compute in float32 from operands of 16 bits, and round their first result only: which operands may be of 16
# bits, and which are weights. These remain conversions of such: the CPU's kernels take them in the type of statistics.
_ROUND_ONCE: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {
    aten.native_layer_norm.default: ((0,), (2, 3)),
    aten.native_layer_norm_backward.default: ((0, 1), (5, 6)),
    aten.native_group_norm.default: ((0,), (1, 2)),
    aten.native_group_norm_backward.default: ((0, 1), (4,)),
}
_SOFTMAX_BACKWARD = aten._softmax_backward_data.default


def leave_out_conversions(graph: fx.Graph) -> None:
    """Let ops take and give 16 bits where their results are the same, and the backward pass convert again; in place.

    The gradient of a softmax is computed from its rounded result, as by kernels that keep 16 bits.
    """
    for node in list(graph.nodes):
        if node.target in _ROUND_ONCE:
            _round_once(node)
        elif node.target is aten._softmax.default:
            _softmax(node)
    remove_dead(graph)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.meta["phase"] == "forward" and _narrow(node) is not None:
            _convert_again(graph, node)


def _is_conversion(node: Any) -> bool:
    """Whether a node changes the type of a tensor, and nothing else."""
    if not isinstance(node, fx.Node) or node.target is not aten._to_copy.default:
        return False
    source, result = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return bool(source.device == result.device and source.stride() == result.stride())


def _narrow(node: Any) -> fx.Node | None:
    """Return the operand of a conversion from 16 bits to float32; None for any other node."""
    if not _is_conversion(node) or node.meta["val"].dtype != torch.float32:
        return None
    source: fx.Node = node.args[0]
    return source if source.meta["val"].dtype in HALF else None


def _narrows_to(users: Sequence[fx.Node], dtype: torch.dtype) -> bool:
    """Whether nothing but conversions to a type take a result."""
    return all(_is_conversion(user) and user.meta["val"].dtype == dtype for user in users)


def _round_once(node: fx.Node) -> None:
    operands, weights = _ROUND_ONCE[node.target]
    sources = [_narrow(node.args[i]) for i in operands]
    others = [_narrow(node.args[i]) for i in weights if node.args[i] is not None]
    types = {None if source is None else source.meta["val"].dtype for source in (*sources, *others)}
    results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    if None in types or len(types) != 1 or not results:
        return
    (result,), (dtype,) = results, types
    assert dtype is not None
    if _narrows_to([*result.users], dtype):
        _take(node, dict(zip(operands, sources, strict=True)))
        _give(result, dtype, [*result.users])
        node.meta["val"] = (result.meta["val"], *node.meta["val"][1:])


def _softmax(node: fx.Node) -> None:
    """Forward and backward op together, as one's result is the other's operand."""
    source = _narrow(node.args[0])
    if source is None:
        return
    dtype = source.meta["val"].dtype
    backward = [user for user in node.users if user.target is _SOFTMAX_BACKWARD and user.args[1] is node]
    grads = [_narrow(user.args[0]) for user in backward]
    forward = [user for user in node.users if user not in backward]
    if not forward or not _narrows_to(forward, dtype):
        return
    for user, grad in zip(backward, grads, strict=True):
        if grad is None or grad.meta["val"].dtype != dtype or not _narrows_to([*user.users], dtype):
            return
    _take(node, {0: source})
    _give(node, dtype, forward)
    for user, grad in zip(backward, grads, strict=True):
        _take(user, {0: grad, 3: dtype})
        _give(user, dtype, [*user.users])


def _take(node: fx.Node, arguments: dict[int, Any]) -> None:
    node.args = tuple(arguments.get(i, argument) for i, argument in enumerate(node.args))


def _give(result: fx.Node, dtype: torch.dtype, conversions: Sequence[fx.Node]) -> None:
    """Have a result in a type that some users convert it to."""
    result.meta["val"] = result.meta["val"].to(dtype)
    for conversion in conversions:
        conversion.replace_all_uses_with(result)


def _convert_again(graph: fx.Graph, node: fx.Node) -> None:
    """Let the backward pass convert once more instead of keeping what has twice the bytes."""
    copies: dict[Any, fx.Node] = {}
    for user in sorted(node.users):  # as they run: the copy for a position stands before its first user
        if user.op != "call_function" or user.meta["phase"] != "backward":
            continue
        place = user.meta["position"]
        if place not in copies:
            with graph.inserting_before(user):
                copies[place] = add_op(graph, node.target, node.args, dict(node.kwargs))
            copies[place].meta = copy.copy(node.meta) | {
                key: user.meta[key] for key in ("phase", "layer", "position")
            }
        user.replace_input_with(node, copies[place])

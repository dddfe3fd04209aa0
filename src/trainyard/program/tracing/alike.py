"""Dimensions along which tensors of a graph have the same numbers, such as constants and what is spread over rows."""

from __future__ import annotations

import torch
from torch import fx

from trainyard.program.algebra.rules import tensor_args
from trainyard.program.tracing.numbers import SAME_NUMBERS

__all__ = ["ALIKE", "alike_dims", "unlike_dims"]

aten = torch.ops.aten

ALIKE = {
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.empty.memory_format,
    aten.scalar_tensor.default,
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
}
"""Ops whose results have the same number everywhere."""


def alike_dims(graph: fx.Graph) -> dict[fx.Node, frozenset[int]]:
    """Find the dimensions along which tensors have the same numbers; those of size one are left out."""
    found: dict[fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor):
            continue
        long = frozenset(d for d, size in enumerate(value.shape) if size > 1)
        dims = long if node.target in ALIKE else _of_operands(node, long, found)
        if dims:
            found[node] = dims
    return found


def _of_operands(node: fx.Node, long: frozenset[int], found: dict[fx.Node, frozenset[int]]) -> frozenset[int]:
    """Dimensions of a result, by those of its operands."""
    operands = tensor_args(node)
    if node.target in SAME_NUMBERS and not unlike_dims(operands[0], found):
        return long
    is_aligned = node.target in (aten.expand.default, aten.clone.default, aten._to_copy.default)
    if not (is_aligned or torch.Tag.pointwise in getattr(node.target, "tags", ())):
        return frozenset()
    num_dims = node.meta["val"].dim()
    varied = {
        d + num_dims - operand.meta["val"].dim() for operand in operands for d in unlike_dims(operand, found)
    }
    return long - varied


def unlike_dims(node: fx.Node, found: dict[fx.Node, frozenset[int]]) -> frozenset[int]:
    """Dimensions along which a tensor may have unlike numbers.

    Parameters
    ----------
    found : by `alike_dims`.
    """
    shape = node.meta["val"].shape
    return frozenset(d for d, size in enumerate(shape) if size > 1) - found.get(node, frozenset())

"""Reuse: write a result over an operand that nothing else needs.

Graphs are functional, so that they can be cut and rewritten. Just before one runs, sums and products whose
operand dies there are done in place: it saves an allocation, which on a processor costs page faults.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_ATEN = torch.ops.aten
_IN_PLACE: dict[Any, Any] = {
    _ATEN.add.Tensor: _ATEN.add_.Tensor,
    _ATEN.sub.Tensor: _ATEN.sub_.Tensor,
    _ATEN.mul.Tensor: _ATEN.mul_.Tensor,
    _ATEN.div.Tensor: _ATEN.div_.Tensor,
}
_COMMUTATIVE = frozenset({_ATEN.add.Tensor, _ATEN.mul.Tensor})
# Views of all elements, each once, so that what is written through them is the tensor behind them.
_VIEWS = frozenset(
    {
        _ATEN.view.default,
        _ATEN._unsafe_view.default,
        _ATEN.t.default,
        _ATEN.transpose.int,
        _ATEN.permute.default,
        _ATEN.unsqueeze.default,
        _ATEN.squeeze.dim,
    }
)


def reuse_operands(graph: fx.Graph) -> int:
    """Make ops in place where that changes no other value; returns how many."""
    count = 0
    for node in graph.nodes:
        in_place = _IN_PLACE.get(node.target)
        if in_place is None or len(node.args) != 2 or node.kwargs:
            continue
        first, second = node.args
        if _is_free(first, node) and first is not second:
            node.target = in_place
        elif node.target in _COMMUTATIVE and first is not second and _is_free(second, node):
            node.target, node.args = in_place, (second, first)
        else:
            continue
        count += 1
    return count


def _is_free(operand: Any, user: fx.Node) -> bool:
    """Whether ``user`` is the only one to need this memory, and its result fits there exactly."""
    if not isinstance(operand, fx.Node):
        return False
    result, held = user.meta.get("val"), operand.meta.get("val")
    if not isinstance(result, torch.Tensor) or not isinstance(held, torch.Tensor):
        return False
    if (result.shape, result.stride(), result.dtype) != (held.shape, held.stride(), held.dtype):
        return False
    while operand.target in _VIEWS and len(operand.users) == 1:
        operand = operand.all_input_nodes[0]
    return len(operand.users) == 1 and _is_new(operand)


def _is_new(node: fx.Node) -> bool:
    """Whether an op's result is memory of its own: not an input, not a view of anything."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    # In-place ops were made by this pass from new memory, and hand it on.
    own = all(r.alias_info is None for r in returns) or node.target in _IN_PLACE.values()
    return len(returns) == 1 and own and node.target not in _VIEWS

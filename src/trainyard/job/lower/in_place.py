"""Results that are written where something lies already, without memory of their own.

Graphs are functional, so that they can be cut and rewritten. Once they are, a result may take the place of an operand
that dies there, and a product that is the whole gradient of a parameter may be computed in the buffer of its bucket.
Which do is noted in the nodes: ``meta["over"]`` is the position of the operand, ``meta["into"]`` the bucket and the
place in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from trainyard.job.lower.buckets import Bucket
from trainyard.job.plan import Plan
from trainyard.program import spmd
from trainyard.program.program import tensor_of

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


def write_in_place(graph: fx.Graph, plan: Plan, buckets: Iterable[Bucket]) -> None:
    """Note which ops of a graph write in place, where that changes no other value."""
    write_into_gradients(graph, plan, buckets)
    write_over_operands(graph)


def write_into_gradients(graph: fx.Graph, plan: Plan, buckets: Iterable[Bucket]) -> None:
    """Products that are the whole gradient of a parameter, and nothing else, in a step.

    Only where there is one microbatch, so that nothing is added up, of parameters in float32, as gradients are kept, and
    unless they are kept in parts.
    """
    if plan.num_microbatches > 1:
        return
    by_name = {bucket.name: bucket for bucket in buckets}
    for node in graph.nodes:
        if node.target is not spmd.accumulate_grads:
            continue
        name, grads = node.args
        bucket = by_name[str(name)]
        if bucket.gradients_shared or bucket.is_converted:
            continue
        for place, (grad, shape) in enumerate(zip(grads, bucket.shapes, strict=True)):
            if grad.target is _ATEN.mm.default and len(grad.users) == 1 and grads.count(grad) == 1:
                assert tuple(tensor_of(grad).shape) == shape
                grad.meta["into"] = (bucket.name, place)


def write_over_operands(graph: fx.Graph) -> int:
    """Sums and products whose operand dies there; returns how many.

    It saves an allocation, which on a processor costs page faults.
    """
    count = 0
    for node in graph.nodes:
        if node.target not in _IN_PLACE or len(node.args) != 2 or node.kwargs:
            continue
        first, second = node.args
        if _is_free(first, node) and first is not second:
            node.meta["over"] = 0
        elif node.target in _COMMUTATIVE and first is not second and _is_free(second, node):
            node.meta["over"] = 1
        else:
            continue
        count += 1
    return count


def _is_free(operand: Any, user: fx.Node) -> bool:
    """Return whether only ``user`` needs this memory, and its result fits there exactly."""
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
    """Return whether an op's result has memory of its own: no input, no view, no gradient's place."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    own = all(r.alias_info is None for r in returns) and "into" not in node.meta
    return len(returns) == 1 and own and node.target not in _VIEWS


def apply_writes(bound: fx.GraphModule, gradient: Callable[[str, int], torch.Tensor]) -> None:
    """Let the ops of a graph that is about to run write where it was noted.

    Parameters
    ----------
    bound : changed, and to be compiled again.
    gradient : where a bucket keeps the gradient at a place.
    """
    for node in list(bound.graph.nodes):
        if "into" in node.meta:
            target = f"grad_of_{node.name}"
            bound.register_buffer(target, gradient(*node.meta["into"]), persistent=False)
            with bound.graph.inserting_before(node):
                node.kwargs = {"out": bound.graph.get_attr(target)}
            node.target = _ATEN.mm.out
        elif "over" in node.meta:
            if node.meta["over"] == 1:
                node.args = node.args[::-1]
            node.target = _IN_PLACE[node.target]

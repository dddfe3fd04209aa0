"""Graphs as plain lists of instructions, which other processes can read and run op by op.

A trace runs what a lowered graph runs, with real tensors, in the same order and freeing as early, so that ops
find the caches and the allocator as they do in a step. Communication is left out: it is priced elsewhere.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trainyard.cost.memory import last_uses
from trainyard.cost.ops import is_free
from trainyard.cost.signature import op_signature
from trainyard.program import draw_op as _defines_ops  # noqa: F401
from trainyard.program import spmd
from trainyard.program.program import tensor_of

__all__ = ["Fresh", "Instruction", "Ref", "Trace", "run_trace", "trace_graph"]

aten = torch.ops.aten
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Ref:
    """The result of an earlier instruction or input, by its position."""

    index: int


@dataclass(frozen=True)
class Fresh:
    """A tensor made up for a trace: normal numbers, or integers below ``below``."""

    shape: Shape
    dtype: str
    below: int = 2

    def make(self) -> torch.Tensor:
        """Fill a new tensor."""
        dtype = getattr(torch, self.dtype)
        if dtype.is_floating_point:
            return (torch.randn(self.shape) * 0.05).to(dtype)
        return torch.randint(0, max(1, self.below), self.shape).to(dtype)


@dataclass(frozen=True)
class Instruction:
    """One op.

    Attributes
    ----------
    index : where its result goes.
    target : an op by its full name (``aten::mm.default``), a function, or what communication would have left.
    signature : under which its seconds are noted; None if it takes none.
    frees : results that nobody uses afterwards.
    """

    index: int
    target: str | Callable[..., Any] | tuple[Fresh, ...] | Fresh | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    signature: str | None
    frees: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """One graph.

    Attributes
    ----------
    inputs : key and contents of each; a key that an earlier trace left is taken from there.
    outputs : key and position of what it leaves for later traces.
    """

    inputs: tuple[tuple[str, Fresh], ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def signatures(self) -> frozenset[str]:
        """Of all its ops."""
        return frozenset(i.signature for i in self.instructions if i.signature is not None)


def trace_graph(graph: fx.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Trace:
    """Write a graph as a trace.

    Parameters
    ----------
    graph : captured or lowered; nodes have ``meta["val"]``.
    inputs, outputs : keys of its placeholders and of its results.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    dead = last_uses(graph)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in graph.nodes if n.op == "output")
    instructions = tuple(
        _instruction(node, position, dead.get(node, [])) for node in graph.nodes if node.op == "call_function"
    )
    results = output.args[0]
    assert isinstance(results, tuple | list)
    return Trace(
        tuple((key, _fresh(node)) for key, node in zip(inputs, placeholders, strict=True)),
        instructions,
        tuple((key, position[n]) for key, n in zip(outputs, results, strict=True) if isinstance(n, fx.Node)),
    )


def _instruction(node: fx.Node, position: Mapping[fx.Node, int], dead: Iterable[fx.Node]) -> Instruction:
    frees = tuple(position[n] for n in dead)
    if node.target in _LEFT_OUT:
        return Instruction(position[node], _left_by(node), (), {}, None, frees)
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = f"{target.namespace}::{target._schema.name.split('::')[1]}.{target._overloadname}"
    refer = {n: Ref(position[n]) for n in node.all_input_nodes}
    args, kwargs = _plain(node.args, refer), _plain(node.kwargs, refer)
    signature = None if is_free(node) else op_signature(node)
    return Instruction(position[node], target, args, kwargs, signature, frees)


def _plain(value: Any, refer: Mapping[fx.Node, Ref]) -> Any:
    """Arguments with containers of Python in place of those of a graph, and references in place of nodes."""
    if isinstance(value, fx.Node):
        return refer[value]
    if isinstance(value, Mapping):
        return {k: _plain(v, refer) for k, v in value.items()}
    if isinstance(value, tuple | list):
        kept = [_plain(v, refer) for v in value]
        return tuple(kept) if isinstance(value, tuple) else kept
    return value


_LEFT_OUT = spmd.COLLECTIVES | {spmd.axis_offset, spmd.accumulate_grads, spmd.gather_params}


def _left_by(node: fx.Node) -> Any:
    if node.target is spmd.gather_params:
        parts = {int(u.args[1]): _fresh(u) for u in node.users}  # type: ignore[arg-type]
        return tuple(parts.get(i, Fresh((1,), "float32")) for i in range(max(parts) + 1))
    return _fresh(node) if node.target in spmd.COLLECTIVES else None


def _fresh(node: fx.Node) -> Fresh:
    value = tensor_of(node)
    below = 2
    if not value.is_floating_point():
        below = min(_bounds(node), default=2)
    return Fresh(tuple(value.shape), str(value.dtype).removeprefix("torch."), below)


def _bounds(node: fx.Node) -> list[int]:
    """What the integers of a tensor must stay below, by the ops that look up with them."""
    found = []
    for user in node.users:
        if user.op != "call_function":
            continue
        if user.target in _BOUND_BY:
            table, dim = _BOUND_BY[user.target](user)
            found.append(int(tensor_of(table).shape[dim]) if isinstance(table, fx.Node) else int(table))
        elif is_free(user) and isinstance(user.meta.get("val"), torch.Tensor):
            found += _bounds(user)
    return found


_BOUND_BY: dict[Any, Callable[[fx.Node], tuple[Any, int]]] = {
    aten.embedding.default: lambda n: (n.args[0], 0),
    aten.embedding_dense_backward.default: lambda n: (n.args[2], 0),
    spmd.embed_part: lambda n: (n.args[0], 0),
    spmd.embed_part_backward: lambda n: (n.args[3], 0),
    aten.nll_loss_forward.default: lambda n: (n.args[0], 1),
    aten.nll_loss_backward.default: lambda n: (n.args[1], 1),
    aten.gather.default: lambda n: (n.args[0], int(n.args[1])),  # type: ignore[arg-type]
    aten.index_select.default: lambda n: (n.args[0], int(n.args[1])),  # type: ignore[arg-type]
    aten.index.Tensor: lambda n: (n.args[0], 0),
}


def run_trace(
    trace: Trace,
    values: dict[str, torch.Tensor],
    note: dict[str, list[float]],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Run a trace once.

    Parameters
    ----------
    values : by key; what is missing is made up, and what later traces take is added.
    note : seconds of every op are appended under its signature, in order.
    clock : in seconds.
    """
    results: dict[int, Any] = {}
    for index, (key, fresh) in enumerate(trace.inputs):
        if key not in values:
            values[key] = fresh.make()
        results[index] = values[key]
    # As in a step, what only this trace takes is freed while it runs.
    for key, _ in trace.inputs:
        if key.startswith("value:"):
            values.pop(key, None)
    for step in trace.instructions:
        target = _callable(step.target)
        args, kwargs = _filled(step.args, results), _filled(step.kwargs, results)
        start = clock()
        results[step.index] = target(*args, **kwargs)
        del args, kwargs
        for index in step.frees:
            del results[index]
        if step.signature is not None:
            note.setdefault(step.signature, []).append(clock() - start)
    for key, index in trace.outputs:
        values[key] = results[index]


def _filled(value: Any, results: Mapping[int, Any]) -> Any:
    if isinstance(value, Ref):
        return results[value.index]
    if isinstance(value, tuple | list):
        return type(value)(_filled(v, results) for v in value)
    if isinstance(value, dict):
        return {k: _filled(v, results) for k, v in value.items()}
    return value


_found: dict[str, Callable[..., Any]] = {"": operator.getitem}


def _callable(target: Any) -> Callable[..., Any]:
    if isinstance(target, str):
        if target not in _found:
            namespace, _, rest = target.partition("::")
            name, _, overload = rest.partition(".")
            _found[target] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        return _found[target]
    if isinstance(target, Fresh):
        return target.make
    if isinstance(target, tuple):
        return lambda: tuple(fresh.make() for fresh in target)
    return target if callable(target) else lambda: 0

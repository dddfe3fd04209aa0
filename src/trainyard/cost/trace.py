"""Graphs as plain lists of instructions, which other processes can read and run op by op.

A trace runs what a lowered graph runs, with real tensors, in the same order and freeing as early, so that ops
find the caches and the allocator as they do in a step. Communication is left out: it is priced elsewhere.
"""

from __future__ import annotations

import operator
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from trainyard.cost.index_bounds import index_bounds
from trainyard.cost.memory import last_uses
from trainyard.cost.ops import is_free, op_bytes
from trainyard.cost.signature import op_signature
from trainyard.program import spmd
from trainyard.program.flops import node_flops
from trainyard.program.mixed_types import fails_by_type
from trainyard.program.random import draw_op as _defines_ops  # noqa: F401

__all__ = [
    "Instruction",
    "OpTimes",
    "Ref",
    "SyntheticTensor",
    "Trace",
    "elapsed",
    "read_clocks",
    "run_trace",
    "trace_graph",
]

aten = torch.ops.aten
Shape = tuple[int, ...]
Clocks = tuple[Callable[[], float], ...]


@dataclass(frozen=True)
class Ref:
    """The result of an earlier instruction or input, by its position."""

    index: int


@dataclass(frozen=True)
class SyntheticTensor:
    """A tensor made up for a trace: normal numbers, or integers below ``below``, laid out as the graph has it."""

    shape: Shape
    strides: Shape
    dtype: str
    below: int = 2

    @property
    def num_elements(self) -> int:
        """Elements of its memory: fewer than its shape has if it is broadcast, more if it has gaps."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def num_bytes(self) -> int:
        """Size of its memory."""
        return self.num_elements * int(getattr(torch, self.dtype).itemsize)

    def make(self) -> torch.Tensor:
        """Fill a new tensor."""
        dtype = getattr(torch, self.dtype)
        if dtype.is_complex:
            flat = torch.randn(self.num_elements, dtype=dtype) * 0.05
        elif dtype.is_floating_point:
            flat = (torch.randn(self.num_elements) * 0.05).to(dtype)
        else:
            most = 2 if dtype == torch.bool else min(self.below, torch.iinfo(dtype).max)
            flat = torch.randint(0, max(1, most), (self.num_elements,)).to(dtype)
        return flat.as_strided(self.shape, self.strides)


@dataclass(frozen=True)
class Instruction:
    """One op.

    Attributes
    ----------
    index : where its result goes.
    target : an op by its full name (``aten::mm.default``) or a function; None for communication, which is left out.
    signature : under which its seconds are noted; None if it takes none.
    frees : results that nobody uses afterwards.
    leaves : what stands in for its result if it does not run: `SyntheticTensor`, a tuple of them, or a plain value.
    bounds : for operands that are indices, their position and the least number that is too large.
    shares : position of the result whose memory this result is in; None if it has its own.
    work : bytes that it moves, and for its flops as many as take about as long: tells whether ops of one kind are
        larger or smaller.
    """

    index: int
    target: str | Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    signature: str | None
    frees: tuple[int, ...]
    leaves: Any
    bounds: tuple[tuple[int, int], ...] = ()
    shares: int | None = None
    work: float = 0.0


@dataclass(frozen=True)
class Trace:
    """One graph.

    Attributes
    ----------
    inputs : key, position and contents of each; a key that an earlier trace left is taken from there.
    outputs : key and position of what it leaves for later traces.
    """

    inputs: tuple[tuple[str, int, Any], ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def signatures(self) -> frozenset[str]:
        """Signatures of all its ops."""
        return frozenset(self.work)

    @property
    def work(self) -> dict[str, float]:
        """Work of its ops, by signature."""
        return {i.signature: i.work for i in self.instructions if i.signature is not None}


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
        tuple((key, position[node], _leaves(node)) for key, node in zip(inputs, placeholders, strict=True)),
        instructions,
        tuple((key, position[n]) for key, n in zip(outputs, results, strict=True) if isinstance(n, fx.Node)),
    )


def _instruction(node: fx.Node, position: Mapping[fx.Node, int], dead: Iterable[fx.Node]) -> Instruction:
    frees = tuple(position[n] for n in dead)
    if node.target in spmd.UNBOUND:
        return Instruction(position[node], None, (), {}, None, frees, _left_by(node))
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = f"{target.namespace}::{target._schema.name.split('::')[1]}.{target._overloadname}"
    refer = {n: Ref(position[n]) for n in node.all_input_nodes}
    free = is_free(node)
    return Instruction(
        position[node],
        target,
        _plain(node.args, refer),
        _plain(node.kwargs, refer),
        None if free else op_signature(node),
        frees,
        _leaves(node),
        tuple((position[n], bound) for n, bound in index_bounds(node)),
        position[node.all_input_nodes[0]] if free and node.all_input_nodes else None,
        0.0 if free else op_bytes(node) + node_flops(node) / _FLOPS_PER_BYTE,
    )


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


# A core computes about as many while it moves a byte.
_FLOPS_PER_BYTE = 8


def _left_by(node: fx.Node) -> Any:
    if node.target is spmd.gather_params:
        parts = {int(u.args[1]): _leaves(u) for u in node.users}  # type: ignore[arg-type]
        return tuple(parts.get(i, SyntheticTensor((1,), (1,), "float32")) for i in range(max(parts) + 1))
    return _leaves(node) if node.target is spmd.wait else 0


def _leaves(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, tuple | list):
        return _fresh(value, node)
    parts = {u.args[1]: u for u in node.users if u.target is operator.getitem}
    return tuple(_fresh(each, parts.get(i)) for i, each in enumerate(value))


def _fresh(value: Any, node: fx.Node | None) -> Any:
    """Return a made-up value for the result of a node; the node's own value if it is no tensor."""
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, bool | int | float) else None
    below = 2
    if node is not None and not value.is_floating_point():
        below = min(_bounds(node), default=2)
    return SyntheticTensor(tuple(value.shape), value.stride(), str(value.dtype).removeprefix("torch."), below)


def _bounds(node: fx.Node) -> list[int]:
    """Return the bounds of a tensor's integers, by the ops that look up with them."""
    found = []
    for user in node.users:
        found += [bound for index, bound in index_bounds(user) if index is node]
        if is_free(user) and isinstance(user.meta.get("val"), torch.Tensor):
            found += _bounds(user)
    return found


@dataclass
class OpTimes:
    """Times of ops from running traces.

    Attributes
    ----------
    seconds : of every run of every op, in order, by signature.
    failed : why, by signature. Such an op is not run again; what it would have made is made up.
    faults : those of them that fail in training, too: for the types of their operands.
    before : called with the signature of an op before it runs; what it raises ends the run.
    clocks : see `elapsed`.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    before: Callable[[str], object] = lambda signature: None
    clocks: Clocks = (time.perf_counter,)


def read_clocks(clocks: Clocks) -> tuple[float, ...]:
    """Return the clocks' readings."""
    return tuple(clock() for clock in clocks)


def elapsed(clocks: Clocks, start: tuple[float, ...]) -> float:
    """Seconds since then by the clock that shows least: each leaves out something that is not the op's time.

    A clock that stood still, as the system's count of CPU time may, is passed over; 0 where all did.
    """
    laps = [clock() - then for clock, then in zip(reversed(clocks), reversed(start), strict=True)]
    return min((lap for lap in laps if lap > 0.0), default=0.0)


def run_trace(trace: Trace, values: dict[str, Any], times: OpTimes) -> None:
    """Run a trace once.

    Parameters
    ----------
    values : by key; what is missing is made up, and what later traces take is added.
    times : gets the seconds of every op, and which ones failed.
    """
    results: dict[int, Any] = {}
    for key, index, leaves in trace.inputs:
        if key not in values:
            values[key] = _made(leaves)
        results[index] = values[key]
    # As in a step, what only this trace takes is freed while it runs.
    for key, _, _ in trace.inputs:
        if key.startswith("value:"):
            values.pop(key, None)
    for step in trace.instructions:
        if step.signature is None:
            results[step.index] = _left(step, results)
            for index in step.frees:
                del results[index]
        elif step.signature in times.failed:
            _stand_in(step, results)
        else:
            times.before(step.signature)
            _measure(step, step.signature, results, times)
    for key, index in trace.outputs:
        values[key] = results[index]


def _left(step: Instruction, results: Mapping[int, Any]) -> Any:
    """Return the result of a step that takes no time: a view, a number, or the result of communication."""
    if step.target is not None:
        # A view of what was made up may not exist.
        with suppress(Exception):
            return _callable(step.target)(*_filled(step.args, results), **_filled(step.kwargs, results))
    return _made(step.leaves)


def _measure(step: Instruction, signature: str, results: dict[int, Any], times: OpTimes) -> None:
    args: Any = ()
    kwargs: Any = {}
    try:
        target = _callable(step.target)
        seen = ChainMap({i: _wrapped(results[i], bound) for i, bound in step.bounds}, results)
        args, kwargs = _filled(step.args, seen), _filled(step.kwargs, seen)
        del seen
        start = read_clocks(times.clocks)
        results[step.index] = target(*args, **kwargs)
    except Exception as error:
        times.failed[signature] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        times.seconds.pop(signature, None)
        if _is_fault(error, step.target, args, kwargs):
            times.faults.add(signature)
        _stand_in(step, results)
        return
    del args, kwargs
    for index in step.frees:
        del results[index]
    times.seconds.setdefault(signature, []).append(elapsed(times.clocks, start))


def _is_fault(error: Exception, target: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an op fails for the types of its operands, whatever their values are."""
    is_pytorch = isinstance(target, str) and target.startswith("aten::")
    if is_pytorch and isinstance(error, NotImplementedError | TypeError):
        return True
    try:
        run = _callable(target)
    except AttributeError:  # an op of the user that this process does not know
        return False
    return fails_by_type(run, args, kwargs)


def _stand_in(step: Instruction, results: dict[int, Any]) -> None:
    results[step.index] = _made(step.leaves)
    for index in step.frees:
        del results[index]


def _made(leaves: Any) -> Any:
    if isinstance(leaves, SyntheticTensor):
        return leaves.make()
    return tuple(map(_made, leaves)) if isinstance(leaves, tuple) else leaves


def _wrapped(index: torch.Tensor, bound: int) -> torch.Tensor:
    """The same index where it is in range: one that the graph computes from what was made up need not be."""
    return index.remainder(max(1, bound))


def _filled(value: Any, results: Mapping[int, Any]) -> Any:
    if isinstance(value, Ref):
        return results[value.index]
    if isinstance(value, tuple | list):
        return type(value)(_filled(v, results) for v in value)
    if isinstance(value, dict):
        return {k: _filled(v, results) for k, v in value.items()}
    return value


_found: dict[str, Callable[..., Any]] = {}


def _callable(target: Any) -> Callable[..., Any]:
    if not isinstance(target, str):
        return target  # type: ignore[no-any-return]
    if target not in _found:
        namespace, _, rest = target.partition("::")
        name, _, overload = rest.partition(".")
        _found[target] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return _found[target]

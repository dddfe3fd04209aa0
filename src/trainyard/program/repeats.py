"""Repeated blocks: trace one of many equal blocks, and write its graph for every one of them.

Tracing costs about a millisecond for every op, and most ops of a deep model lie in blocks that differ only in their
parameters. While the whole model is traced, such a block is one op (and one more in the backward pass); afterwards
each is replaced by a copy of the graph of one. A block is replaced only where nothing can tell the difference:
it has the class, attributes, parameters and children of that one, and is called on inputs of the same shapes and
types. The idea is that of regional compilation (``torch.compiler.nested_compile_region``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from trainyard.program.nodes import copy_node
from trainyard.program.program import output_args
from trainyard.program.random import CounterDropout
from trainyard.program.tracing import gradients, layers_recorded, trace, was_written

__all__ = ["Repeats", "find_repeats", "write_out"]

_MIN_BLOCKS = 3


def repeated_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """The largest set of blocks that are equal but for their parameters, by path; empty if fewer than three.

    All lie in one list, and none holds another.
    """
    found: list[dict[str, nn.Module]] = []
    for path, parent in module.named_modules():
        if not isinstance(parent, nn.ModuleList | nn.Sequential):
            continue
        equal: dict[Any, dict[str, nn.Module]] = {}
        for name, child in parent.named_children():
            equal.setdefault(_description(child), {})[f"{path}.{name}" if path else name] = child
        found += equal.values()
    found = [blocks for blocks in found if len(blocks) >= _MIN_BLOCKS]
    return max(found, key=lambda blocks: len(blocks) * _num_modules(blocks), default={})


def _num_modules(blocks: Mapping[str, nn.Module]) -> int:
    return sum(1 for _ in next(iter(blocks.values())).modules())


def _description(module: nn.Module) -> Any:
    """All that decides what a module computes, except its parameters' values."""
    own = {k: v for k, v in vars(module).items() if k not in _STATE}
    tensors = [
        (name, kind, tuple(t.shape), t.dtype, t.requires_grad)
        for kind in ("_parameters", "_buffers")
        for name, t in getattr(module, kind).items()
        if t is not None
    ]
    children = tuple((name, _description(child)) for name, child in module.named_children())
    return type(module), _frozen(own), tuple(tensors), children


# Hooks are part of what a module does, so they are compared; these are described by themselves.
_STATE = {"_parameters", "_buffers", "_modules"}


def _frozen(value: Any) -> Any:
    """A value to compare by: plain values as they are, all else by identity."""
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(_frozen(v) for v in value)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return type(value).__name__, value
    if isinstance(value, set | frozenset) and not value:
        return ()
    return id(value)


@dataclass(frozen=True, eq=False)
class Traced:
    """The graph of a block: of its forward pass, and of its backward pass from its outputs' gradients.

    Attributes
    ----------
    graph : placeholders for ``num_inputs`` inputs and for the gradients of the ``outputs``; results are the
        outputs and the gradients of the inputs that ``has_grad``.
    key : of the call, see `_Call`.
    outputs, input_grads : fake tensors like the results.
    rebuild : makes what the block returns of its output tensors.
    num_draws : calls of dropout.
    """

    graph: fx.Graph
    key: Any
    num_inputs: int
    outputs: tuple[Tensor, ...]
    input_grads: tuple[Tensor, ...]
    has_grad: tuple[bool, ...]
    rebuild: Callable[[Sequence[Tensor]], Any]
    num_draws: int

    @cached_property
    def inputs(self) -> list[fx.Node]:
        """The graph's placeholders."""
        return [n for n in self.graph.nodes if n.op == "placeholder"]


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a block: its tensors (parameters, buffers, inputs, ``rng``), and all else that must be equal."""

    tensors: tuple[Tensor, ...]
    spec: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, block: nn.Module, args: Any, kwargs: Any, rng: Tensor) -> _Call:
        state = [*block.parameters(), *block.buffers()]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return cls((*state, *given, rng), spec, tuple(leaves))

    @property
    def key(self) -> Any:
        shapes = tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in self.tensors)
        plain = tuple(None if isinstance(leaf, Tensor) else _frozen(leaf) for leaf in self.leaves)
        return shapes, self.spec, plain

    def arguments(self, given: Sequence[Tensor]) -> Any:
        """Arguments of the block with other tensors."""
        rest = iter(given)
        return pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves], self.spec
        )


@dataclass(eq=False)
class Repeats:
    """The blocks of one model while it is traced.

    Attributes
    ----------
    blocks : by path; one of them is ``traced``. There are none where nothing repeats.
    placed : path and number of the first dropout of every call that was replaced.
    """

    blocks: Mapping[str, nn.Module]
    traced: Traced | None
    placed: list[tuple[str, int]] = field(default_factory=list)

    @contextmanager
    def replaced(self, mode: Any) -> Iterator[None]:
        """Within it, calls of the blocks are single ops; ``mode`` is the `CounterDropout` that is on."""
        with ExitStack() as stack:
            for path, block in self.blocks.items():
                stack.enter_context(patch.object(block, "forward", self._forward(path, block, mode)))
            yield

    def _forward(self, path: str, block: nn.Module, mode: Any) -> Callable[..., Any]:
        plain, traced = block.forward, self.traced
        assert traced is not None

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = _Call.of(block, args, kwargs, mode.rng)
            if call.key != traced.key:
                return plain(*args, **kwargs)
            self.placed.append((path, mode.calls))
            mode.calls += traced.num_draws
            return traced.rebuild(_Replaced.apply(traced, len(self.placed) - 1, *call.tensors))

        return forward


# What the ops that stand for blocks compute, for as long as a capture needs it.
_known: WeakValueDictionary[int, Traced] = WeakValueDictionary()


class _Replaced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, traced: Traced, index: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        ctx.traced, ctx.index = traced, index
        return tuple(torch.ops.trainyard.block_forward(list(tensors), id(traced), index))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # As they were when the block was traced.
        given = [g.contiguous() for g in grads]
        found = iter(torch.ops.trainyard.block_backward(given, id(ctx.traced), ctx.index))
        return None, None, *(next(found) if has else None for has in ctx.traced.has_grad)


torch.library.define("trainyard::block_forward", "(Tensor[] inputs, int block, int index) -> Tensor[]")
torch.library.define("trainyard::block_backward", "(Tensor[] grads, int block, int index) -> Tensor[]")


@torch.library.register_fake("trainyard::block_forward")
def _block_forward(inputs: list[Tensor], block: int, index: int) -> list[Tensor]:
    return [torch.empty_like(t, requires_grad=False) for t in _known[block].outputs]


@torch.library.register_fake("trainyard::block_backward")
def _block_backward(grads: list[Tensor], block: int, index: int) -> list[Tensor]:
    return [torch.empty_like(t, requires_grad=False) for t in _known[block].input_grads]


class _FirstCallError(Exception):
    """The block that is to be traced was called."""

    def __init__(self, call: _Call) -> None:
        self.call = call


def find_repeats(module: nn.Module, rows: int, run: Callable[[Any], Any]) -> Repeats:
    """Trace one of the repeated blocks of a model, if there are any.

    Parameters
    ----------
    rows : of the batch.
    run : runs the model on fake tensors as it will be traced, within the context that it is given.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        return Repeats({}, None)
    # The second, because the first may work on the batch itself, which has no gradient.
    block = list(blocks.values())[1]
    call = _first_call(block, run)
    traced = None if call is None else _trace_block(block, call, rows)
    return Repeats({} if traced is None else blocks, traced)


def _first_call(block: nn.Module, run: Callable[[Any], Any]) -> _Call | None:
    @contextmanager
    def watched(mode: Any) -> Iterator[None]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            raise _FirstCallError(_Call.of(block, args, kwargs, mode.rng))

        with patch.object(block, "forward", forward):
            yield

    try:
        run(watched)
    except _FirstCallError as reached:
        return reached.call
    return None


class _BlockStep:
    """The function that is traced: a block forward, and backward from given gradients."""

    def __init__(self, block: nn.Module, call: _Call, rows: int) -> None:
        self.block, self.call, self.rows = block, call, rows
        self.can_repeat = True
        self.result: Any = None
        self.num_draws = 0
        self.has_grad: tuple[bool, ...] = ()

    def __call__(self, tensors: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        outputs = self.forward(tensors)
        made = [o.detach() for o in outputs]
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(gradients(outputs, wanted, grads))
        given = [next(found) if t.requires_grad else None for t in tensors]
        self.has_grad = tuple(g is not None for g in given)
        self.can_repeat &= not any(map(was_written, tensors))
        return [*made, *(g for g in given if g is not None)]

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that the block returns; all of them must depend on its inputs to be repeated."""
        *given, rng = tensors
        names = [n for n, _ in (*self.block.named_parameters(), *self.block.named_buffers())]
        state, rest = given[: len(names)], given[len(names) :]
        args, kwargs = self.call.arguments(rest)
        with (
            torch.enable_grad(),
            CounterDropout(rng, self.rows) as mode,
            _reparametrize_module(self.block, dict(zip(names, state, strict=True)), tie_weights=True),
        ):
            self.result = self.block(*args, **kwargs)
        self.num_draws = mode.calls
        outputs = [leaf for leaf in pytree.tree_leaves(self.result) if isinstance(leaf, Tensor)]
        self.can_repeat &= bool(outputs) and all(o.requires_grad for o in outputs)
        return outputs


def _trace_block(block: nn.Module, call: _Call, rows: int) -> Traced | None:
    step = _BlockStep(block, call, rows)
    outputs = step.forward(call.tensors)
    if not step.can_repeat:
        return None
    leaves, spec = pytree.tree_flatten(step.result)
    given = [torch.empty_like(o, requires_grad=False, memory_format=torch.contiguous_format) for o in outputs]
    with layers_recorded(block):
        graph = trace(step, list(call.tensors), given).graph
    if not step.can_repeat or graph.find_nodes(op="get_attr"):
        return None
    results = [n.meta["val"] for n in output_args(graph) if n is not None]
    count = len(outputs)

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves], spec)

    made, grads = tuple(results[:count]), tuple(results[count:])
    traced = Traced(graph, call.key, len(call.tensors), made, grads, step.has_grad, rebuild, step.num_draws)
    _known[id(traced)] = traced
    return traced


def write_out(graph: fx.Graph, repeats: Repeats) -> None:
    """Replace the ops that stand for blocks by the blocks' graphs; in place."""
    if repeats.traced is None:
        return
    forward: dict[int, dict[fx.Node, Any]] = {}
    for node in list(graph.nodes):
        if node.target is torch.ops.trainyard.block_forward.default:
            index = node.args[2]
            forward[index] = dict(zip(repeats.traced.inputs, node.args[0], strict=False))
            _write(node, graph, repeats, forward[index], "forward")
        elif node.target is torch.ops.trainyard.block_backward.default:
            values = forward[node.args[2]]
            values |= zip(repeats.traced.inputs[repeats.traced.num_inputs :], node.args[0], strict=True)
            _write(node, graph, repeats, values, "backward")


def _write(op: fx.Node, graph: fx.Graph, repeats: Repeats, values: dict[fx.Node, Any], phase: str) -> None:
    traced, index = repeats.traced, op.args[2]
    assert traced is not None
    assert isinstance(index, int)
    path, first_draw = repeats.placed[index]
    with graph.inserting_before(op):
        for node in traced.graph.nodes:
            custom = node.meta.get("custom") or {}
            if node.op != "call_function" or custom.get("phase", "forward") != phase:
                continue
            copied = copy_node(graph, node, values.__getitem__)
            copied.meta["seq_nr"] = (index, node.meta.get("seq_nr", -1))
            if phase == "forward":
                inside = custom.get("layer", "")
                copied.meta["custom"] = {"layer": f"{path}.{inside}" if inside else path}
            if node.target is torch.ops.trainyard.dropout.default:
                copied.update_arg(3, node.args[3] + first_draw)
            values[node] = copied
    results = output_args(traced.graph)
    count = len(traced.outputs)
    own = results[:count] if phase == "forward" else results[count:]
    for user in list(op.users):
        result = own[user.args[1]]  # type: ignore[index]
        assert result is not None
        user.replace_all_uses_with(values[result])
        graph.erase_node(user)
    graph.erase_node(op)

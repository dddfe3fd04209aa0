"""Repeated blocks: trace one of many equal blocks, and write its graph for every one of them.

Tracing costs about a millisecond for every op, and most ops of a deep model lie in blocks that differ only in their
parameters. While the whole model is traced, such a block is one op without parameters (and one more in the backward
pass); afterwards each is replaced by a copy of the graph of one. A block is replaced only where nothing can tell the
difference: it has the class, attributes, parameters and children of that one, is called once, on inputs of the same
shapes and types, and nobody else reads its parameters. The idea is that of regional compilation
(``torch.compiler.nested_compile_region``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from torch.utils._python_dispatch import TorchDispatchMode

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
    graph : placeholders for the parameters and buffers of these ``names``, for what the block is given, and for the
        gradients of the ``outputs``; results are the outputs and the gradients of what ``has_grad``.
    key : of the call, see `_Call`.
    outputs, input_grads : fake tensors like the results, without those of parameters.
    has_grad : of the parameters and buffers, and of what the block is given.
    rebuild : makes what the block returns of its output tensors.
    num_draws : calls of dropout.
    """

    graph: fx.Graph
    key: Any
    names: tuple[str, ...]
    outputs: tuple[Tensor, ...]
    input_grads: tuple[Tensor, ...]
    has_grad: tuple[bool, ...]
    rebuild: Callable[[Sequence[Tensor]], Any]
    num_draws: int

    @property
    def given_has_grad(self) -> tuple[bool, ...]:
        return self.has_grad[len(self.names) :]

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that have gradients."""
        return tuple(name for name, has in zip(self.names, self.has_grad, strict=False) if has)

    @cached_property
    def inputs(self) -> list[fx.Node]:
        """The graph's placeholders."""
        return [n for n in self.graph.nodes if n.op == "placeholder"]


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a block: its parameters and buffers, the tensors ``given`` to it, and all else that must be equal."""

    state: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    spec: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, block: nn.Module, args: Any, kwargs: Any) -> _Call:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        given = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        return cls((*block.parameters(), *block.buffers()), given, spec, tuple(leaves))

    @property
    def key(self) -> Any:
        shapes = tuple(
            (tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in self.state + self.given
        )
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
    blocks : by path; all equal the one that is ``traced``. There are none where nothing repeats.
    placed : path and number of the first dropout of every call that was replaced.
    """

    blocks: Mapping[str, nn.Module]
    traced: Traced | None
    placed: list[tuple[str, int]] = field(default_factory=list)

    @cached_property
    def state(self) -> frozenset[str]:
        """Names of the blocks' parameters and buffers, which the model is traced without."""
        names = () if self.traced is None else self.traced.names
        return frozenset(f"{path}.{name}" for path in self.blocks for name in names)

    @contextmanager
    def replaced(self, mode: Any) -> Iterator[None]:
        """Within it, calls of the blocks are single ops; ``mode`` is the `CounterDropout` that is on."""
        with ExitStack() as stack:
            for path, block in self.blocks.items():
                stack.enter_context(patch.object(block, "forward", self.stand_in(path, block, mode)))
            yield

    def stand_in(self, path: str, block: nn.Module, mode: Any) -> Callable[..., Any]:
        """What does a block's work as a single op."""
        traced = self.traced
        assert traced is not None

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = _Call.of(block, args, kwargs).given
            self.placed.append((path, mode.calls))
            mode.calls += traced.num_draws
            return traced.rebuild(_Replaced.apply(traced, len(self.placed) - 1, *given, mode.rng))

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
        return None, None, *(next(found) if has else None for has in ctx.traced.given_has_grad)


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

    def __init__(self, call: _Call, rng: Tensor) -> None:
        self.call, self.rng = call, rng


def find_repeats(
    module: nn.Module, rows: int, state: Mapping[str, Tensor], run: Callable[[Any], Any]
) -> Repeats:
    """Trace one of the repeated blocks of a model, if there are any.

    Parameters
    ----------
    rows : of the batch.
    state : fake parameters and buffers by name.
    run : runs the model on them as it will be traced, within the context that it is given.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        return Repeats({}, None)
    # The second, because the first may work on the batch itself, which has no gradient.
    block = list(blocks.values())[1]
    traced = _trace_called(block, rows, run)
    if traced is None:
        return Repeats({}, None)
    return Repeats(_replaceable(blocks, traced, state, run), traced)


def _trace_called(block: nn.Module, rows: int, run: Callable[[Any], Any]) -> Traced | None:
    """The graph of a block as it is first called; None if it is not, or works on nothing that has a gradient."""

    @contextmanager
    def watched(mode: Any) -> Iterator[None]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            raise _FirstCallError(_Call.of(block, args, kwargs), mode.rng)

        with patch.object(block, "forward", forward):
            yield

    try:
        run(watched)
    except _FirstCallError as reached:
        if any(t.requires_grad for t in reached.call.given):
            return _trace_block(block, reached.call, reached.rng, rows)
    return None


class _Readers(TorchDispatchMode):
    """Notes whose parameters and buffers ops read."""

    def __init__(self, owner: Mapping[int, str]) -> None:
        super().__init__()
        self.owner, self.read = owner, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.read.update(self.owner[id(x)] for x in pytree.tree_leaves((args, kwargs)) if id(x) in self.owner)
        return func(*args, **kwargs)


def _replaceable(
    blocks: Mapping[str, nn.Module], traced: Traced, state: Mapping[str, Tensor], run: Callable[[Any], Any]
) -> dict[str, nn.Module]:
    """The blocks that are called once, as the traced one was, and whose parameters and buffers nobody else reads."""
    own = {path: [f"{path}.{name}" for name in traced.names] for path in blocks}
    own = {path: names for path, names in own.items() if all(name in state for name in names)}
    readers = _Readers({id(state[name]): path for path, names in own.items() for name in names})
    calls = Counter[str]()
    trial = Repeats(blocks, traced)

    def counted(path: str, block: nn.Module, mode: Any) -> Callable[..., Any]:
        plain, stand_in = block.forward, trial.stand_in(path, block, mode)

        def forward(*args: Any, **kwargs: Any) -> Any:
            is_equal = _Call.of(block, args, kwargs).key == traced.key
            calls[path] += 1 if is_equal else 2
            return (stand_in if is_equal else plain)(*args, **kwargs)

        return forward

    @contextmanager
    def watched(mode: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for path, block in blocks.items():
                stack.enter_context(patch.object(block, "forward", counted(path, block, mode)))
            yield stack.enter_context(readers)

    run(watched)
    return {path: blocks[path] for path in own if calls[path] == 1 and path not in readers.read}


class _BlockStep:
    """The function that is traced: a block forward, and backward from given gradients."""

    def __init__(self, block: nn.Module, call: _Call, rows: int) -> None:
        self.block, self.call, self.rows = block, call, rows
        self.names = tuple(n for n, _ in (*block.named_parameters(), *block.named_buffers()))
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
        state, rest = given[: len(self.names)], given[len(self.names) :]
        args, kwargs = self.call.arguments(rest)
        with (
            torch.enable_grad(),
            CounterDropout(rng, self.rows) as mode,
            _reparametrize_module(self.block, dict(zip(self.names, state, strict=True)), tie_weights=True),
        ):
            self.result = self.block(*args, **kwargs)
        self.num_draws = mode.calls
        outputs = [leaf for leaf in pytree.tree_leaves(self.result) if isinstance(leaf, Tensor)]
        self.can_repeat &= bool(outputs) and all(o.requires_grad for o in outputs)
        return outputs


def _trace_block(block: nn.Module, call: _Call, rng: Tensor, rows: int) -> Traced | None:
    step = _BlockStep(block, call, rows)
    tensors = [*call.state, *call.given, rng]
    outputs = step.forward(tensors)
    if not step.can_repeat:
        return None
    leaves, spec = pytree.tree_flatten(step.result)
    given = [torch.empty_like(o, requires_grad=False, memory_format=torch.contiguous_format) for o in outputs]
    with layers_recorded(block):
        graph = trace(step, tensors, given).graph
    if not step.can_repeat or graph.find_nodes(op="get_attr"):
        return None
    results = [n.meta["val"] for n in output_args(graph) if n is not None]
    made, grads = results[: len(outputs)], results[len(outputs) :]
    num_trained = sum(step.has_grad[: len(step.names)])

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves], spec)

    traced = Traced(
        graph,
        call.key,
        step.names,
        tuple(made),
        tuple(grads[num_trained:]),
        step.has_grad,
        rebuild,
        step.num_draws,
    )
    _known[id(traced)] = traced
    return traced


def write_out(graph: fx.Graph, repeats: Repeats, state: Mapping[str, Tensor]) -> dict[str, fx.Node]:
    """Replace the ops that stand for blocks by the blocks' graphs, and add inputs for their parameters; in place.

    Parameters
    ----------
    state : all parameters and buffers by name, in the order of the inputs, which those that were traced begin.

    Returns
    -------
    Gradients of the blocks' parameters, by name.
    """
    traced = repeats.traced
    if traced is None:
        return {}
    inputs = _add_inputs(graph, repeats.state, state)
    forward: dict[int, dict[fx.Node, Any]] = {}
    grads: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is torch.ops.trainyard.block_forward.default:
            path = repeats.placed[node.args[2]][0]
            own = (*(inputs[f"{path}.{name}"] for name in traced.names), *node.args[0])
            forward[node.args[2]] = values = dict(zip(traced.inputs, own, strict=False))
            _replace(node, _write(node, graph, repeats, values, "forward"))
        elif node.target is torch.ops.trainyard.block_backward.default:
            path, values = repeats.placed[node.args[2]][0], forward[node.args[2]]
            values |= zip(traced.inputs[-len(traced.outputs) :], node.args[0], strict=True)
            found = _write(node, graph, repeats, values, "backward")
            grads |= zip((f"{path}.{name}" for name in traced.trained), found, strict=False)
            _replace(node, found[len(traced.trained) :])
    return grads


def _add_inputs(graph: fx.Graph, missing: Collection[str], state: Mapping[str, Tensor]) -> dict[str, fx.Node]:
    """Add placeholders for those of the parameters and buffers that are missing; the new ones by name."""
    found: dict[str, fx.Node] = {}
    given = iter([n for n in graph.nodes if n.op == "placeholder"])
    following = next(given)
    for number, (name, value) in enumerate(state.items(), 1):
        if name in missing:
            with graph.inserting_before(following):
                found[name] = graph.placeholder(f"arg_{number}")
            found[name].meta["val"] = value.detach()
        else:
            following = next(given)
    return found


def _replace(op: fx.Node, results: Sequence[fx.Node]) -> None:
    """Let the users of an op's results use others, and remove it."""
    for user in list(op.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        op.graph.erase_node(user)
    op.graph.erase_node(op)


def _write(
    op: fx.Node, graph: fx.Graph, repeats: Repeats, values: dict[fx.Node, Any], phase: str
) -> list[fx.Node]:
    """Write a block's nodes of one phase before an op; the results: outputs, or gradients of all that has some."""
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
    return [values[node] for node in (results[:count] if phase == "forward" else results[count:]) if node]

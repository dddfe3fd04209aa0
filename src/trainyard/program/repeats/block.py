"""The graph of one block: what a call of it is, and tracing it forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from trainyard.program.op_observer import tensors_of
from trainyard.program.program import output_args
from trainyard.program.repeats.equal import frozen
from trainyard.program.tracing.running import Watch, running
from trainyard.program.tracing.trace import gradients, is_backward, layers_recorded, trace, was_written


@dataclass(frozen=True, eq=False)
class Traced:
    """The graph of a block: of its forward pass, and of its backward pass from its outputs' gradients.

    Attributes
    ----------
    graph : placeholders for the parameters and buffers of these ``names``, for what the block is given, and for the
        gradients of the ``outputs``; results are the outputs and the gradients of what ``has_grad``.
    given_key : of the call, see `Call`.
    outputs, input_grads : fake tensors like the results, without those of parameters.
    has_grad : of the parameters and buffers, and of what the block is given.
    rebuild : makes what the block returns of its output tensors.
    num_draws : draws of random numbers.
    """

    graph: fx.Graph
    given_key: Any
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
class Call:
    """A call of a block: its parameters and buffers, the tensors ``given`` to it, and all else that must be equal."""

    state: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    spec: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, block: nn.Module, args: Any, kwargs: Any) -> Call:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        given = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        return cls((*block.parameters(), *block.buffers()), given, spec, tuple(leaves))

    @property
    def given_key(self) -> Any:
        """All of it but the parameters and buffers."""
        plain = tuple(None if isinstance(leaf, Tensor) else frozen(leaf) for leaf in self.leaves)
        return _shapes(self.given), self.spec, plain

    @property
    def key(self) -> Any:
        """Equal for calls with the same arguments but for the values of tensors."""
        return _shapes(self.state), self.given_key

    def arguments(self, given: Sequence[Tensor]) -> Any:
        """Arguments of the block with other tensors."""
        rest = iter(given)
        return pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves], self.spec
        )


def _shapes(tensors: Sequence[Tensor]) -> Any:
    return tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in tensors)


class _BlockStep:
    """The function that is traced: a block forward, and backward from given gradients."""

    def __init__(self, block: nn.Module, call: Call, rows: int) -> None:
        self.block, self.call, self.rows = block, call, rows
        self.names = tuple(n for n, _ in (*block.named_parameters(), *block.named_buffers()))
        self.writes = False
        self.num_draws = 0
        self.has_grad: tuple[bool, ...] = ()

    def __call__(self, tensors: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        with self.running(tensors) as result:
            outputs = tensors_of(result)
            made = [o.detach() for o in outputs]
            wanted = [t for t in tensors if t.requires_grad]
            found = iter(gradients(outputs, wanted, grads))
        given = [next(found) if t.requires_grad else None for t in tensors]
        self.has_grad = tuple(g is not None for g in given)
        self.writes = any(map(was_written, tensors))
        return [*made, *(g for g in given if g is not None)]

    @contextmanager
    def running(self, tensors: Sequence[Tensor], watch: Watch = nullcontext) -> Iterator[Any]:
        """What the block returns for these tensors; it runs within ``watch``."""
        *given, rng = tensors
        state, rest = given[: len(self.names)], given[len(self.names) :]
        args, kwargs = self.call.arguments(rest)
        with running(self.block, dict(zip(self.names, state, strict=True)), rng, self.rows, watch) as mode:
            result = self.block(*args, **kwargs)
            self.num_draws = mode.calls
            yield result


def trace_block(block: nn.Module, call: Call, rng: Tensor, rows: int, watch: Watch) -> Traced | None:
    """Trace a call of a block by itself; None if that cannot be repeated.

    Parameters
    ----------
    watch : within which the block runs before that.
    """
    step = _BlockStep(block, call, rows)
    tensors = [*call.state, *call.given, rng]
    with step.running(tensors, watch) as result:
        leaves, spec = pytree.tree_flatten(result)
    outputs = tensors_of(leaves)
    if not outputs or not all(o.requires_grad for o in outputs):
        return None
    given = [torch.empty_like(o, requires_grad=False, memory_format=torch.contiguous_format) for o in outputs]
    with layers_recorded(block):
        graph = trace(step, tensors, given).graph
    phases = [is_backward(n) for n in graph.nodes if n.op == "call_function"]
    # Functions with a backward pass of their own may run ops of layers there.
    if step.writes or graph.find_nodes(op="get_attr") or phases != sorted(phases):
        return None
    results = [n.meta["val"] for n in output_args(graph) if n is not None]
    made, grads = results[: len(outputs)], results[len(outputs) :]
    num_trained = sum(step.has_grad[: len(step.names)])

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves], spec)

    return Traced(
        graph=graph,
        given_key=call.given_key,
        names=step.names,
        outputs=tuple(made),
        input_grads=tuple(grads[num_trained:]),
        has_grad=step.has_grad,
        rebuild=rebuild,
        num_draws=step.num_draws,
    )

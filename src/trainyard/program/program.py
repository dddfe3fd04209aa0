"""Program: the joint forward and backward graph of one training step, as a value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import fx, nn

from trainyard.program.addresses import Addresses
from trainyard.shown import Shown

InputKind = Literal["param", "buffer", "batch", "rng", "loss_scale", "constant", "total", "value"]
OutputKind = Literal["loss", "metric", "grad", "buffer", "total", "value"]
Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class Input:
    """One placeholder of the graph.

    Attributes
    ----------
    node : name of the placeholder.
    kind : what feeds it; a ``total`` is a result of ``Program.totals``, a ``value`` comes from another stage.
    path : where the value lives in the user's terms: ``"blocks.0.mlp.weight"`` or ``"batch.tokens"``; of a
        constant, its name in ``Program.constants``; of a value, the address of the op.
    trainable : a parameter whose gradient is among the outputs.
    whole : an entry of the batch that is not cut into rows: every rank and microbatch gets all of it.
    """

    node: str
    kind: InputKind
    path: str
    trainable: bool = False
    whole: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class Output:
    """One output of the graph: the loss, a metric, a parameter's gradient, a buffer's new value, a total, or a value
    that other stages take, by its address."""

    kind: OutputKind
    path: str


@dataclass(frozen=True, eq=False, repr=False)
class Program(Shown):
    """One training step of a model on ``num_rows`` rows of its batch.

    The graph holds aten ops and Trainyard's own (random numbers by position), is functional (no op writes to its
    inputs), and every node carries ``meta["val"]`` (a fake tensor or a tuple of them), ``meta["phase"]`` and
    ``meta["layer"]`` (the module path whose forward made it; a backward node has the path of the forward op
    it differentiates). An op carries ``meta["address"]``, too (see `trainyard.program.addresses`), and a forward node
    inside a function that the user checkpoints the call's number as ``meta["checkpoint"]``.

    Attributes
    ----------
    name : the model's name.
    graph : placeholders in the order of ``inputs``, one flat output tuple as ``outputs``.
    constants : tensors that the model made of Python numbers or keeps beside its buffers, by path.
    num_rows : rows of the batch (dim 0 of its tensors) that one execution consumes.
    aliases : names of tied parameters, and the name under which each is an input.
    unused : parameters that ask for a gradient and have none, because the loss does not use them.
    is_separate : captured of a microbatch alone, whose loss is its share of a mean; not a part of the batch's program.
    totals : of a program of a microbatch: what is computed of the whole batch before the first microbatch, such as
        how many tokens count in the loss. Its outputs are inputs of this program, by path.
    """

    name: str
    graph: fx.Graph
    constants: Mapping[str, torch.Tensor]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    num_rows: int
    aliases: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    totals: Program | None = None
    is_separate: bool = False

    @cached_property
    def graph_module(self) -> fx.GraphModule:
        """The graph as something that can be called; Python code is generated for it on first use."""
        return fx.GraphModule(nn.Module(), self.graph)

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """Nodes by name, in topological order."""
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def addresses(self) -> Addresses:
        """Ops by their addresses."""
        return Addresses(self.graph)

    @cached_property
    def params(self) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.kind == "param")

    @cached_property
    def recompute(self) -> frozenset[str]:
        """Forward ops that the user wants computed again: those in a checkpointed region but what leaves it."""

        def stays(user: fx.Node, region: Any) -> bool:
            return user.meta.get("phase") == "backward" or user.meta.get("checkpoint") == region

        again = [
            node
            for node in self.graph.nodes
            if (region := node.meta.get("checkpoint")) is not None
            and node.op == "call_function"
            and all(stays(user, region) for user in node.users)
        ]
        return frozenset(self.addresses.shortened(again))

    @cached_property
    def result_nodes(self) -> tuple[fx.Node | None, ...]:
        """The node behind each output, in the order of ``outputs``."""
        return tuple(output_args(self.graph))

    def input_of(self, path: str) -> Input:
        for entry in self.inputs:
            if entry.path == path:
                return entry
        raise KeyError(f"{self.name} has no input {path!r}; it has {[i.path for i in self.inputs]}")

    @cached_property
    def num_params(self) -> int:
        """Number of parameter elements; a tied parameter counts once."""
        return sum(tensor_of(self.nodes[i.node]).numel() for i in self.params)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of ops, their arguments and shapes, and of what goes in and comes out.

        A plan made for one program is refused for another.
        """
        lines = [str(self.inputs), str(self.outputs)]
        lines += [f"whole {entry.path}" for entry in self.inputs if entry.whole]
        lines = [str(self.inputs), str(self.outputs), self.totals.fingerprint if self.totals else ""]
        for node in self.graph.nodes:
            shapes = [(tuple(t.shape), str(t.dtype)) for t in tensors_of(node)]
            # A Python function shows its address.
            target = (
                f"{node.target.__module__}.{node.target.__name__}" if callable(node.target) else node.target
            )
            lines.append(f"{node.name} {target} {_text(node.args)} {_text(node.kwargs)} {shapes}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _text(argument: Any) -> str:
    """An op's arguments, nodes by their names."""
    if isinstance(argument, fx.Node):
        return argument.name
    if isinstance(argument, tuple | list):
        return f"[{', '.join(map(_text, argument))}]"
    if isinstance(argument, dict):
        return str({key: _text(value) for key, value in argument.items()})
    return repr(argument)


def output_args(graph: fx.Graph) -> tuple[fx.Node | None, ...]:
    """The flat results of a graph."""
    results = next(iter(reversed(graph.nodes))).args[0]
    assert isinstance(results, tuple | list)
    return tuple(results)


def tensor_of(node: fx.Node) -> torch.Tensor:
    """The fake tensor a node computes.

    Raises
    ------
    TypeError
        If the node computes a tuple; its ``getitem`` users hold the tensors.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{node.name} computes a {type(value).__name__}, not one tensor")
    return value


def tensors_of(node: fx.Node) -> Iterator[torch.Tensor]:
    """Every fake tensor a node computes; none for the output node."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        yield from (v for v in value if isinstance(v, torch.Tensor))


def size_bytes(value: torch.Tensor) -> int:
    """Bytes of a contiguous tensor of this shape and dtype."""
    return value.numel() * value.element_size()

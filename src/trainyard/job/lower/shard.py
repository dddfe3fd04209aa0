"""Sharding: the same program as one rank of a mesh axis runs it, with explicit collectives.

Axes are lowered one after the other: what is local with respect to the first axis is the whole for the next.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from trainyard.errors import TrainyardError
from trainyard.program import spmd
from trainyard.program.addresses import give_addresses
from trainyard.program.algebra.local import Offset, local_call
from trainyard.program.algebra.rules import args_of, tensor_args
from trainyard.program.choices import expand_named
from trainyard.program.decompose import expand
from trainyard.program.nodes import add_op, add_placeholder
from trainyard.program.orders import order_mark, stays, without_orders
from trainyard.program.placement import (
    PARTIAL,
    REPLICATE,
    Divisor,
    OpChoice,
    Partial,
    Placement,
    Replicate,
    Shard,
    local_shape,
)
from trainyard.program.program import Output, Program, output_args, tensors_of
from trainyard.program.propagate import Assignment, Axis, propagate
from trainyard.reading.arguments import WrongValueError


class MovedOrderError(TrainyardError, ValueError):
    """Values that depend on a rank's own order would have to be moved."""


@dataclass(frozen=True)
class Sharded:
    """A program on one axis.

    Attributes
    ----------
    program : what every rank of the axis runs; shapes are a rank's own.
    outputs : placement in which every output comes out, in the order of ``program.outputs``.
    assignment : what was decided of the whole program.
    """

    program: Program
    outputs: tuple[Placement, ...]
    assignment: Assignment


def shard(
    program: Program,
    axis: Axis,
    wanted: Mapping[str, Placement],
    choices: Mapping[str, OpChoice] = MappingProxyType({}),
    sums_before_sending: bool = False,
) -> Sharded:
    """Cut a program over the ranks of one axis.

    Parameters
    ----------
    program : the whole.
    axis : its ranks.
    wanted, choices : placements and choices that the plan names (see ``propagate``).
    sums_before_sending : whether values that leave the stage are summed before, if they are terms of a sum.
    """
    try:
        return emit(complete(program, axis, wanted, choices), wanted, sums_before_sending)
    except MovedOrderError:
        # Numbers that an earlier stage counted within each part would be taken for numbers of the whole batch.
        if any(order_mark(node).depends for node in program.graph.find_nodes(op="placeholder")):
            raise
        program = replace(program, graph=without_orders(program.graph))
        return emit(complete(program, axis, wanted, choices), wanted, sums_before_sending)


def complete(
    program: Program,
    axis: Axis,
    wanted: Mapping[str, Placement],
    choices: Mapping[str, OpChoice] = MappingProxyType({}),
) -> Assignment:
    """Decide how every op runs; the assignment's program has those ops written out that are cut apart."""
    assignment = propagate(expand_named(program, choices), axis, wanted, choices)
    expanded: list[frozenset[str]] = []
    while assignment.expand:
        expanded.append(frozenset(node.name for node in assignment.expand))
        assignment = propagate(expand(assignment.program, assignment.expand), axis, wanted, choices)
    return replace(assignment, expanded=tuple(expanded))


def applied_to(program: Program, decided: Assignment, choices: Iterable[str], held: int) -> Assignment:
    """The same decisions for a program of the same ops, of which a rank holds another share.

    Parameters
    ----------
    choices : names of the ops of which the plan says how they run.
    held : parts that the rank holds on the axis.
    """
    program = expand_named(program, choices)
    for names in decided.expanded:
        program = expand(program, {node for node in program.graph.nodes if node.name in names})
    return decided.applied_to(program, replace(decided.axis, held=held))


def emit(
    assignment: Assignment,
    wanted: Mapping[str, Placement],
    sums_before_sending: bool = False,
) -> Sharded:
    """Write what every rank runs under a complete assignment."""
    return _Emitter(assignment, wanted, sums_before_sending).run()


class _Emitter:
    """Writes the local graph, op by op."""

    def __init__(
        self,
        assignment: Assignment,
        wanted: Mapping[str, Placement],
        sums_before_sending: bool,
    ) -> None:
        self.program = assignment.program
        self.sums_before_sending = sums_before_sending
        self.wanted = wanted
        self.assignment = assignment
        self.axis = assignment.axis
        self.graph = fx.Graph()
        self.current: dict[fx.Node, tuple[Placement, fx.Node]] = {}
        self.moved: dict[tuple[fx.Node, Placement, str], fx.Node] = {}

    def run(self) -> Sharded:
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._op(node)
        results, placements = self._outputs()
        self.graph.output(tuple(results))
        give_addresses(self.graph)
        local = replace(self.program, graph=self.graph)
        return Sharded(local, placements, self.assignment)

    def _placeholder(self, node: fx.Node) -> None:
        (placement,) = self.assignment.made[node]
        new = add_placeholder(self.graph, node.name)
        new.meta = dict(node.meta)
        new.meta["val"] = _empty_part(node.meta["val"], placement, self.axis.divisor)
        self.current[node] = (placement, new)

    def _op(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            (source, index) = args_of(node)
            self._finish(node, operator.getitem, (self.current[source][1], index), {})
            return
        choice = self.assignment.choice[node]
        parts = {
            (id(source), need): self._as(source, need, node)
            for source, need in zip(tensor_args(node), choice.operands, strict=True)
        }
        needs = iter(choice.operands)

        def local(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                if isinstance(argument.meta.get("val"), torch.Tensor):
                    return parts[id(argument), next(needs)]
                return self.current[argument][1]
            if isinstance(argument, Offset):
                return self._offset(argument, local, node)
            if isinstance(argument, list | tuple):
                return type(argument)(local(a) for a in argument)
            return argument

        call = local_call(node, choice, self.axis.divisor)
        args = tuple(local(a) for a in call.args)
        self._finish(node, call.target, args, {k: local(v) for k, v in call.kwargs.items()})

    def _finish(self, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        new = add_op(self.graph, target, args, kwargs, node.name)
        new.meta = dict(node.meta)
        made = self.assignment.made[node]
        if spmd.is_scalar(node):
            self.current[node] = (made[0] if made else Replicate(), new)
            return
        parts = [_empty_part(v, p, self.axis.divisor) for v, p in zip(tensors_of(node), made, strict=True)]
        if isinstance(node.meta["val"], torch.Tensor):
            new.meta["val"] = parts[0]
            self.current[node] = (made[0], new)
            settled = self.assignment.settled(node)
            if settled != made[0]:
                self.current[node] = (settled, self._as(node, settled, node))
        else:
            rest = iter(parts)
            new.meta["val"] = tuple(
                next(rest) if isinstance(v, torch.Tensor) else v for v in node.meta["val"]
            )
            self.current[node] = (Replicate(), new)

    def _outputs(self) -> tuple[list[fx.Node | None], tuple[Placement, ...]]:
        results: list[fx.Node | None] = []
        placements: list[Placement] = []
        for output, node in zip(self.program.outputs, output_args(self.program.graph), strict=True):
            if node is None:
                results.append(None)
                placements.append(Replicate())
                continue
            placement, new = self._found(node) if output.kind == "value" else self.current[node]
            need = self._needed_of(output, placement)
            if need is not None and need != placement:
                # A value that leaves is summed where it is made, even if a later pass has had it summed for itself.
                own = output.kind == "value"
                moved = self._move(new, node, placement, need, node) if own else self._as(node, need, node)
                placement, new = need, moved
            results.append(new)
            placements.append(placement)
        return results, tuple(placements)

    def _found(self, node: fx.Node) -> tuple[Placement, fx.Node]:
        """Return the placement of a value that leaves the stage: summed, if an op of its own pass has had it summed."""
        placement, new = self.current[node]
        summed = self.moved.get((node, REPLICATE, "")) if isinstance(placement, Partial) else None
        if summed is None or summed.meta["phase"] != new.meta["phase"]:
            return placement, new
        return REPLICATE, summed

    def _needed_of(self, output: Output, placement: Placement) -> Placement | None:
        """A new value lies as its buffer, a gradient as was asked; only sums may be left to the step's end."""
        if output.kind == "grad":
            return self.wanted.get(f"grad:{output.path}")
        if output.kind in ("loss", "metric"):
            return Replicate() if isinstance(placement, Partial) and placement.reduction != "sum" else None
        if output.kind == "total":
            return Replicate()
        if output.kind == "value":
            return Replicate() if self.sums_before_sending and isinstance(placement, Partial) else None
        if output.kind != "buffer":
            return None
        # A stage may write a buffer that it does not read.
        read = [self.program.nodes[i.node] for i in self.program.inputs if i.path == output.path]
        return self.assignment.made[read[0]][0] if read else self.wanted.get(output.path, REPLICATE)

    def _offset(self, offset: Offset, local: Any, user: fx.Node) -> fx.Node:
        # The scale is the extent of all parts that the rank has.
        own = self.graph.call_function(spmd.axis_offset, (self.axis.name, offset.scale // self.axis.held))
        own.meta = {**_place(user), "val": None}
        if isinstance(offset.base, int) and offset.base == 0:
            return own
        # By another name than that of an op of the model, which keeps its own.
        total = add_op(self.graph, operator.add, (local(offset.base), own), {}, "offset")
        total.meta = dict(own.meta)
        return total

    def _as(self, source: fx.Node, need: Placement, user: fx.Node) -> fx.Node:
        """The local node of a tensor in the placement that is needed, moved where it must be."""
        have, node = self.current[source]
        reduced = isinstance(have, Partial)
        # Statistics that batch normalisation does not take when it is not training have no elements.
        if have == need or (reduced and isinstance(need, Replicate) and not source.meta["val"].numel()):
            return node
        # What was reduced once is used again; what was gathered forward is gathered again backward, not kept.
        key = (source, need, "" if reduced else user.meta["phase"])
        if key not in self.moved:
            self.moved[key] = self._move(node, source, have, need, user)
        return self.moved[key]

    def _move(
        self, node: fx.Node, source: fx.Node, have: Placement, need: Placement, user: fx.Node
    ) -> fx.Node:
        axis = self.axis
        if stays(source, have):
            raise MovedOrderError(
                f"{source.name} is in the order of each rank's own sort on axis {axis.name!r}, so it cannot go from "
                f"{have} to {need}"
            )
        offset = self._offset(Offset(axis.held), None, user) if isinstance(have, Replicate) else None
        target: Any
        args: tuple[Any, ...]
        if isinstance(have, Replicate) and isinstance(need, Shard):
            held = (axis.held,) if axis.held > 1 else ()
            target, args = spmd.take_part, (node, offset, need.dim, need.blocks, axis.size, *held)
        elif isinstance(have, Replicate):
            target, args = spmd.keep_on_first, (node, offset)
        elif isinstance(have, Partial) and isinstance(need, Replicate):
            target, args = spmd.all_reduce, (node, axis.name, have.reduction)
        elif isinstance(need, Shard) and have == PARTIAL and not axis.is_uneven:
            target, args = spmd.reduce_scatter, (node, axis.name, need.dim, need.blocks)
        elif isinstance(have, Shard) and isinstance(need, Shard):
            target, args = spmd.all_to_all, (node, axis.name, have.dim, have.blocks, need.dim, need.blocks)
        elif isinstance(have, Shard) and isinstance(need, Replicate):
            target, args = spmd.all_gather, (node, axis.name, have.dim, have.blocks)
        else:
            whole = self._move(node, source, have, Replicate(), user)
            return self._move(whole, source, Replicate(), need, user)
        if axis.is_uneven and target in (spmd.all_gather, spmd.reduce_scatter, spmd.all_to_all):
            raise WrongValueError(
                f"{source.name} would have to go from {have} to {need} between ranks that hold unequal shares, where "
                "rows stay on their rank and only terms of sums are added; leave out placements on this axis, or give "
                "its ranks equal shares"
            )
        # The name tells the value from that of another stage: what is moved may go there.
        new = add_op(self.graph, target, args, {}, f"{source.name}_{axis.name}")
        # What is moved belongs where it was made, an input where it is used, and what the backward pass moves
        # again not before the gradients that it meets there.
        elsewhere = source.op == "placeholder" or source.meta["phase"] != user.meta["phase"]
        place = _place(user if elsewhere else source)
        new.meta = {
            **place,
            "phase": user.meta["phase"],
            "moved_from": names_of(source),
            "val": _empty_part(source.meta["val"], need, axis.divisor),
        }
        return new


def names_of(node: fx.Node) -> tuple[str, ...]:
    """The names by which a plan can mean a node: its own, the op's that it is a part of, or its source's if moved."""
    if "moved_from" in node.meta:
        return node.meta["moved_from"]  # type: ignore[no-any-return]
    return (node.name, node.meta["part_of"]) if "part_of" in node.meta else (node.name,)


def _place(node: fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in ("phase", "layer", "position")}


def _empty_part(value: torch.Tensor, placement: Placement, divisor: Divisor) -> torch.Tensor:
    return _empty(local_shape(tuple(value.shape), placement, divisor), value.dtype)


@lru_cache(maxsize=2**12)
def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without values; nodes whose results are alike share it."""
    return torch.empty(shape, dtype=dtype, device="meta")

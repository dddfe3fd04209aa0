"""Segments: the graph that one stage runs in one action (forward, backward, or a half of the backward)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.fx.graph import _BoxedCodeGen

from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.cut import Cut
from trainyard.job.lower.overlap import start_and_wait
from trainyard.job.lower.shard import names_of
from trainyard.job.schedule import Kind
from trainyard.program import spmd
from trainyard.program.nodes import add_placeholder, copy_node
from trainyard.program.program import Input, Program, tensor_of

SlotKind = Literal["param", "buffer", "batch", "rng", "loss_scale", "constant", "total", "value"]


@dataclass(frozen=True)
class Slot:
    """The source of a placeholder: an input of the program by its path, or a value by its name."""

    kind: SlotKind
    name: str


@dataclass(frozen=True, eq=False)
class Segment:
    """One graph.

    Attributes
    ----------
    graph : a placeholder for each of the ``inputs``.
    inputs : what feeds each placeholder.
    outputs : names of the values it returns.
    results : outputs of the whole program among them, as pairs of a value's name and ``loss:loss`` or
        ``buffer:<path>``; one value may be several results.
    """

    stage: int
    kind: Kind
    graph: fx.Graph
    inputs: tuple[Slot, ...]
    outputs: tuple[str, ...]
    results: tuple[tuple[str, str], ...]

    @property
    def values_taken(self) -> tuple[Slot, ...]:
        """Values that other segments made."""
        return tuple(slot for slot in self.inputs if slot.kind == "value")

    @cached_property
    def graph_module(self) -> fx.GraphModule:
        """The graph as something that takes one list of the inputs, and empties it, so that each is freed after use."""
        self.graph.set_codegen(_BoxedCodeGen())
        return fx.GraphModule(nn.Module(), self.graph)


class SegmentWriter:
    """Copies ops of a program into one segment's graph, pulling in what they need."""

    def __init__(
        self,
        program: Program,
        cut: Cut,
        stage: int,
        kind: Kind,
        recompute: frozenset[str],
        gathered: Iterable[Bucket],
        known: SegmentWriter | None = None,
        overlap: bool = True,
    ) -> None:
        self.program, self.cut, self.stage, self.kind = program, cut, stage, kind
        self.recompute, self.overlap = recompute, overlap
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.slots: dict[fx.Node, Slot] = {}
        self.taken: dict[fx.Node, None] = {}
        self.entries = {program.nodes[i.node]: i for i in program.inputs}
        self.written = {o.path for o in program.outputs if o.kind == "buffer"}
        self.gathered = {path: bucket for bucket in gathered for path in bucket.paths}
        self.known = known
        self.emitted: dict[fx.Node, None] = {}
        self.gathers: dict[Bucket, fx.Node] = {}

    def emit(self, node: fx.Node) -> fx.Node:
        """Copy one op; its arguments are taken from the segment, recomputed, or become inputs."""
        # A chain that is made again may be longer than Python's stack: its ops wait here for those before them.
        waiting = [node]
        while waiting:
            last = waiting[-1]
            missing = [n for n in last.all_input_nodes if n not in self.copies and self._is_made_here(n)]
            waiting += reversed(missing)
            if not missing:
                waiting.pop()
                self._copy(last, again=last is not node)
        return self.copies[node]

    def _copy(self, node: fx.Node, again: bool) -> None:
        if node in self.copies:
            return
        copy = copy_node(self.graph, node, self.argument)
        if again:
            copy.meta = {**copy.meta, "recomputed": node not in self.cut.free}
        self.copies[node] = copy
        self.emitted[node] = None

    def argument(self, node: fx.Node) -> fx.Node:
        """A node's copy in this segment: made in it, recomputed, or an input."""
        if node not in self.copies and self._is_made_here(node):
            copy = self.emit(node)
            copy.meta = {**copy.meta, "recomputed": node not in self.cut.free}
        if node in self.copies:
            return self.copies[node]
        entry = self.entries.get(node)
        if entry is not None and entry.kind == "value":
            return self._input(node, Slot("value", entry.path))
        if entry is not None and entry.path in self.gathered:
            return self._gathered_param(node, entry.path)
        if entry is not None and not self._is_old(entry):
            return self._input(node, Slot(entry.kind, entry.path))
        self.taken[node] = None
        return self._input(node, Slot("value", node.name))

    def _is_old(self, entry: Input) -> bool:
        """Return whether a buffer may have changed since this microbatch's forward pass, so its old value is kept."""
        return entry.kind == "buffer" and entry.path in self.written and self.kind != "F"

    def _is_made_here(self, node: fx.Node) -> bool:
        """Return whether an argument is computed in this segment, even if another one computed it too."""
        entry = self.entries.get(node)
        if entry is not None and not self._is_old(entry):
            return False
        return node in self.cut.free or (self.kind != "F" and self._is_recomputed(node))

    def _is_recomputed(self, node: fx.Node) -> bool:
        if node not in self.cut.stage_of or node.meta["phase"] != "forward":
            return False
        if self.known is not None and node in self.known.emitted:
            return False
        return is_made_again(node, self.program, self.cut, self.recompute)

    def _input(self, node: fx.Node, slot: Slot) -> fx.Node:
        # All placeholders stand before all ops.
        first = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
        with self.graph.inserting_before(first):
            copy = add_placeholder(self.graph, node.name)
        copy.meta = dict(node.meta)
        self.copies[node] = copy
        self.slots[copy] = slot
        return copy

    def _gathered_param(self, node: fx.Node, path: str) -> fx.Node:
        bucket = self.gathered[path]
        if bucket not in self.gathers:
            meta = {"phase": "backward" if self.kind != "F" else "forward", "layer": "", "val": None}
            gather = self.graph.call_function(spmd.gather_params, (bucket.name,))
            gather.meta = dict(meta)
            self.gathers[bucket] = gather
        copy = self.graph.call_function(operator.getitem, (self.gathers[bucket], bucket.paths.index(path)))
        copy.meta = dict(node.meta)
        self.copies[node] = copy
        return copy

    def accumulate(self, bucket: Bucket, grads: Mapping[str, fx.Node]) -> None:
        """Hand the gradients of a bucket over, in the order of its parameters; zeros where this stage has none."""
        terms = [self.argument(grads[p]) if p in grads else self._zeros(p) for p in bucket.paths]
        node = self.graph.call_function(spmd.accumulate_grads, (bucket.name, terms))
        node.meta = {"phase": "backward", "layer": "", "val": None}

    def _zeros(self, path: str) -> fx.Node:
        value = tensor_of(self.program.nodes[self.program.input_of(path).node])
        kwargs: dict[str, Any] = {"dtype": value.dtype, "device": torch.device("cpu")}
        node = self.graph.call_function(torch.ops.aten.full.default, (list(value.shape), 0.0), kwargs)
        node.meta = {"phase": "backward", "layer": "", "val": value}
        return node

    def finish(self, outputs: Iterable[fx.Node], results: Sequence[tuple[fx.Node, str]]) -> Segment:
        """Close the graph with the values that leave it, and name the program's results among them."""
        kept = list(dict.fromkeys(outputs))
        self.graph.output(tuple(self.copies[n] for n in kept))
        start_and_wait(self.graph, self.overlap)
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        slots = tuple(self.slots[n] for n in placeholders)
        named = tuple((node.name, result) for node, result in results)
        return Segment(self.stage, self.kind, self.graph, slots, tuple(n.name for n in kept), named)


def is_made_again(node: fx.Node, program: Program, parts: Cut, recompute: frozenset[str]) -> bool:
    """Return whether a backward pass recomputes the results of a forward op instead of finding them in memory.

    Parameters
    ----------
    node : of the forward pass, and not one that is free.
    recompute : names that the plan says; what sharding made of such a tensor goes with it.
    """
    source = program.nodes.get(names_of(node)[0]) if "moved_from" in node.meta else None
    if source in parts.arriving:
        return False
    if not recompute.isdisjoint(names_of(node)):
        return True
    # An input in another placement: the input is there in the backward pass, too.
    is_moved_input = source is not None and (source.op == "placeholder" or source in parts.free)
    # A tuple cannot be kept; its parts are, or the op runs again.
    return is_moved_input or isinstance(node.meta["val"], tuple | list)

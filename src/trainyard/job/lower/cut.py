"""Cutting: which pipeline stage every op belongs to, and what each stage adds to each gradient.

Then each stage is a program of its own (`stage_programs`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch
from torch import fx

from trainyard.job.plan import PlanError
from trainyard.program import spmd
from trainyard.program.addresses import address
from trainyard.program.nodes import add_placeholder, copy_node
from trainyard.program.program import Input, Output, Program, output_args

aten = torch.ops.aten

VIEWS = frozenset(
    {
        aten.view.default,
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unbind.int,
    }
)
"""Ops whose result shares the memory of their first operand."""


@dataclass(frozen=True)
class Cut:
    """A program cut into stages.

    Attributes
    ----------
    stage_of : stage of every op; placeholders belong to none.
    contributions : per gradient output path, the node by which each stage contributes to it. A parameter that
        several stages use (tied embeddings) has one term in each that has a term of its own.
    free : nodes that any stage can make for itself from parameters and constants at no cost.
    live : ops that some stage runs; not those that are free or sum the contributions of several stages.
    arriving : of the program of one stage: inputs that other stages compute.
    """

    stage_of: dict[fx.Node, int]
    contributions: dict[str, dict[int, fx.Node]]
    free: frozenset[fx.Node]
    live: frozenset[fx.Node]
    arriving: frozenset[fx.Node] = frozenset()

    def leaves(self, node: fx.Node) -> bool:
        """Return whether an op of another stage uses the result of an op."""
        return any(u in self.live and self.stage_of[u] != self.stage_of[node] for u in node.users)

    def users(self, node: fx.Node) -> set[fx.Node]:
        """Ops that use a tensor, directly or through views that every stage makes for itself."""
        found: set[fx.Node] = set()
        for user in node.users:
            if user in self.free:
                found |= self.users(user)
            elif user in self.live:
                found.add(user)
        return found

    def stages_using(self, node: fx.Node) -> set[int]:
        """Stages of the ops that use a tensor."""
        return {self.stage_of[u] for u in self.users(node)}


def cut(program: Program, stage_starts: tuple[str, ...]) -> Cut:
    """Assign every op to a stage.

    Parameters
    ----------
    stage_starts : names of the first forward op of each stage after the first.

    Raises
    ------
    PlanError
        If the starts are not in program order.
    """
    bounds = _bounds(program, stage_starts)
    arriving = frozenset(program.nodes[i.node] for i in program.inputs if i.kind == "value")
    free = _free_nodes(program, arriving)
    stage_of: dict[fx.Node, int] = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        stage = sum(node.meta["position"] >= b for b in bounds)
        if node.target is operator.getitem:
            # A tuple is taken apart where it is made: only tensors travel.
            stage = stage_of[node.args[0]]
        elif node.meta["phase"] == "backward":
            # Gradients flow down the pipeline: no op can be above one that feeds it.
            before = [a for a in node.all_input_nodes if a in stage_of and a.meta["phase"] == "backward"]
            stage = min([stage, *(stage_of[a] for a in before)])
        stage_of[node] = stage
    contributions = _contributions(program, stage_of)
    kept = [n for terms in contributions.values() for n in terms.values()]
    kept += [
        n
        for output, n in zip(program.outputs, output_args(program.graph), strict=True)
        if n is not None and output.kind != "grad"
    ]
    live = frozenset(n for n in ancestors(kept) if n in stage_of and n not in free)
    return Cut(stage_of, contributions, free, live, arriving)


def ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are computed from."""
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _bounds(program: Program, stage_starts: tuple[str, ...]) -> list[int]:
    starts = [program.nodes[name] for name in stage_starts]
    bounds = [node.meta["position"] for node in starts]
    if bounds != sorted(set(bounds)):
        raise PlanError(f"stage starts {', '.join(map(address, starts))} are not in program order")
    return bounds


def _free_nodes(program: Program, arriving: frozenset[fx.Node]) -> frozenset[fx.Node]:
    free: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        made_freely = node.target in VIEWS or node.target is operator.getitem
        constant = node.target is aten.full.default or node.target is spmd.axis_offset
        known = all(a in free or (a.op == "placeholder" and a not in arriving) for a in node.all_input_nodes)
        if known and (made_freely or constant or spmd.is_scalar(node)):
            free.add(node)
    return frozenset(free)


def _contributions(program: Program, stage_of: dict[fx.Node, int]) -> dict[str, dict[int, fx.Node]]:
    found: dict[str, dict[int, fx.Node]] = {}
    for output, node in zip(program.outputs, output_args(program.graph), strict=True):
        if output.kind == "grad" and node is not None:
            terms = _terms_by_stage(node, stage_of)
            if len({stage_of.get(t) for t in terms}) < len(terms):
                # Where a stage has two terms the sum stays whole, and the terms of other stages are sent to it.
                terms = [node]
            found[output.path] = {stage_of.get(t, 0): t for t in terms}
    return found


def _terms_by_stage(node: fx.Node, stage_of: dict[fx.Node, int]) -> list[fx.Node]:
    """A gradient that sums terms of several stages is one term per stage."""
    terms = [a for a in node.all_input_nodes if a in stage_of]
    if node.target is aten.add.Tensor and len(terms) == 2 and len({stage_of[t] for t in terms}) == 2:
        return [found for term in terms for found in _terms_by_stage(term, stage_of)]
    return [node]


def param_stages(program: Program, parts: Cut) -> dict[str, tuple[int, ...]]:
    """The stages that use or train each parameter, by its path."""
    found = {}
    for entry in program.params:
        using = parts.stages_using(program.nodes[entry.node]) | set(parts.contributions.get(entry.path, ()))
        found[entry.path] = tuple(sorted(using))
    return found


def stage_programs(program: Program, parts: Cut, num_stages: int) -> tuple[Program, ...]:
    """Every stage as a program of its own.

    What arrives from other stages is an input of it, and what leaves an output, both by the op's address.

    Raises
    ------
    PlanError
        If a buffer is written in one stage and used in another.
    """
    if num_stages == 1:
        return (program,)
    ops: list[list[fx.Node]] = [[] for _ in range(num_stages)]
    outputs: list[list[tuple[Output, fx.Node]]] = [[] for _ in range(num_stages)]
    for output, node in zip(program.outputs, output_args(program.graph), strict=True):
        if output.kind == "grad":
            for stage, term in parts.contributions.get(output.path, {}).items():
                outputs[stage].append((output, term))
        elif node is not None:
            outputs[_home(program, parts, output, node)].append((output, node))
    for node in program.graph.nodes:
        if node in parts.live:
            ops[parts.stage_of[node]].append(node)
            if parts.leaves(node):
                outputs[parts.stage_of[node]].append((Output("value", address(node)), node))
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    return tuple(
        _stage_program(program, parts, own, results, order) for own, results in zip(ops, outputs, strict=True)
    )


def _home(program: Program, parts: Cut, output: Output, node: fx.Node) -> int:
    """Return the stage that reports an output: the one that computes it.

    An output that is an input, or a view of one, is reported where the parameter is kept or the buffer used.
    """
    using: set[int] = set()
    if output.kind == "buffer":
        using = parts.stages_using(program.nodes[program.input_of(output.path).node])
    if node in parts.live:
        home = parts.stage_of[node]
    else:
        stages = param_stages(program, parts)
        sources = ancestors([node])
        kept = [
            stages[i.path][0] for i in program.params if program.nodes[i.node] in sources and stages[i.path]
        ]
        home = min(kept or using or {0})
    if len(using | {home}) > 1:
        raise PlanError(
            f"buffer {output.path!r} is written in stage {home} and used in stages {sorted(using)}, which would "
            "see different values; start stages so that one of them has all uses of it"
        )
    return home


def _stage_program(
    program: Program,
    parts: Cut,
    ops: list[fx.Node],
    outputs: list[tuple[Output, fx.Node]],
    order: dict[fx.Node, int],
) -> Program:
    inputs = {program.nodes[i.node]: i for i in program.inputs}
    # The rows of the batch say how random numbers are drawn, also where nothing else is done with them.
    needed = {node for node, entry in inputs.items() if entry.kind == "batch"} | set(ops)
    stack = [a for op in ops for a in op.all_input_nodes] + [node for _, node in outputs]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes if node in parts.free else ()
    own = {*ops, *parts.free}
    given = sorted(needed - own, key=order.__getitem__)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in given:
        copies[node] = add_placeholder(graph, node.name)
        copies[node].meta = dict(node.meta)
    for node in sorted(needed & own, key=order.__getitem__):
        copies[node] = copy_node(graph, node, copies.__getitem__)
    graph.output(tuple(copies[node] for _, node in outputs))
    entries = tuple(
        replace(inputs[node], node=copies[node].name)
        if node in inputs
        else Input(copies[node].name, "value", address(node))
        for node in given
    )
    return replace(program, graph=graph, inputs=entries, outputs=tuple(output for output, _ in outputs))

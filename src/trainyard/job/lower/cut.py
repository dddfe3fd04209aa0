"""Cutting: which pipeline stage every op belongs to, and what each stage adds to each gradient."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx

from trainyard.job.plan import PlanError
from trainyard.program import spmd
from trainyard.program.addresses import address
from trainyard.program.program import Program, output_args

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
    """

    stage_of: dict[fx.Node, int]
    contributions: dict[str, dict[int, fx.Node]]
    free: frozenset[fx.Node]
    live: frozenset[fx.Node]

    def leaves(self, node: fx.Node, stage: int) -> bool:
        """Whether a stage's value is used by an op of another stage."""
        return any(u in self.live and self.stage_of[u] != stage for u in node.users)


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
    free = _free_nodes(program)
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
    return Cut(stage_of, contributions, free, live)


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


def _free_nodes(program: Program) -> frozenset[fx.Node]:
    free: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        made_freely = node.target in VIEWS or node.target is operator.getitem
        constant = node.target is aten.full.default or node.target is spmd.axis_offset
        known = all(a.op == "placeholder" or a in free for a in node.all_input_nodes)
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

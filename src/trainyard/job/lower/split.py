"""Splitting: the program of one microbatch, such that the microbatches add up to the whole batch exactly.

The microbatch axis is an axis as any other, whose ranks run one after the other: what the index algebra knows of it says
whether rows can be trained apart. Sums over rows add up. A sum that no parameter reaches, such as the number of tokens
that count in the loss, is needed whole by every microbatch: it is computed of the whole batch before the first one. Where
parameters reach what has to be exchanged, rows depend on each other, and the batch cannot be split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx

from trainyard.errors import TrainyardError
from trainyard.job.lower.cut import ancestors
from trainyard.job.lower.shard import MovedOrderError, Sharded, complete, emit
from trainyard.job.plan import MICROBATCH
from trainyard.program import spmd
from trainyard.program.addresses import give_addresses
from trainyard.program.algebra.rules import has_rule, tensor_args
from trainyard.program.decompose import AS_SUMS, expand
from trainyard.program.nodes import add_op, add_placeholder, copy_node, remove_dead
from trainyard.program.orders import without_orders
from trainyard.program.placement import PARTIAL, Partial, Placement, Shard
from trainyard.program.program import Input, Output, Program, output_args
from trainyard.program.propagate import Assignment, Axis

__all__ = ["CoupledRowsError", "split"]


class CoupledRowsError(TrainyardError, ValueError):
    """The rows of the batch depend on each other, so microbatches would train something else; says where."""


def split(program: Program, num_microbatches: int) -> Program:
    """The program of one of equal microbatches. Its losses, metrics and gradients are terms of the batch's.

    Parameters
    ----------
    program : of the whole batch.
    num_microbatches : divides the rows of the batch.

    Raises
    ------
    CoupledRowsError
        If the terms of the microbatches do not add up to what the program computes.
    """
    for output in program.outputs:
        if output.kind == "buffer":
            raise CoupledRowsError(f"a step writes the buffer {output.path!r}, once for the whole batch")
    wanted: dict[str, Placement] = {
        i.path: Shard(0) for i in program.inputs if i.kind == "batch" and not i.whole
    }
    wanted |= {f"grad:{o.path}": PARTIAL for o in program.outputs if o.kind == "grad"}
    axis = Axis(MICROBATCH, num_microbatches, sequential=True)
    try:
        whole, local = _split(program, axis, wanted)
    except MovedOrderError:
        whole, local = _split(replace(program, graph=without_orders(program.graph)), axis, wanted)
    exchanged = _exchanged(local)
    rows = program.num_rows // num_microbatches
    if not exchanged:
        return replace(local, num_rows=rows)
    inputs = _take_totals(local, whole, exchanged)
    return replace(
        local, inputs=(*local.inputs, *inputs), num_rows=rows, totals=_totals(whole, [i.path for i in inputs])
    )


def _split(program: Program, axis: Axis, wanted: Mapping[str, Placement]) -> tuple[Program, Program]:
    """The program that is cut, and that of a part."""
    assignment = _complete(program, axis, wanted)
    return assignment.program, _summed(emit(assignment, wanted))


def _complete(program: Program, axis: Axis, wanted: Mapping[str, Placement]) -> Assignment:
    """Decide how every op runs; means over the rows, and numbers added to sums over them, are written as sums."""
    assignment = complete(program, axis, wanted)
    while nodes := {n.name for n in assignment.choice if _is_written_as_sum(n, assignment)}:
        whole = assignment.program
        whole = expand(whole, {n for n in whole.graph.nodes if n.name in nodes})
        for node in whole.graph.nodes:
            if node.meta.get("part_of") in nodes:
                # Not a statistic that is needed whole at once: its terms may be added up later.
                del node.meta["part_of"]
        assignment = complete(whole, axis, wanted)
    return assignment


def _is_written_as_sum(node: fx.Node, assignment: Assignment) -> bool:
    if node.target not in AS_SUMS:
        return False
    sources = tensor_args(node)
    is_over_rows = len(sources) == 1 and isinstance(assignment.made[sources[0]][0], Partial)
    return assignment.made[node][0] == Partial("avg") or is_over_rows


def _summed(sharded: Sharded) -> Program:
    """The program with every loss and metric as a term of a sum: what all microbatches compute alike counts once."""
    program, graph = sharded.program, sharded.program.graph
    results = list(output_args(graph))
    end = next(iter(reversed(graph.nodes)))
    for i, (output, placement) in enumerate(zip(program.outputs, sharded.outputs, strict=True)):
        node = results[i]
        if output.kind in ("loss", "metric") and node is not None and not isinstance(placement, Partial):
            place = {key: node.meta[key] for key in ("phase", "layer", "position")}
            with graph.inserting_before(end):
                index = graph.call_function(spmd.axis_offset, (MICROBATCH, 1))
                results[i] = add_op(graph, spmd.keep_on_first, (node, index), {})
            index.meta = {**place, "val": None}
            results[i].meta = {**place, "val": node.meta["val"]}  # type: ignore[union-attr]
    end.args = (tuple(results),)
    give_addresses(graph)
    return program


def _exchanged(program: Program) -> dict[fx.Node, str]:
    """The collectives over microbatches whose results no parameter reaches, with the names of what is made whole.

    Raises
    ------
    CoupledRowsError
        If there is another one.
    """
    params = {i.node for i in program.params}
    reached: set[fx.Node] = set()
    found: dict[fx.Node, str] = {}
    for node in program.graph.nodes:
        if node.name in params or any(a in reached for a in node.all_input_nodes):
            reached.add(node)
        if node.target not in spmd.COLLECTIVES or node.args[1] != MICROBATCH:
            continue
        if node in reached or node.target not in (spmd.all_reduce, spmd.all_gather):
            raise CoupledRowsError(_why(node, program))
        found[node] = node.meta["moved_from"][0]
    return found


def _why(node: fx.Node, program: Program) -> str:
    """Say what needs rows of other microbatches."""
    made = list(zip(output_args(program.graph), program.outputs, strict=True))
    reached = [output for result, output in made if result is not None and node in ancestors([result])]
    if reached and all(output.kind == "metric" for output in reached):
        return f"the metric {reached[0].path!r} is no sum or mean over rows"
    users = [u for u in node.users if u.op == "call_function"] or [node]
    user = next(filter(_is_unknown, users), users[0])
    where = f"layer {user.meta['layer']!r}" if user.meta["layer"] else _function(user)
    phase = "" if user.meta["phase"] == "forward" else "the backward pass of "
    if _is_unknown(user):
        return (
            f"in {phase}{where}, nothing says how the rows of the op {_op_name(user)} can be computed apart"
        )
    needed = "a sum over all rows is" if node.target is spmd.all_reduce else "all rows at once are"
    return f"in {phase}{where}, {needed} needed from the op {_op_name(user)} on"


def _function(node: fx.Node) -> str:
    """Return the function that calls an op outside of layers."""
    name = node.meta.get("function")
    return f"{name}, a part of the loss" if name else "the loss"


def _is_unknown(node: fx.Node) -> bool:
    """Return whether an op is run whole only because the index algebra does not describe it."""
    return isinstance(node.target, torch._ops.OpOverload) and not has_rule(node.target)


def _op_name(node: fx.Node) -> str:
    target = node.meta.get("part_of") or getattr(node.target, "overloadpacket", None) or node.target
    return str(getattr(target, "__name__", target)).removeprefix("aten.")


def _take_totals(local: Program, whole: Program, exchanged: Mapping[fx.Node, str]) -> list[Input]:
    """Replace collectives by inputs, and leave out what only they needed."""
    graph = local.graph
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    made: dict[str, fx.Node] = {}
    for node, name in exchanged.items():
        if name not in made:
            with graph.inserting_after(last):
                last = made[name] = add_placeholder(graph, f"total_{name}")
            last.meta = {**whole.nodes[name].meta, "phase": "forward"}
        node.replace_all_uses_with(made[name])
        graph.erase_node(node)
    remove_dead(graph)
    return [Input(node.name, "total", name) for name, node in made.items()]


def _totals(whole: Program, names: list[str]) -> Program:
    """The part of a program that computes some of its values."""
    sources = [whole.nodes[name] for name in names]
    needed = ancestors(sources)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in whole.graph.nodes:
        if node in needed:
            copies[node] = copy_node(graph, node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in sources))
    inputs = tuple(i for i in whole.inputs if whole.nodes[i.node] in needed)
    outputs = tuple(Output("total", name) for name in names)
    return replace(whole, graph=graph, inputs=inputs, outputs=outputs)

"""All ranks of a sharded program in one process, op by op: what they compute together, put together again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from trainyard.job.lower.shard import Sharded
from trainyard.program import spmd
from trainyard.program.placement import Partial, Placement, Shard
from trainyard.program.program import Program, output_args

_REDUCE: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "sum": lambda parts: torch.stack(list(parts)).sum(0),
    "avg": lambda parts: torch.stack(list(parts)).mean(0),
    "max": lambda parts: reduce(torch.maximum, parts),
    "min": lambda parts: reduce(torch.minimum, parts),
}


def whole_values(program: Program, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a program on one device, by kind and path."""
    values = [inputs[i.path] for i in program.inputs]
    return _named(program, program.graph_module(*values))


def joined_values(sharded: Sharded, num_ranks: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a program along one axis, put together from those of all ranks."""
    program, whole = sharded.program, sharded.assignment
    made = {i.path: whole.made[whole.program.nodes[i.node]][0] for i in program.inputs}
    given = [
        [part_of(inputs[i.path], made[i.path], rank, num_ranks) for i in program.inputs]
        for rank in range(num_ranks)
    ]
    by_rank = [_named(program, results) for results in _run(program.graph, given)]
    placements = {f"{o.kind}:{o.path}": p for o, p in zip(program.outputs, sharded.outputs, strict=True)}
    return {name: put_together([r[name] for r in by_rank], placements[name]) for name in by_rank[0]}


def part_of(value: Tensor, placement: Placement, rank: int, num_ranks: int) -> Tensor:
    """A rank's part of an input."""
    assert not isinstance(placement, Partial)
    if isinstance(placement, Shard):
        return spmd.take_part(value, rank, placement.dim, placement.blocks, num_ranks)
    return value


def put_together(parts: list[Tensor], placement: Placement) -> Tensor:
    """What the parts of all ranks are parts of; ranks that hold the same must hold the same."""
    if isinstance(placement, Partial):
        return _REDUCE[placement.reduction](parts)
    if isinstance(placement, Shard):
        cut = [p.unflatten(placement.dim, (placement.blocks, -1)) for p in parts]
        return torch.cat(cut, placement.dim + 1).flatten(placement.dim, placement.dim + 1)
    for other in parts[1:]:
        torch.testing.assert_close(other, parts[0])
    return parts[0]


def _run(graph: fx.Graph, given: list[list[Tensor]]) -> list[list[Any]]:
    """Results of every rank."""
    ranks = range(len(given))
    rest = [iter(values) for values in given]
    known: dict[fx.Node, list[Any]] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = [next(values) for values in rest]
        elif node.target is spmd.axis_offset:
            known[node] = [rank * node.args[1] for rank in ranks]
        elif node.target in spmd.COLLECTIVES:
            known[node] = _together(node, known[node.args[0]])
        elif node.op == "call_function":
            known[node] = [_call(node, known, rank) for rank in ranks]
    return [[None if n is None else known[n][rank] for n in output_args(graph)] for rank in ranks]


def _call(node: fx.Node, known: Mapping[fx.Node, list[Any]], rank: int) -> Any:
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: known[n][rank], (node.args, node.kwargs))
    if node.target is operator.getitem:
        return args[0][args[1]]
    return node.target(*args, **kwargs)


def _together(node: fx.Node, parts: list[Tensor]) -> list[Tensor]:
    num_ranks, rest = len(parts), list(node.args[2:])
    if node.target is spmd.all_reduce:
        return [_REDUCE[rest[0]](parts)] * num_ranks
    if node.target is spmd.all_gather:
        return [put_together(parts, Shard(*rest))] * num_ranks
    if node.target is spmd.reduce_scatter:
        whole, to = _REDUCE["sum"](parts), Shard(*rest)
    else:
        whole, to = put_together(parts, Shard(*rest[:2])), Shard(*rest[2:])
    return [part_of(whole, to, rank, num_ranks) for rank in range(num_ranks)]


def _named(program: Program, results: Sequence[Any]) -> dict[str, Tensor]:
    found = zip(program.outputs, results, strict=True)
    return {f"{o.kind}:{o.path}": r for o, r in found if r is not None}

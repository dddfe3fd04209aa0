"""Probing: what one block of a model costs under a sharding, from the graph that would run.

A model of many equal blocks is captured with three of them; the second stands for all between the first, which follows
what is no block, and the last, which the loss follows. So a model of any depth is probed in the time of a shallow one,
and the whole model is captured only for the plan that is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from trainyard.job.footprint import SavedValues, node_bytes, saved_values, storage_of
from trainyard.job.lower.cut import Cut, cut
from trainyard.program import spmd
from trainyard.program.blocks import block_path
from trainyard.program.program import Program

NodeSeconds = Callable[[fx.Node], float]
"""Seconds of one node of a lowered graph on one rank; a collective's include the wait for its peers."""


@dataclass(frozen=True)
class BlockCost:
    """One block on one rank, for one microbatch.

    Attributes
    ----------
    path : of the block.
    forward_s, backward_s : of its ops, tensor-parallel communication and recomputation included.
    recompute_s : the part of ``backward_s`` that runs the forward pass again.
    communication_s : the part of both that is tensor-parallel communication.
    kept_bytes : what the forward pass keeps for the backward pass.
    output_bytes : what the block hands to the next.
    working_bytes : the largest sum of what one op of its backward pass reads and writes, and what is recomputed.
    param_elements : of this rank's part of its parameters; ``trained_elements`` of those that are trained.
    """

    path: str
    forward_s: float
    backward_s: float
    recompute_s: float
    communication_s: float
    kept_bytes: int
    output_bytes: int
    working_bytes: int
    param_elements: int
    trained_elements: int


def probe(local: Program, recompute: frozenset[str], seconds: NodeSeconds) -> tuple[BlockCost, ...]:
    """Cost of every block of one rank's program, in program order.

    Parameters
    ----------
    local : one rank's program (sharded).
    recompute : forward nodes that the backward pass computes again.
    """
    parts = cut(local, ())
    order = _block_of(local, parts)
    paths = list(dict.fromkeys(order.values()))
    saved = saved_values(local, parts, recompute)
    params = _params_by_block(local, order)
    return tuple(_block(path, order, saved, params.get(path, (0, 0)), seconds) for path in paths)


def between(low: BlockCost, low_rows: int, high: BlockCost, high_rows: int, rows: int) -> BlockCost:
    """The cost of a block at some rows from those at two others: a line through both, as long as it is not negative.

    Seconds and bytes of an op grow by as much with each row as long as the same rate limits it.
    """
    share = (rows - low_rows) / (high_rows - low_rows)

    def at(name: str) -> float:
        first, last = float(getattr(low, name)), float(getattr(high, name))
        return max(0.0, first + (last - first) * share)

    return BlockCost(
        low.path,
        at("forward_s"),
        at("backward_s"),
        at("recompute_s"),
        at("communication_s"),
        round(at("kept_bytes")),
        round(at("output_bytes")),
        round(at("working_bytes")),
        low.param_elements,
        low.trained_elements,
    )


def _block_of(local: Program, parts: Cut) -> dict[fx.Node, str]:
    """The block of every op that runs; ops outside modules belong to the block before them."""
    found: dict[fx.Node, str] = {}
    by_position: dict[int, str] = {}
    current = ""
    for node in local.graph.nodes:
        if node not in parts.live:
            continue
        if node.meta["phase"] == "forward":
            current = block_path(node.meta["layer"]) or current
            by_position.setdefault(node.meta["position"], current)
            found[node] = current
        else:
            found[node] = by_position.get(node.meta["position"], block_path(node.meta["layer"]) or current)
    return found


def _params_by_block(local: Program, order: dict[fx.Node, str]) -> dict[str, tuple[int, int]]:
    """Elements of each block's parameters, and of those of them that are trained."""
    found: dict[str, tuple[int, int]] = {}
    for entry in local.params:
        node = local.nodes[entry.node]
        path = block_path(entry.path)
        known = path if path in order.values() else next((order[u] for u in node.users if u in order), path)
        total, trained = found.get(known, (0, 0))
        size = node.meta["val"].numel()
        found[known] = (total + size, trained + size * entry.trainable)
    return found


def _block(
    path: str,
    order: dict[fx.Node, str],
    saved: SavedValues,
    elements: tuple[int, int],
    seconds: NodeSeconds,
) -> BlockCost:
    ops = [n for n, p in order.items() if p == path]
    forward = [n for n in ops if n.meta["phase"] == "forward"]
    backward = [n for n in ops if n.meta["phase"] == "backward"]
    repeated = [n for n in forward if n in saved.again]
    leaving = [
        n
        for n in forward
        if any(order.get(u, path) != path and u.meta["phase"] == "forward" for u in n.users)
    ]
    recompute_s = sum(map(seconds, repeated))
    moves = [n for n in (*ops, *repeated) if n.target in spmd.COLLECTIVES]
    return BlockCost(
        path,
        sum(map(seconds, forward)),
        sum(map(seconds, backward)) + recompute_s,
        recompute_s,
        sum(map(seconds, moves)),
        sum(node_bytes(n) for n in saved.kept if order.get(n) == path),
        sum(node_bytes(n) for n in {storage_of(n) for n in leaving}),
        _working_bytes(backward) + sum(node_bytes(n) for n in {storage_of(n) for n in repeated}),
        *elements,
    )


def _working_bytes(nodes: Iterable[fx.Node]) -> int:
    return max((sum(node_bytes(a) for a in n.all_input_nodes) + node_bytes(n) for n in nodes), default=0)

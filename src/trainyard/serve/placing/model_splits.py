"""Splits of a forward pass over devices: into stages of a pipeline, each computed by one device or by shards.

Every split is a plan of level 1, which cuts the captured graph by it; seconds and weights of the stages are those of the
plan. The seconds of ops follow from the description of the device, those of what devices send each other from the links
between them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import Roofline, collective_of
from trainyard.hardware.cluster import Cluster
from trainyard.job.lower.cut import cut
from trainyard.job.plan import Plan
from trainyard.program.addresses import address
from trainyard.program.placement import Shard
from trainyard.program.program import Program, output_args, size_bytes, tensor_of
from trainyard.serve.costs.split_plan import split_plan, tensor_shards, with_stages
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.alpaserve.problem import ParallelConfig

__all__ = ["ModelSplit", "model_splits", "weight_bytes"]

Floats = NDArray[np.float64]

_MOST_DEVICES = 8


class ModelSplit(NamedTuple):
    """One way to split a model.

    Attributes
    ----------
    shape : stages, and shards of each.
    stage_s : seconds of every stage for one request.
    stage_bytes : weights that one device of every stage has. What several stages use is in each of them, what no op
        uses in the first.
    plan : with which op each stage begins, and how its weights lie on its devices.
    """

    shape: ParallelConfig
    stage_s: tuple[float, ...]
    stage_bytes: tuple[float, ...]
    plan: Plan


class _Ops(NamedTuple):
    """The ops of what one device runs, by their place in the program; what sharding adds to an op is a part of it.

    Attributes
    ----------
    done_s : seconds of all ops before each place, and of all, shape ``(places + 1,)``.
    sent_bytes : that are computed before each place and used from there on, shape ``(places + 1,)``.
    starts : addresses of the ops with which a stage may begin; "" where none may, shape ``(places,)``.
    """

    done_s: Floats
    sent_bytes: Floats
    starts: tuple[str, ...]


def model_splits(
    program: Program, cluster: Cluster, roofline: Roofline, dtype: str = "bfloat16"
) -> Iterator[ModelSplit]:
    """All splits over powers of two of devices, up to 8; without shards where the model cannot be cut into them.

    Parameters
    ----------
    program : of one request.
    cluster : whose devices are alike.
    roofline : seconds of ops.
    dtype : of the products of the program.
    """
    num_devices, shards = min(cluster.num_devices, _MOST_DEVICES), 1
    while shards <= num_devices:
        try:
            plan = split_plan(program, cluster.name, tensor_parallel=shards, dtype=dtype)
        except ServeError:
            shards *= 2
            continue
        own, gather_bytes = _of_one_device(program, plan)
        collective_s = cache(partial(_collective_s, cluster, tuple(range(shards))))
        seconds = {
            node: roofline(node, cluster.devices[0])
            if (collective := collective_of(node)) is None
            else collective_s(*collective)
            for node in own.graph.nodes
        }
        gather_s = sum(collective_s("all_gather", size) for size in gather_bytes)
        for starts in _pipelines(_ops(program, own, seconds), cluster, shards, num_devices // shards):
            cut_plan = with_stages(plan, starts)
            times, held = _of_stages(own, cut_plan, seconds, cluster)
            times[-1] += gather_s
            yield ModelSplit(ParallelConfig(len(times), shards), tuple(times), tuple(held), cut_plan)
        shards *= 2


def weight_bytes(program: Program) -> float:
    """Parameters and buffers of a program."""
    return float(sum(size_bytes(tensor_of(node)) for node in _weights(program)))


def _weights(program: Program) -> list[fx.Node]:
    return [program.nodes[each.node] for each in program.inputs if each.kind in ("param", "buffer")]


def _of_one_device(program: Program, plan: Plan) -> tuple[Program, list[int]]:
    """Return the program of one device of a stage with all ops, and the bytes of each result that is gathered."""
    shards = plan.num_ranks
    if shards == 1:
        return program, []
    sharded = tensor_shards(program, plan)
    results = zip(sharded.outputs, output_args(sharded.program.graph), strict=True)
    return sharded.program, [
        shards * size_bytes(tensor_of(node))
        for placement, node in results
        if node is not None and isinstance(placement, Shard)
    ]


def _of_stages(
    own: Program, plan: Plan, seconds: Mapping[fx.Node, float], cluster: Cluster
) -> tuple[list[float], list[float]]:
    """Seconds of the stages of a plan, with what each waits for, and weights on one device of each.

    Parameters
    ----------
    own : what one device of a stage with all ops runs.
    seconds : of its ops.
    """
    parts = cut(own, tuple(own.addresses.find(start)[0].name for start in plan.stage_starts))
    took_s, held, arriving = ([0.0] * len(plan.stages) for _ in range(3))
    for node in own.graph.nodes:
        if node in parts.free:
            for stage in parts.stages_using(node):
                took_s[stage] += seconds[node]
        elif node in parts.live:
            home = parts.stage_of[node]
            took_s[home] += seconds[node]
            for stage in {parts.stage_of[user] for user in node.users if user in parts.live} - {home}:
                arriving[stage] += _size_bytes(node)
    for node in _weights(own):
        for stage in parts.stages_using(node) or {0}:
            held[stage] += _size_bytes(node)
    shards = plan.mesh.num_ranks
    for stage in range(1, len(plan.stages)):
        took_s[stage] += float(_send_s(cluster, stage, shards, np.array([arriving[stage]]))[0])
    return took_s, held


def _ops(program: Program, own: Program, seconds: Mapping[fx.Node, float]) -> _Ops:
    """The ops of a program; what every stage makes for itself takes no time here.

    Parameters
    ----------
    own : what one device of a stage with all ops runs.
    seconds : of its ops.
    """
    parts = cut(own, ())
    ops = [node for node in program.graph.nodes if node.op == "call_function"]
    places = {node.meta["position"]: place for place, node in enumerate(ops)}
    took_s, sent = np.zeros(len(ops)), np.zeros(len(ops) + 1)
    may_start = np.array([node.target is not operator.getitem for node in ops], bool)

    def place(node: fx.Node) -> int:
        # A tuple is taken apart in the stage that makes it.
        made = node.args[0] if node.target is operator.getitem else node
        assert isinstance(made, fx.Node)
        return places[made.meta["position"]]

    for node in own.graph.nodes:
        if node not in parts.live:
            continue
        first = place(node)
        last = max((place(user) for user in node.users if user in parts.live), default=first)
        took_s[first] += seconds[node]
        sent[first + 1] += _size_bytes(node)
        sent[last + 1] -= _size_bytes(node)
        if "moved_from" in node.meta:
            # Level 1 leaves it to the next stage to add up or to gather what comes to it as parts.
            may_start[first + 1 : last + 1] = False
    starts = (
        address(node) if may and address(node) in own.addresses.nodes else ""
        for node, may in zip(ops, may_start.tolist(), strict=True)
    )
    return _Ops(np.concatenate([[0.0], took_s.cumsum()]), sent.cumsum(), tuple(starts))


def _size_bytes(node: fx.Node) -> float:
    """Return the bytes of a tensor; a tuple of tensors, which is taken apart where it is made, has none of its own."""
    return float(size_bytes(tensor_of(node))) if isinstance(node.meta.get("val"), torch.Tensor) else 0.0


def _collective_s(cluster: Cluster, ranks: tuple[int, ...], kind: str, num_bytes: int) -> float:
    return collective_cost(cluster, kind, ranks, num_bytes).seconds


def _pipelines(ops: _Ops, cluster: Cluster, shards: int, most: int) -> Iterator[tuple[str, ...]]:
    """Pipelines of powers of two of stages; the slowest stage of each is as fast as can be.

    A stage waits for what the one before it sends.

    Parameters
    ----------
    shards : of every stage.
    most : stages.

    Yields
    ------
    Addresses of the ops with which the stages but the first begin.
    """
    yield ()
    done_s, count = ops.done_s, len(ops.starts)
    may_start = np.array([bool(start) for start in ops.starts])
    slowest_s, cuts = np.where(done_s > 0, done_s, np.inf), []
    for stage in range(1, most):
        send_s = _send_s(cluster, stage, shards, ops.sent_bytes)
        best_s, cut_at = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
        for end in range(1, count + 1):
            own_s = done_s[end] - done_s[:end]
            cost_s = np.maximum(slowest_s[:end], own_s + send_s[:end])
            cost_s[~may_start[:end] | (own_s <= 0)] = np.inf
            cut_at[end] = start = int(cost_s.argmin())
            best_s[end] = cost_s[start]
        slowest_s = best_s
        cuts.append(cut_at)
        if stage + 1 & stage == 0 and np.isfinite(slowest_s[-1]):
            starts = [count]
            for before in reversed(cuts):
                starts.append(int(before[starts[-1]]))
            yield tuple(ops.starts[at] for at in reversed(starts[1:]))


def _send_s(cluster: Cluster, stage: int, shards: int, num_bytes: Floats) -> Floats:
    """Seconds in which a stage gets so many bytes on every device, each from one device of the stage before it."""
    pairs = tuple(((stage - 1) * shards + i, stage * shards + i) for i in range(shards))
    known = {
        size: collective_cost(cluster, "send", pairs[0], size, pairs).seconds
        for size in set(num_bytes.tolist())
    }
    return np.array([known[size] for size in num_bytes.tolist()])

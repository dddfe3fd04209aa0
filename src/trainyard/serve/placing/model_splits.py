"""How a forward pass is split over devices: into stages of a pipeline, each of them computed by one device or by shards.

Level 1 cuts the captured graph into shards. The seconds of ops follow from the description of the device, those of what
devices send each other from the links between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import Roofline, collective_of, is_view
from trainyard.hardware.cluster import Cluster
from trainyard.program.placement import Shard
from trainyard.program.program import Program, output_args, size_bytes, tensor_of, tensors_of
from trainyard.serve.costs.split_plan import split_plan, tensor_shards
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
    shard_bytes : weights that one shard of all stages has.
    """

    shape: ParallelConfig
    stage_s: tuple[float, ...]
    shard_bytes: float


def model_splits(program: Program, cluster: Cluster, roofline: Roofline) -> Iterator[ModelSplit]:
    """All splits over powers of two of devices, up to 8; without shards where the model cannot be cut into them.

    Parameters
    ----------
    program : of one request.
    cluster : whose devices are alike.
    roofline : seconds of ops.
    """
    num_devices, shards = min(cluster.num_devices, _MOST_DEVICES), 1
    while shards <= num_devices:
        try:
            cut, gather_bytes = _cut(program, shards)
        except ServeError:
            cut = None
        if cut is not None:
            collective_s = cache(partial(_collective_s, cluster, tuple(range(shards))))
            seconds = [
                collective_s(*collective)
                if (collective := collective_of(node)) is not None
                else roofline(node, cluster.devices[0])
                for node in cut.graph.nodes
            ]
            seconds[-1] += sum(collective_s("all_gather", size) for size in gather_bytes)
            held = weight_bytes(cut)
            for times in _pipelines(cut, np.array(seconds), cluster, shards, num_devices // shards):
                yield ModelSplit(ParallelConfig(len(times), shards), times, held)
        shards *= 2


def weight_bytes(program: Program) -> float:
    """Parameters and buffers of a program."""
    held = [program.nodes[each.node] for each in program.inputs if each.kind in ("param", "buffer")]
    return float(sum(size_bytes(tensor_of(node)) for node in held))


def _cut(program: Program, shards: int) -> tuple[Program, list[int]]:
    """What each shard computes, and the bytes of those results that are put together at last."""
    if shards == 1:
        return program, []
    sharded = tensor_shards(program, split_plan(program, tensor_parallel=shards))
    results = zip(sharded.outputs, output_args(sharded.program.graph), strict=True)
    return sharded.program, [
        shards * size_bytes(tensor_of(node))
        for placement, node in results
        if node is not None and isinstance(placement, Shard)
    ]


def _collective_s(cluster: Cluster, ranks: tuple[int, ...], kind: str, num_bytes: int) -> float:
    return collective_cost(cluster, kind, ranks, num_bytes).seconds


def _pipelines(
    program: Program, seconds: Floats, cluster: Cluster, shards: int, most: int
) -> Iterator[tuple[float, ...]]:
    """Seconds of stages, for pipelines of powers of two; the slowest stage of each is as fast as can be.

    A stage waits for what the one before it sends.

    Parameters
    ----------
    seconds : of every op, shape ``(ops,)``.
    shards : of every stage.
    most : stages.
    """
    yield (float(seconds.sum()),)
    done_s = np.concatenate([[0.0], seconds.cumsum()])
    sent = _bytes_between(program)
    slowest_s, cuts = done_s.copy(), [np.zeros(len(done_s), np.int64)]
    for stage in range(1, most):
        send_s = _send_s(cluster, stage, shards, sent)
        best_s, cut = np.full(len(done_s), np.inf), np.zeros(len(done_s), np.int64)
        for end in range(1, len(done_s)):
            cost_s = np.maximum(slowest_s[:end], done_s[end] - done_s[:end] + send_s[:end])
            cut[end] = at = int(cost_s.argmin())
            best_s[end] = cost_s[at]
        slowest_s = best_s
        cuts.append(cut)
        count = stage + 1
        if count & stage == 0 and np.isfinite(slowest_s[-1]):
            ends = [len(done_s) - 1]
            for before in reversed(cuts[1:]):
                ends.append(int(before[ends[-1]]))
            ends = [0, *reversed(ends)]
            sends = [0.0, *(float(_send_s(cluster, i, shards, sent)[ends[i]]) for i in range(1, count))]
            yield tuple(float(done_s[b] - done_s[a]) + sends[i] for i, (a, b) in enumerate(pairwise(ends)))


def _send_s(cluster: Cluster, stage: int, shards: int, num_bytes: Floats) -> Floats:
    """Seconds in which a stage gets so many bytes on every device, each from one device of the stage before it."""
    pairs = tuple(((stage - 1) * shards + i, stage * shards + i) for i in range(shards))
    known = {
        size: collective_cost(cluster, "send", pairs[0], size, pairs).seconds
        for size in set(num_bytes.tolist())
    }
    return np.array([known[size] for size in num_bytes.tolist()])


def _bytes_between(program: Program) -> Floats:
    """Bytes that are computed before each place in the graph and used after it, shape ``(ops + 1,)``."""
    nodes = list(program.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    last: dict[fx.Node, int] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            origin = _origin(source)
            last[origin] = max(last.get(origin, 0), place[node])
    steps = np.zeros(len(nodes) + 1)
    for origin, end in last.items():
        if origin.op == "call_function":
            num_bytes = sum(size_bytes(each) for each in tensors_of(origin))
            steps[place[origin] + 1] += num_bytes
            steps[end + 1] -= num_bytes
    return steps.cumsum()


def _origin(node: fx.Node) -> fx.Node:
    """The op whose result a view shows."""
    while node.op == "call_function" and (
        is_view(node) or not isinstance(node.meta.get("val"), torch.Tensor)
    ):
        sources = node.all_input_nodes
        if not sources or not is_view(node):
            break
        node = sources[0]
    return node

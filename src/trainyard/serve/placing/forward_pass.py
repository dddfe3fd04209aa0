"""How long one forward pass of a model takes on a device, by batch, and how it is cut into stages of a pipeline.

Level 1 captures the graph without a gradient; the seconds of its ops follow from the description of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import Roofline, is_view
from trainyard.hardware.cluster import Cluster
from trainyard.job.planning import load_model
from trainyard.program.forward import capture_forward
from trainyard.program.program import Program, size_bytes, tensor_of, tensors_of
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.nexus.profile import BatchingProfile, read_batching_profile

__all__ = ["DTYPES", "ForwardPass", "forward_pass", "measured_pass"]

Floats = NDArray[np.float64]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""In which a forward pass may be computed, by name."""
_CAPTURED = (1, 4, 16, 64)  # requests in a batch; between them seconds lie on a line
_MOST_STAGES = 8


@dataclass(frozen=True)
class ForwardPass:
    """A model that answers a request by one forward pass.

    Attributes
    ----------
    batching : seconds of a batch on one device.
    weight_bytes : of all its weights.
    stage_s : seconds of every stage of a pipeline for one request, by the number of stages.
    """

    batching: BatchingProfile
    weight_bytes: float
    stage_s: Mapping[int, tuple[float, ...]]


@lru_cache(maxsize=64)
def forward_pass(model: str, cluster: Cluster, dtype: str = "bfloat16") -> ForwardPass:
    """A model on the devices of a cluster.

    Parameters
    ----------
    model : its name in the zoo, or a Python file.
    cluster : whose devices are alike.
    dtype : of weights and products, a key of `DTYPES`.

    Raises
    ------
    ServeError
        If ``dtype`` is none of these.
    CaptureError
        If the model cannot be captured.
    """
    if dtype not in DTYPES:
        raise ServeError(f"dtype {dtype!r}; allowed are {', '.join(DTYPES)}")
    cluster.require_known()
    with torch.device("meta"):
        given = load_model(model)
    device, roofline = cluster.devices[0], Roofline()
    programs = {rows: capture_forward(given, rows, DTYPES[dtype]) for rows in _CAPTURED}
    seconds = {
        rows: np.array([roofline(node, device) for node in program.graph.nodes])
        for rows, program in programs.items()
    }
    batches = range(1, _CAPTURED[-1] + 1)
    latency_s = np.interp(batches, _CAPTURED, [seconds[rows].sum() for rows in _CAPTURED])
    one = programs[1]
    weights = sum(
        size_bytes(tensor_of(one.nodes[each.node])) for each in one.inputs if each.kind in ("param", "buffer")
    )
    stages = _stages(one, seconds[1], cluster)
    return ForwardPass(
        BatchingProfile(tuple(batches), tuple(latency_s.tolist())), float(weights), dict(stages)
    )


def measured_pass(path: Path) -> ForwardPass:
    """A model as Nexus measured it, on one device; its memory is that of the smallest batch.

    Raises
    ------
    ServeError
        If the file has no table of batches.
    """
    profile = read_batching_profile(path)
    return ForwardPass(profile, profile.memory_bytes[0], {1: (profile.latency(1),)})


def _stages(program: Program, seconds: Floats, cluster: Cluster) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Seconds of stages, for pipelines of powers of two of devices; the slowest stage of each is as fast as can be.

    A stage waits for what the one before it sends.
    """
    yield 1, (float(seconds.sum()),)
    done_s = np.concatenate([[0.0], seconds.cumsum()])
    sent = _bytes_between(program)
    slowest_s, cuts = done_s.copy(), [np.zeros(len(done_s), np.int64)]
    for stage in range(1, min(cluster.num_devices, _MOST_STAGES)):
        send_s = _send_s(cluster, stage, sent)
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
            sends = [0.0, *(float(_send_s(cluster, i, sent)[ends[i]]) for i in range(1, count))]
            yield (
                count,
                tuple(float(done_s[b] - done_s[a]) + sends[i] for i, (a, b) in enumerate(pairwise(ends))),
            )


def _send_s(cluster: Cluster, stage: int, num_bytes: Floats) -> Floats:
    """Seconds in which a stage gets so many bytes from the one before it."""
    known = {
        size: collective_cost(cluster, "send", (stage - 1, stage), size).seconds
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

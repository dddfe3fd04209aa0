"""How long one forward pass of a model takes on a device, by batch, and split over devices.

Level 1 captures the graph without a gradient; the seconds of its ops follow from the description of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from trainyard.cost.ops import Roofline
from trainyard.hardware.cluster import Cluster
from trainyard.job.plan import Plan
from trainyard.job.planning import load_model
from trainyard.program.forward import capture_forward
from trainyard.serve.errors import ServeError
from trainyard.serve.placing.model_splits import model_splits, weight_bytes
from trainyard.serve.policies.alpaserve.problem import ParallelConfig
from trainyard.serve.policies.nexus.profile import BatchingProfile, read_batching_profile

__all__ = ["DTYPES", "ForwardPass", "forward_pass", "measured_pass"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""In which a forward pass may be computed, by name."""
_CAPTURED = (1, 4, 16, 64)  # requests in a batch; between them seconds lie on a line


@dataclass(frozen=True)
class ForwardPass:
    """A model that answers a request by one forward pass.

    Attributes
    ----------
    batching : seconds of a batch on one device.
    weight_bytes : of all its weights.
    stage_s : seconds of every stage of a pipeline for one request, by stages and shards.
    stage_bytes : weights that one device of every stage has, by stages and shards; equal parts where they are not given.
    plans : which ops each stage has, and how its weights lie, by stages and shards; none where seconds are measured.
    """

    batching: BatchingProfile
    weight_bytes: float
    stage_s: Mapping[ParallelConfig, tuple[float, ...]]
    stage_bytes: Mapping[ParallelConfig, tuple[float, ...]] = field(default_factory=dict)
    plans: Mapping[ParallelConfig, Plan] = field(default_factory=dict)


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
    seconds = [sum(roofline(node, device) for node in program.graph.nodes) for program in programs.values()]
    batches = range(1, _CAPTURED[-1] + 1)
    latency_s = np.interp(batches, _CAPTURED, seconds)
    splits = tuple(model_splits(programs[1], cluster, roofline, dtype))
    return ForwardPass(
        BatchingProfile(tuple(batches), tuple(latency_s.tolist())),
        weight_bytes(programs[1]),
        {each.shape: each.stage_s for each in splits},
        {each.shape: each.stage_bytes for each in splits},
        {each.shape: each.plan for each in splits},
    )


def measured_pass(path: Path) -> ForwardPass:
    """A model as Nexus measured it, on one device; its memory is that of the smallest batch.

    Raises
    ------
    ServeError
        If the file has no table of batches.
    """
    profile = read_batching_profile(path)
    return ForwardPass(profile, profile.memory_bytes[0], {ParallelConfig(1): (profile.latency(1),)})

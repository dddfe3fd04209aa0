"""Deployments whose steps take a linear time, for tests of what is said of runs."""

from __future__ import annotations

from trainyard.serve.deployment import Deployment, ServedModel
from trainyard.serve.step_time import LinearStepTime

STEP = LinearStepTime(7e-3, 6e-5, 2e-5)


def deployment(num_replicas: int = 1, num_blocks: int = 2000, stages: int = 1) -> Deployment:
    """Replicas of a small model with room for so many blocks of 16 tokens."""
    model = ServedModel(
        name="small",
        step_time=STEP,
        tensor_parallel=1,
        pipeline_stages=stages,
        weight_bytes=14 * 10**9,
        cache_bytes_per_token=2**19,
        usable_bytes=70 * 10**9,
        activation_bytes=10**9,
        context=4096,
        source="made up",
    )
    return Deployment(model, num_replicas, num_blocks, min(4096, num_blocks * 16))

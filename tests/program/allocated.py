"""What tensors take of memory while something runs, as PyTorch's profiler counts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.profiler import ProfilerActivity, profile

from trainyard.cost.collectives import KINDS
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster
from trainyard.hardware.profile import CollectiveSample, MachineProfile, MatmulSample, MemorySample


def profiled() -> Any:
    """Counts within a ``with``."""
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def most_allocated(profiler: Any) -> int:
    """Most bytes that tensors had at one time."""
    level = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            most = max(most, level)
    return most


def over_gloo(place: str) -> Cluster:
    """A cluster whose processes send over gloo, as those of tests do; its times mean nothing."""
    messages = tuple(CollectiveSample(kind, 2, size, size * 1e-8) for kind in KINDS for size in (1e3, 1e7))
    matmul, memory = (MatmulSample("float32", 1, 1e9, 0.01),), (MemorySample(1, 1e9, 0.1),)
    measured = MachineProfile("cpu", 2, 2**30, "2", 1e-6, matmul, memory, messages)
    return replace(parse_cluster(place), profile=measured)

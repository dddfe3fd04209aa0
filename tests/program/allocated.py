"""What tensors take of memory while something runs, as PyTorch's profiler counts it."""

from __future__ import annotations

from typing import Any

from torch.profiler import ProfilerActivity, profile


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

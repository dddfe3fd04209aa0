"""The device that a training computes on, as its option `--device` has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainyard.cli.launcher import is_launched, num_launched

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster

__all__ = ["most_gpus", "require_device", "this_machine"]


def require_device(device: str | None, num_processes: int) -> None:
    """Refuse a device that is not there for each process of this machine, before anything is measured.

    Parameters
    ----------
    num_processes : of the training; a launcher says itself how many there are.

    Raises
    ------
    HardwareError
        If PyTorch finds too few GPUs, or the machines have unequally many processes.
    """
    from trainyard.hardware.gpus import num_gpu_nodes

    if device == "cuda":
        total = num_launched() if is_launched() else num_processes
        num_gpu_nodes(total, _on_this_machine(total))


def this_machine(device: str | None, num_processes: int, say: Callable[[str], None]) -> Cluster:
    """Describe the processors of this machine, or its GPUs, as a cluster of so many processes.

    Parameters
    ----------
    say : called with what is assumed of the cluster.
    """
    from trainyard.hardware import parse_cluster
    from trainyard.hardware.gpus import assumed_links, measured_gpu_cluster

    if device != "cuda":
        return parse_cluster(f"local:{num_processes}")
    from trainyard.job.run.processes.fork_server import context

    context()  # the process that measures is forked from the server that trains, which has loaded PyTorch
    per_node = _on_this_machine(num_processes)
    cluster = measured_gpu_cluster(num_processes, per_node)
    if links := assumed_links(num_processes, per_node):
        say(f"device cuda: {links}")
    return cluster


def most_gpus() -> int:
    """Count the GPUs of this machine."""
    import torch

    return torch.cuda.device_count()


def _on_this_machine(num_processes: int) -> int:
    """Count the processes that run here: under a launcher it says how many."""
    if is_launched():
        return int(os.environ.get("LOCAL_WORLD_SIZE", num_launched()))
    return num_processes

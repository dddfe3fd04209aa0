"""The machine that a training runs on, as its option `--device` has it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainyard.cli.launcher import is_launched, num_launched

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster

__all__ = ["most_gpus", "require_device", "this_machine"]


def require_device(device: str | None, num_processes: int) -> None:
    """Refuse a device that is not there for each process of this machine, before anything is measured.

    Raises
    ------
    HardwareError
        If PyTorch finds too few GPUs.
    """
    from trainyard.hardware.gpus import require_gpus

    if device == "cuda":
        require_gpus(_on_this_machine(num_processes))


def this_machine(device: str | None, num_processes: int) -> Cluster:
    """The processors of this machine, or its GPUs, as a cluster of so many processes."""
    from trainyard.hardware import parse_cluster
    from trainyard.hardware.gpus import gpu_cluster

    if device == "cuda":
        return gpu_cluster(num_processes, _on_this_machine(num_processes))
    return parse_cluster(f"local:{num_processes}")


def most_gpus() -> int:
    """How many GPUs this machine has."""
    import torch

    return torch.cuda.device_count()


def _on_this_machine(num_processes: int) -> int:
    """Of so many processes, those that run here: under a launcher it says how many."""
    if is_launched():
        return int(os.environ.get("LOCAL_WORLD_SIZE", num_launched()))
    return num_processes

"""Ranks that a launcher started: rank 0 alone plans and prints, and all do what it decided."""

from __future__ import annotations

import os

from trainyard.job.run.processes.launchers import is_launched

__all__ = ["is_launched", "is_silent", "num_launched"]


def is_silent() -> bool:
    """Return whether another process prints for this one."""
    return is_launched() and int(os.environ["RANK"]) > 0


def num_launched() -> int:
    """Return the number of ranks that the launcher started."""
    return int(os.environ["WORLD_SIZE"])

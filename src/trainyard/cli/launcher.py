"""Ranks that a launcher started: rank 0 alone plans and prints, and all do what it decided."""

from __future__ import annotations

import os
from collections.abc import Callable

from trainyard.job.run.processes.launchers import is_launched

__all__ = ["broadcast_text", "is_launched", "is_silent", "num_launched"]


def is_silent() -> bool:
    """Return whether another process prints for this one."""
    return is_launched() and int(os.environ["RANK"]) > 0


def num_launched() -> int:
    """Return the number of ranks that the launcher started."""
    return int(os.environ["WORLD_SIZE"])


def broadcast_text(name: str, make: Callable[[], str]) -> str:
    """Give every rank a text that rank 0 makes; without a launcher, make it.

    Parameters
    ----------
    name : of the text, in words.
    make : called on rank 0 only.
    """
    if not is_launched():
        return make()
    from trainyard.job.run.processes.rendezvous import broadcast_text as broadcast_by_ranks

    return broadcast_by_ranks(name, make)

"""The processes of the run that goes on in the test's process."""

from __future__ import annotations

import psutil

__all__ = ["rank_processes"]


def rank_processes(num_ranks: int) -> list[psutil.Process]:
    """Return the forked ranks of the run; none while they start."""
    for child in psutil.Process().children(recursive=True):
        try:
            ranks = child.children()
        except psutil.NoSuchProcess:
            continue
        if len(ranks) == num_ranks:
            return list(ranks)
    return []

"""What can go wrong in the engine."""

from __future__ import annotations


class DeadlockError(ValueError):
    """Some tasks of a graph can never start, because they wait for each other in a circle."""

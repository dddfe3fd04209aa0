"""What can go wrong in the engine."""

from __future__ import annotations

from trainyard.errors import TrainyardError


class DeadlockError(TrainyardError, ValueError):
    """Some tasks of a graph can never start, because they wait for each other in a circle."""

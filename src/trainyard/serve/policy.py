"""The interface of batch policies."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from trainyard.serve.draft import BatchDraft

__all__ = ["BatchPolicy", "Repeats"]

Repeats = Literal["always", "while none waits", "never"]


class BatchPolicy(Protocol):
    """Decides which requests a replica computes in its next step."""

    @property
    def repeats(self) -> Repeats:
        """When the policy would decide on the same batch again, if all running requests decode in it.

        "always" lasts until one of them ends or blocks run out; "while none waits" also ends when a request arrives.
        """
        ...

    def start(self) -> Any:
        """Return its own state for one replica, or None. `decide` gets it, and may change it."""
        ...

    def decide(self, draft: BatchDraft, state: Any) -> None:
        """Make the next batch on the draft, of running and waiting requests; it may stay empty.

        Called when a step ends, and when a request arrives at an idle replica.
        """
        ...

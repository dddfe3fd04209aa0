"""What policies of level 3 are."""

from __future__ import annotations

from typing import Any, Protocol

from trainyard.serve.draft import BatchDraft

__all__ = ["BatchPolicy"]


class BatchPolicy(Protocol):
    """Which requests an instance computes next; the same object decides in simulation and for real."""

    def start(self) -> Any:
        """What it keeps from decision to decision, of one instance; it may change it."""
        ...

    def decide(self, draft: BatchDraft, state: Any) -> None:
        """Make the next batch of the draft: of requests that run, that wait, or of none.

        It is asked when a step ends, and when a request reaches an instance that computes nothing.
        """
        ...

"""What policies of level 3 are."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from trainyard.serve.draft import BatchDraft

__all__ = ["BatchPolicy", "Repeats"]

Repeats = Literal["always", "while none waits", "never"]


class BatchPolicy(Protocol):
    """Which requests an instance computes next; the same object decides in simulation and for real."""

    @property
    def repeats(self) -> Repeats:
        """When a batch in which all that run decode is what it wants again after it, as long as there are blocks.

        That is until one of them ends, and, while none waits, until a request comes.
        """
        ...

    def start(self) -> Any:
        """What it keeps from decision to decision, of one instance; it may change it."""
        ...

    def decide(self, draft: BatchDraft, state: Any) -> None:
        """Make the next batch of the draft: of requests that run, that wait, or of none.

        It is asked when a step ends, and when a request reaches an instance that computes nothing.
        """
        ...

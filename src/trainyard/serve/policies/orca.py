"""ORCA: requests join and leave a batch at every iteration, and reserve room for all that they may need.

References
----------
G.-I. Yu et al., "ORCA: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022. Section 3.1:
iteration-level scheduling, which chooses anew after every iteration. Section 3.2: selective batching, by which prompts
and decodes of any length share one. Algorithm 1: in order of arrival, up to ``max_bs`` requests; one that has not begun
needs as many slots of the cache as its sequence may become long, which it keeps to its end, so that nobody is ever
preempted. The first one that finds too few is the last one that is looked at.

Fidelity: exact. ``n_workers`` batches are in an instance of so many stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policy import Repeats

__all__ = ["Orca"]


@dataclass(frozen=True)
class Orca:
    """First come, first served, with reservations.

    Attributes
    ----------
    max_requests : max_bs, in an iteration.
    admission : in which order new requests are taken.
    """

    max_requests: int = 32
    admission: Admission = FIRST_COME

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_requests")

    @property
    def repeats(self) -> Repeats:
        """Who is next and finds no room finds none later, while others decode."""
        return "always" if self.admission.in_order else "while none waits"

    def start(self) -> Any:
        return self.admission.start()

    def decide(self, draft: BatchDraft, state: Any) -> None:
        """Algorithm 1, `Select`: those that run came before all that wait."""
        self.admission.begin(draft, state)
        for each in draft.running[: self.max_requests]:
            draft.compute(each, draft.num_left(each))
        while len(draft.items) < self.max_requests:
            first = self.admission.next(draft, state)
            if first is None or not draft.compute(
                first, draft.num_left(first), room_tokens=first.most_tokens
            ):
                break
            self.admission.admitted(first, state)
        self.admission.end(draft, state)

"""ORCA: requests join and leave the batch at every iteration, and reserve cache for their longest answer.

References
----------
G.-I. Yu et al., "ORCA: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022. Section 3.1:
iteration-level scheduling, which chooses the batch anew after every iteration. Section 3.2: selective batching, by
which prompts and decodes of any length share a batch. Algorithm 1: up to ``max_bs`` requests, in order of arrival. A
new request needs a slot of the cache for every token that its sequence may have, and keeps these slots to its end, so
no request is ever preempted. The first request that finds too few slots ends the search.

Fidelity: exact. An instance with ``n_workers`` pipeline stages has as many batches in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policies.admitting import MAX_REQUESTS, NO_BLOCKS, AdmittingPolicy
from trainyard.serve.policy import EngineNeeds

__all__ = ["Orca"]


@dataclass(frozen=True)
class Orca(AdmittingPolicy):
    """Requests join at every iteration, with reservations.

    Samples of a request share nothing: each has its own reservation.

    Attributes
    ----------
    max_requests : most requests in an iteration (the paper's ``max_bs``).
    """

    splits_samples: ClassVar[bool] = True
    max_requests: int = 32

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_requests")

    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        """All of its requests may begin in one step, with whole prompts."""
        return EngineNeeds("recompute", self.max_requests, self.max_requests * max_model_len)

    def make(self, draft: BatchDraft, state: Any) -> None:
        """Algorithm 1, `Select`: those that run came before all that wait."""
        for each in draft.running[: self.max_requests]:
            if not draft.compute(each, draft.num_left(each), reserve_tokens=each.max_num_tokens):
                draft.preempt(each)  # it came from another instance and has no reservation here
        while len(draft.items) < self.max_requests:
            first = self.admission.next(draft, state)
            if first is None:
                return
            num_new = draft.num_new_blocks(first, first.max_num_tokens)
            if not draft.compute(first, draft.num_left(first), reserve_tokens=first.max_num_tokens):
                draft.explain_wait(NO_BLOCKS, num_new, draft.num_free)
                return
            self.admission.admitted(first, state)
        draft.explain_wait(MAX_REQUESTS, self.max_requests)

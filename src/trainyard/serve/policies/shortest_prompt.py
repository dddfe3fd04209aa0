"""Shortest prompt first, except that requests that have waited for long come before.

Short prompts take little of the cache, so many requests run at once and the mean time is short. Output lengths need not
be known. Without a limit, long prompts would wait for ever under load: requests that have waited ``max_wait_s`` come
first, in order of arrival. Preempted requests come before all others, since part of their work is done.

Fidelity: own.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policies.sorted_admission import Heap, SortedAdmission
from trainyard.serve.request_state import RequestState

__all__ = ["ShortestPrompt"]


@dataclass(frozen=True)
class ShortestPrompt(SortedAdmission):
    """An order of admission for any batch policy.

    Attributes
    ----------
    max_wait_s : how long a request waits until it comes before shorter ones.
    """

    max_wait_s: float = 20.0

    def __post_init__(self) -> None:
        require_at_least(self, 0, "max_wait_s")

    def key(self, state: RequestState) -> int:
        return state.request.prompt_tokens

    def next(self, draft: BatchDraft, state: Heap) -> RequestState | None:
        first = draft.first_waiting
        if first is not None and draft.now_s - first.arrival_s > self.max_wait_s:
            return first
        return super().next(draft, state)

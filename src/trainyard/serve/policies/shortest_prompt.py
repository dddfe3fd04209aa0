"""Shortest prompt first, but for those that have waited for long.

Short prompts take little of the cache, so that many run at once, and the mean time is short; how long outputs will be
need not be known. Without a limit, long prompts would wait for ever under load: whoever has waited for so long comes
first, in order of arrival. Preempted requests come before all others, as they have computed something already.

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
    """An order of admission; it goes with any batch policy.

    Attributes
    ----------
    max_wait_s : after which a request comes before shorter ones.
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

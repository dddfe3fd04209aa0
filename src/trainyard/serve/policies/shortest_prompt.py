"""Shortest prompt first, but for those that have waited for long.

Short prompts take little of the cache, so that many run at once, and the mean time is short; how long outputs will be
need not be known. Without a limit, long prompts would wait for ever under load: whoever has waited for so long comes
first, in order of arrival. Preempted requests come before all others, as they have computed something already.

Fidelity: own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.request_state import RequestState

__all__ = ["ShortestPrompt"]


_FEW = 64


@dataclass(frozen=True)
class ShortestPrompt(AdmissionHooks):
    """An order of admission; it goes with any batch policy.

    Attributes
    ----------
    max_wait_s : after which a request comes before shorter ones.
    """

    max_wait_s: float = 20.0

    def __post_init__(self) -> None:
        require_at_least(self, 0, "max_wait_s")

    def start(self) -> list[tuple[int, int, RequestState]]:
        """Requests by length of their prompts, as a heap; some of them may wait no longer."""
        return []

    def begin(self, draft: BatchDraft, state: list[tuple[int, int, RequestState]]) -> None:
        if len(state) > 2 * draft.num_waiting + _FEW:
            state[:] = [each for each in state if draft.waits(each[2])]
            heapq.heapify(state)
        for each in draft.arrived:
            heapq.heappush(state, (each.request.prompt_tokens, each.number, each))

    def next(self, draft: BatchDraft, state: list[tuple[int, int, RequestState]]) -> RequestState | None:
        first = draft.first_waiting
        if first is None or first.num_preemptions or draft.now_s - first.arrival_s > self.max_wait_s:
            return first
        while not draft.waits(state[0][2]):
            heapq.heappop(state)
        return state[0][2]

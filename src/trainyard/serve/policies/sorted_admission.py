"""Orders of admission by a number that each request has and that never changes."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.request_state import RequestState

__all__ = ["Heap", "SortedAdmission"]

Heap = list[tuple[int, int, RequestState]]
"""Requests by their number and their arrival; some of them may no longer wait."""

_FEW = 64


class SortedAdmission(AdmissionHooks, ABC):
    """Smallest number first; preempted requests come before all others, since part of their work is done."""

    @abstractmethod
    def key(self, state: RequestState) -> int:
        """The number of a request."""

    def start(self) -> Heap:
        return []

    def begin(self, draft: BatchDraft, state: Heap) -> None:
        if len(state) > 2 * draft.num_waiting + _FEW:
            state[:] = [each for each in state if draft.waits(each[2])]
            heapq.heapify(state)
        for each in draft.arrived:
            heapq.heappush(state, (self.key(each), each.number, each))

    def next(self, draft: BatchDraft, state: Heap) -> RequestState | None:
        first = draft.first_waiting
        if first is None or first.num_preemptions:
            return first
        while not draft.waits(state[0][2]):
            heapq.heappop(state)
        return state[0][2]

"""The manager of the program of VTC (Sheng et al., OSDI 2024): ten decodes, then it tries to admit.

Requests that are admitted are prefilled by themselves. One is admitted only if all that run could go on to their last
token: the most tokens that there will ever be, where each leaves with its last one, have to be fewer than the cache
has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.serve.admission import Admission
from trainyard.serve.draft import BatchDraft
from trainyard.serve.policies.vtc import VTC, VirtualCounters
from trainyard.serve.policy import Repeats
from trainyard.serve.request_state import RequestState

__all__ = ["QueueVTC", "VTCManager"]


@dataclass
class _Decodes:
    """What the admission keeps, and decodes since the last prefill."""

    admission: Any
    num: int = 0


@dataclass(frozen=True)
class VTCManager:
    """Prefills apart from decodes.

    Attributes
    ----------
    admission : in which order.
    num_cached_tokens : for which the cache has room.
    max_requests : that run at once.
    max_batch_tokens : of a prefill.
    num_decodes : before it tries to admit.
    """

    admission: Admission
    num_cached_tokens: int = 10000
    max_requests: int = 128
    max_batch_tokens: int = 4096
    num_decodes: int = 10

    @property
    def repeats(self) -> Repeats:
        """Every step is decided anew."""
        return "never"

    def start(self) -> _Decodes:
        return _Decodes(self.admission.start())

    def decide(self, draft: BatchDraft, state: _Decodes) -> None:
        self.admission.begin(draft, state.admission)
        if not draft.num_running or state.num >= self.num_decodes:
            self._prefill(draft, state)
        if draft.items:
            state.num = 0
        else:
            for each in draft.running:
                draft.compute(each, 1)
            state.num += 1
        self.admission.end(draft, state.admission)

    def _prefill(self, draft: BatchDraft, state: _Decodes) -> None:
        held = [(each.max_num_tokens - each.num_tokens - 1, each.num_tokens) for each in draft.running]
        left = self.max_batch_tokens
        while draft.num_running < self.max_requests:
            first = self.admission.next(draft, state.admission)
            if first is None or first.num_tokens > left:
                break
            held.append((first.request.max_tokens - 1, first.num_tokens + 1))
            if _most_tokens(held) >= self.num_cached_tokens:
                break
            draft.compute(first, first.num_tokens)
            self.admission.admitted(first, state.admission)
            left -= first.num_tokens


@dataclass(frozen=True)
class QueueVTC(VTC):
    """Counters as the queue of the program has them: a decode is charged when it begins, the first token is not."""

    def admitted(self, request: RequestState, state: VirtualCounters) -> None:
        self._charge(request, self.prompt_weight * request.request.prompt_tokens, state)

    def _go_on(self, sequence: RequestState, state: VirtualCounters) -> None:
        """Nothing: `end` charges its decodes."""

    def end(self, draft: BatchDraft, state: VirtualCounters) -> None:
        for each in draft.computed:
            if each.num_generated:
                self._charge(each, self.output_weight, state)


def _most_tokens(held: list[tuple[int, int]]) -> int:
    """The most tokens that there will be at once, of how many each has to go and has."""
    held.sort(key=lambda each: -each[0])
    most = total = 0
    for place, (rest, tokens) in enumerate(held, 1):
        total += tokens
        most = max(most, rest * place + total)
    return most

"""Batches of mixed prompts and decodes under one budget of tokens: what vLLM since 0.8 and Sarathi-Serve share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policies.admitting import (
    MAX_REQUESTS,
    NO_BLOCKS,
    PREEMPTED,
    SWAPPED,
    TOKEN_BUDGET,
    AdmittingPolicy,
)
from trainyard.serve.policies.preemption import check_preempt, decode_or_preempt, next_swapped
from trainyard.serve.policy import EngineNeeds, Preempt

__all__ = ["TokenBudget"]


@dataclass(frozen=True)
class TokenBudget(AdmittingPolicy):
    """One budget of tokens for prompts and decodes; an admitted request gets blocks for its whole prompt.

    Attributes
    ----------
    max_batch_tokens : most tokens in a step.
    max_requests : most requests that run at once.
    chunked : whether a prompt may be cut; if not, a prompt longer than the budget is computed alone.
    decodes_first : whether decodes come before the rest of prompts that were begun.
    watermark : share of the blocks that stays free when a request is admitted, unless nothing else runs.
    preempt : what happens to requests that lose their blocks. While any is swapped out, none is admitted.
    """

    max_batch_tokens: int = 2048
    max_requests: int = 256
    chunked: bool = True
    decodes_first: bool = False
    watermark: float = 0.0
    preempt: Preempt = "recompute"

    def __post_init__(self) -> None:
        check_preempt(self.preempt)
        require_at_least(self, 1, "max_batch_tokens", "max_requests")
        require_at_least(self, 0, "watermark")

    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        longest = 0 if self.chunked else max_model_len
        return EngineNeeds(self.preempt, self.max_requests, max(self.max_batch_tokens, longest))

    def make(self, draft: BatchDraft, state: Any) -> None:
        running, left = draft.running, self.max_batch_tokens
        if self.decodes_first:
            running.sort(key=lambda each: not each.decodes)
        while running and left > 0:
            each = running.pop(0)
            num = min(draft.num_left(each), left)
            if decode_or_preempt(draft, each, num, running, self.preempt):
                left -= num
        if draft.has_preempted:
            draft.explain_wait(PREEMPTED)
            return
        if draft.num_swapped:
            left = self._resume(draft, left)
        if draft.num_swapped:
            draft.explain_wait(SWAPPED, draft.num_swapped)
        else:
            self._admit(draft, left, state)

    def _resume(self, draft: BatchDraft, left: int) -> int:
        """Requests that are swapped out go on, one sample after the other; returns what is left of the budget."""
        spare = int(self.watermark * draft.num_blocks)
        while left > 0 and (resumed := next_swapped(draft, self.max_requests, spare)):
            num = min(draft.num_left(resumed[0]), left)
            draft.compute(resumed[0], num)
            left -= num
        return left

    def _admit(self, draft: BatchDraft, left: int, state: Any) -> None:
        spare = int(self.watermark * draft.num_blocks)
        while left > 0:
            if draft.num_running >= self.max_requests:
                draft.explain_wait(MAX_REQUESTS, self.max_requests)
                return
            first = self.admission.next(draft, state)
            if first is None:
                return
            if not draft.may_run(first, self.max_requests):
                draft.explain_wait(MAX_REQUESTS, self.max_requests)
                return
            num = draft.num_left(first)
            if num > left and not self.chunked and draft.items:
                break
            num = min(num, left) if self.chunked else num
            num_new = draft.num_new_blocks(first, first.num_tokens)
            is_scarce = draft.num_free - num_new < spare
            if (is_scarce and draft.num_running) or not draft.compute(
                first, num, reserve_tokens=first.num_tokens
            ):
                draft.explain_wait(NO_BLOCKS, num_new, draft.num_free)
                return
            self.admission.admitted(first, state)
            left -= num
        draft.explain_wait(TOKEN_BUDGET, self.max_batch_tokens)

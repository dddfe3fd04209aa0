"""vLLM: paged attention, and preemption when blocks run out.

References
----------
W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023. Section
4: requests get blocks as their sequences grow, so many more run at once than if each reserved what it may need. Section
4.4: prompts with the same beginning share blocks. So do samples of one prompt, until one of them writes to a shared
block: it first copies that block (copy on write). Section 4.5: when no block is free, the request that arrived last
loses all of its blocks, with all of its samples. Its tokens are computed again, or its blocks are swapped out to the
host. While any request is swapped out, no new one is admitted.

`PrefillFirst` is the scheduler of the paper, and of the program before version 0.8 (V0): a step computes either whole
prompts or decodes. `vllm` is the scheduler of later versions (V1): a step has a budget of tokens. Running requests take
from it first, in the order of their admission, then new prompts, of which the last one is cut where the budget ends.

Fidelity: simplified. Beam search, whose sequences branch and end in the middle, is left out. Samples whose tokens are
computed again come back one by one. In V1, each sample computes the last block of its prompt itself if that block is not
full; here the block is copied, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policies.admitting import MAX_REQUESTS, NO_BLOCKS, SWAPPED, TOKEN_BUDGET, AdmittingPolicy
from trainyard.serve.policies.preemption import check_preempt, decode_or_preempt, next_swapped
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.policy import EngineNeeds, Preempt

__all__ = ["PrefillFirst", "vllm"]


@dataclass(frozen=True)
class PrefillFirst(AdmittingPolicy):
    """Prompts first; if no prompt is admitted, all running requests decode.

    Attributes
    ----------
    max_batch_tokens : most prompt tokens in a step; a longer prompt is computed alone.
    max_requests : most requests that run at once.
    watermark : share of the blocks that stays free when a request is admitted, unless nothing else runs.
    preempt : what happens to requests that lose their blocks; by default those with several samples are swapped out.
    """

    max_batch_tokens: int = 2048
    max_requests: int = 256
    watermark: float = 0.01
    preempt: Preempt = "swap samples"

    def __post_init__(self) -> None:
        check_preempt(self.preempt)
        require_at_least(self, 1, "max_batch_tokens", "max_requests")
        require_at_least(self, 0, "watermark")

    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        return EngineNeeds(
            self.preempt, self.max_requests, max(self.max_batch_tokens, max_model_len, self.max_requests)
        )

    def make(self, draft: BatchDraft, state: Any) -> None:
        if draft.num_swapped:
            draft.explain_wait(SWAPPED, draft.num_swapped)
        else:
            self._prefill(draft, state)
        if not draft.items:
            running = sorted(draft.running, key=lambda each: each.number)
            while running:
                decode_or_preempt(draft, running.pop(0), 1, running, self.preempt, together=True)
            if draft.num_swapped and not draft.has_preempted:
                self._resume(draft)

    def _resume(self, draft: BatchDraft) -> None:
        """Requests that are swapped out go on."""
        spare = int(self.watermark * draft.num_blocks)
        while resumed := next_swapped(draft, self.max_requests, spare, together=True):
            for each in resumed:
                draft.compute(each, draft.num_left(each))

    def _prefill(self, draft: BatchDraft, state: Any) -> None:
        left = self.max_batch_tokens
        spare = int(self.watermark * draft.num_blocks)
        while draft.num_running < self.max_requests:
            first = self.admission.next(draft, state)
            if first is None:
                return
            if not draft.may_run(first, self.max_requests):
                break
            if (num := draft.num_left(first)) > left and draft.items:
                draft.explain_wait(TOKEN_BUDGET, self.max_batch_tokens)
                return
            num_new = draft.num_new_blocks(first, first.num_tokens)
            is_scarce = draft.num_free - num_new < spare
            if (is_scarce and draft.num_running) or not draft.compute(first, num):
                draft.explain_wait(NO_BLOCKS, num_new, draft.num_free)
                return
            self.admission.admitted(first, state)
            left -= num
        draft.explain_wait(MAX_REQUESTS, self.max_requests)


def vllm(
    max_batch_tokens: int = 2048,
    max_requests: int = 256,
    admission: Admission = FIRST_COME,
    preempt: Preempt = "recompute",
) -> TokenBudget:
    """The scheduler since version 0.8 (V1).

    Parameters
    ----------
    max_batch_tokens : most tokens in a step.
    max_requests : most requests that run at once.
    admission : order in which waiting requests are admitted.
    preempt : what happens to requests that lose their blocks; samples lose theirs one by one.
    """
    return TokenBudget(max_batch_tokens, max_requests, preempt=preempt, admission=admission)

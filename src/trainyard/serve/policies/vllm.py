"""vLLM: paged attention, and preemption where blocks run out.

References
----------
W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023. Section 4:
requests get blocks as their sequences grow, so that many more run at once than if each reserved what it may need. Section
4.4: prompts that begin alike share blocks. Section 4.5: when none is free, the request that came last loses its blocks.

`PrefillFirst` is the scheduler of the paper and of the program's versions before 0.8 (V0): a step is either prompts,
whole, or decodes. `vllm` is that of later versions (V1): a step has so many tokens, first those of requests that run, in
the order in which they were admitted, then prompts of others, cut where the budget ends.

Fidelity: simplified. Requests that are preempted are computed again; swapping to the host, and copy on write of sequences
that branch (parallel sampling, beam search), are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policies.admitting import AdmittingPolicy
from trainyard.serve.policies.token_budget import TokenBudget, decode_or_preempt

__all__ = ["PrefillFirst", "vllm"]


@dataclass(frozen=True)
class PrefillFirst(AdmittingPolicy):
    """Prompts first; where none is admitted, all that run decode.

    Attributes
    ----------
    max_tokens : of the prompts in a step; one that is longer runs alone.
    max_requests : that run at once.
    watermark : share of the blocks that is to be free after a request was admitted, unless nothing else runs.
    """

    max_tokens: int = 2048
    max_requests: int = 256
    watermark: float = 0.01

    def __post_init__(self) -> None:
        require_at_least(self, 1, "max_tokens", "max_requests")
        require_at_least(self, 0, "watermark")

    def make(self, draft: BatchDraft, state: Any) -> None:
        self._prefill(draft, state)
        if not draft.items:
            running = sorted(draft.running, key=lambda each: each.number)
            while running:
                decode_or_preempt(draft, running.pop(0), 1, running)

    def _prefill(self, draft: BatchDraft, state: Any) -> None:
        left = self.max_tokens
        spare = int(self.watermark * draft.num_blocks)
        while draft.num_running < self.max_requests:
            first = self.admission.next(draft, state)
            if first is None or ((num := draft.num_left(first)) > left and draft.items):
                break
            is_scarce = draft.num_free - draft.num_to_take(first, first.num_tokens) < spare
            if (is_scarce and draft.num_running) or not draft.compute(first, num):
                break
            self.admission.admitted(first, state)
            left -= num


def vllm(max_tokens: int = 2048, max_requests: int = 256, admission: Admission = FIRST_COME) -> TokenBudget:
    """The scheduler since version 0.8 (V1).

    Parameters
    ----------
    max_tokens : in a step.
    max_requests : that run at once.
    admission : in which order requests are taken.
    """
    return TokenBudget(max_tokens, max_requests, admission=admission)

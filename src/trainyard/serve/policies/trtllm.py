"""TensorRT-LLM's server: in-flight batching, with either of two schedulers of the cache's capacity.

References
----------
The program TensorRT-LLM, NVIDIA/TensorRT-LLM, versions 1.0 to 1.2:
`cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp` (as of commit 02a10fed), `scheduledBlocksManager.h`,
`microBatchScheduler.cpp` (commit 0a949d31), which `tensorrt_llm/_torch/pyexecutor/scheduler.py` (commit 034fffb0)
calls, and `tensorrt_llm/llmapi/llm_args.py` (defaults).

Each step is scheduled twice. The capacity scheduler says which requests have room in the cache, by their arrival:

- GUARANTEED_NO_EVICT, the default: a request is admitted if all blocks that it may ever need, for its prompt and
  ``max_tokens``, are free beside those that running requests may still need. No request is ever paused.
- MAX_UTILIZATION: it is admitted if the blocks of its prompt are free. If a running request finds no block for its
  next token, the last one that was begun is paused: it loses its blocks, and its tokens are computed again. In such a
  step no request is admitted.

The micro-batch scheduler then fills the step: running requests decode, and prompts follow, while all tokens are at
most ``max_num_tokens`` (8,192) and all requests at most ``max_batch_size`` (2,048). Prompts are computed whole, beside
the decodes, and one that is longer than the limit is refused. With `--enable_chunked_prefill` (off by default) they
are cut where the limit is reached, at a multiple of a block.

Fidelity: simplified. Tokens that a prompt finds in the cache count where it is computed whole, as in the program;
where prompts are cut they do not. A paused request whose tokens are more than the limit is computed alone; the program
forgets its last tokens. A prompt that could find blocks that another one of the same step computes does not wait for
these. Waiting for more prompts (`batch_wait_timeout_iters`, off by default), equal progress of chunks, static batches,
beams and draft tokens are left out. Each sample is a request by itself, as in the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError, require_at_least
from trainyard.serve.policies.admitting import (
    MAX_REQUESTS,
    NO_BLOCKS,
    PREEMPTED,
    TOKEN_BUDGET,
    AdmittingPolicy,
)
from trainyard.serve.policy import EngineNeeds
from trainyard.serve.request_state import RequestState

__all__ = ["Capacity", "TensorRTLLM"]

Capacity = Literal["guaranteed_no_evict", "max_utilization"]
"""Which requests have room in the cache; names of the program's ``CapacitySchedulerPolicy``."""


@dataclass(frozen=True)
class TensorRTLLM(AdmittingPolicy):
    """Decodes and prompts in one step.

    Attributes
    ----------
    max_batch_tokens : most tokens in a step (the program's ``max_num_tokens``).
    max_requests : most requests that run at once (``max_batch_size``).
    capacity : whether a running request has blocks for all its tokens ("guaranteed_no_evict"), or may be paused
        ("max_utilization").
    chunked_prefill : whether prompts are cut; if not, longer ones than ``max_batch_tokens`` are refused.
    """

    splits_samples: ClassVar[bool] = True
    max_batch_tokens: int = 8192
    max_requests: int = 2048
    capacity: Capacity = "guaranteed_no_evict"
    chunked_prefill: bool = False

    def __post_init__(self) -> None:
        if self.capacity not in get_args(Capacity):
            raise ServeError(
                f"capacity is {self.capacity!r}; allowed is one of {', '.join(map(repr, get_args(Capacity)))}"
            )
        require_at_least(self, 1, "max_batch_tokens", "max_requests")

    @property
    def _guarantees(self) -> bool:
        return self.capacity == "guaranteed_no_evict"

    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        is_cut = self._guarantees or self.chunked_prefill
        longest = 0 if is_cut else max_model_len  # of a paused request
        return EngineNeeds("recompute", self.max_requests, max(self.max_batch_tokens, longest))

    def make(self, draft: BatchDraft, state: Any) -> None:
        running = sorted(draft.running, key=lambda each: each.number)
        left = self._go_on(draft, running)
        if draft.has_preempted:
            draft.explain_wait(PREEMPTED)
            return
        if draft.first_waiting is None:
            return
        room = draft.num_free - (_still_needed(draft) if self._guarantees else 0)
        while (first := self.admission.next(draft, state)) is not None:
            if not self._may_be_computed(draft, first):
                continue
            blocks = self._blocks(draft, first)
            if not self._admit(draft, first, left, room):
                return
            self.admission.admitted(first, state)
            left -= self._charged(draft, first)
            room = room - blocks if self._guarantees else draft.num_free

    def _go_on(self, draft: BatchDraft, running: list[RequestState]) -> int:
        """Let running requests decode, and begun prompts go on; returns the tokens that are left of the step."""
        left = self.max_batch_tokens
        for each in sorted(running, key=lambda each: not each.decodes):
            if not each.blocks or left < 1:  # paused, or waiting for the next step
                continue
            num = min(draft.num_left(each), left)
            if num < draft.num_left(each):
                num = num // draft.block_tokens * draft.block_tokens
            while num and each.blocks and not draft.compute(each, num):
                begun = [other for other in running if other.blocks and not other.num_in_step]
                draft.preempt(begun[-1])
            left -= each.num_in_step
        return left

    def _may_be_computed(self, draft: BatchDraft, state: RequestState) -> bool:
        """Refuse a request whose prompt no step has room for."""
        if self.chunked_prefill or state.num_preemptions or state.num_tokens <= self.max_batch_tokens:
            return True
        draft.refuse(
            state,
            f"a prompt of {state.num_tokens} tokens; a step has at most {self.max_batch_tokens}, and prompts are not "
            "cut; set chunked_prefill=True, or a larger max_batch_tokens",
        )
        return False

    def _blocks(self, draft: BatchDraft, state: RequestState) -> int:
        """Blocks that have to be free for a request; those that it finds in the cache are not counted less."""
        return draft.blocks_of(state.max_num_tokens if self._guarantees else state.num_tokens)

    def _charged(self, draft: BatchDraft, state: RequestState) -> int:
        """Tokens of a step that an admitted prompt takes."""
        return state.num_in_step if self.chunked_prefill else state.num_tokens

    def _admit(self, draft: BatchDraft, state: RequestState, left: int, room: int) -> bool:
        """Admit a request if there is room for it in the cache and in the step."""
        if draft.num_running >= self.max_requests:
            draft.explain_wait(MAX_REQUESTS, self.max_requests)
            return False
        if (blocks := self._blocks(draft, state)) > room:
            draft.explain_wait(NO_BLOCKS, blocks, room)
            return False
        num = draft.num_left(state)
        if self.chunked_prefill and num > left:
            num = left // draft.block_tokens * draft.block_tokens
        elif state.num_tokens > left and draft.items and not self.chunked_prefill:
            num = 0
        if num <= 0:
            draft.explain_wait(TOKEN_BUDGET, self.max_batch_tokens)
            return False
        if not draft.compute(state, num, reserve_tokens=state.num_tokens):
            draft.explain_wait(NO_BLOCKS, blocks, draft.num_free)
            return False
        return True


def _still_needed(draft: BatchDraft) -> int:
    """Blocks that running requests may still need, beside those that they have."""
    return sum(draft.blocks_of(each.max_num_tokens) - len(each.blocks) for each in draft.all_running)

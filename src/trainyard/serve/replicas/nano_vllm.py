"""The scheduler of nano-vllm: prompts first, with a prefix index, and chunks where a prompt is longer than a step.

A prompt that was begun stays first of those that wait, with its blocks; of a step, only the first prompt may be cut.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from trainyard.serve.draft import BatchDraft
from trainyard.serve.policy import Repeats
from trainyard.serve.request_state import RequestState

__all__ = ["NanoVLLM"]


@dataclass
class _Sequences:
    """The waiting sequences, of which the first may have blocks, and the running ones."""

    waiting: deque[RequestState] = field(default_factory=deque)
    running: deque[RequestState] = field(default_factory=deque)


@dataclass(frozen=True)
class NanoVLLM:
    """Scheduler of nano-vllm.

    Attributes
    ----------
    max_batch_tokens : of a step of prompts.
    max_requests : in a step.
    """

    max_batch_tokens: int
    max_requests: int

    @property
    def repeats(self) -> Repeats:
        """Every step is decided anew."""
        return "never"

    def start(self) -> _Sequences:
        return _Sequences()

    def decide(self, draft: BatchDraft, state: _Sequences) -> None:
        state.waiting.extend(draft.arrived)
        state.running = deque(each for each in state.running if not each.is_finished)
        self._prefill(draft, state)
        if not draft.items:
            self._decode(draft, state)

    def _prefill(self, draft: BatchDraft, state: _Sequences) -> None:
        left = self.max_batch_tokens
        while state.waiting and len(draft.items) < self.max_requests and left > 0:
            first = state.waiting[0]
            num = draft.num_left(first)
            if num > left and draft.items:
                break
            if not draft.compute(first, min(num, left), reserve_tokens=first.num_tokens):
                break
            if num > left:  # it goes on from there in the next step
                break
            left -= num
            state.running.append(state.waiting.popleft())

    def _decode(self, draft: BatchDraft, state: _Sequences) -> None:
        done: list[RequestState] = []
        while state.running and len(done) < self.max_requests:
            each = state.running.popleft()
            while not draft.compute(each, 1):
                other = state.running.pop() if state.running else each
                draft.preempt(other)
                state.waiting.appendleft(other)
                if other is each:
                    break
            else:
                done.append(each)
        state.running.extendleft(reversed(done))

"""The schedulers of Vidur (Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference", MLSys 2024).

They differ from what they are called after. A request that decodes needs a free block even where it has room left.
Those that run are kept in the order in which steps left them, and who is preempted is the last in that. Prompts are
counted as if padded to the longest one of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor

from trainyard.serve.draft import BatchDraft
from trainyard.serve.instance import Instance
from trainyard.serve.policy import Repeats
from trainyard.serve.request_state import RequestState

__all__ = ["VidurOrca", "VidurSarathi", "VidurVLLM", "shortest_queue"]

_WATERMARK = 0.01


@dataclass
class _Running:
    """Requests with blocks, in the order in which steps left them; and those of the steps that are under way."""

    left: list[RequestState] = field(default_factory=list)
    steps: list[list[RequestState]] = field(default_factory=list)

    def take(self) -> list[RequestState]:
        """All that are in no step; those of the steps that ended last come last. A new step is begun."""
        while self.steps and not any(each.num_in_step for each in self.steps[0]):
            self.left += self.steps.pop(0)
        running = [each for each in self.left if each.blocks]
        self.left = []
        self.steps.append([])
        return running

    @property
    def in_step(self) -> list[RequestState]:
        """Requests of the step that is made."""
        return self.steps[-1]


class _Scheduler:
    """Base of Vidur's schedulers."""

    @property
    def repeats(self) -> Repeats:
        """Every step is decided anew."""
        return "never"

    def start(self) -> _Running:
        return _Running()


@dataclass(frozen=True)
class VidurVLLM(_Scheduler):
    """Scheduler `vllm`.

    Attributes
    ----------
    max_requests : with blocks.
    max_in_step : in a step; with a pipeline of S stages, 128 / S, rounded down.
    max_batch_tokens : requests of a step of prompts times the longest of these.
    """

    max_requests: int = 128
    max_in_step: int = 128
    max_batch_tokens: int = 4096

    def decide(self, draft: BatchDraft, state: _Running) -> None:
        running = state.take()
        longest = 0

        def may_take(first: RequestState) -> bool:
            nonlocal longest
            longest = max(longest, first.num_tokens)
            return (len(draft.items) + 1) * longest <= self.max_batch_tokens

        state.in_step.extend(
            _admit(draft, self.max_requests, self.max_in_step, may_take, lambda first: first.num_tokens)
        )
        if state.in_step:
            state.left = running
            return
        running.sort(key=lambda each: each.arrival_s)
        _decode(draft, running, state, self.max_in_step)
        state.left = running


@dataclass(frozen=True)
class VidurSarathi(_Scheduler):
    """Scheduler `sarathi`.

    Attributes
    ----------
    chunk_tokens : of a step; decodes count, but are not held back.
    max_requests : with blocks.
    max_in_step : in a step.
    """

    chunk_tokens: int = 512
    max_requests: int = 128
    max_in_step: int = 128

    def decide(self, draft: BatchDraft, state: _Running) -> None:
        running, prefilling = state.take(), []
        while running and len(draft.items) < self.max_in_step:
            each = running.pop(0)
            if each.decodes:
                _decode_one(draft, each, running, state)
            else:
                prefilling.append(each)
        used = len(draft.items)
        for each in prefilling:
            num = min(draft.num_left(each), self.chunk_tokens - used)
            if num > 0:
                draft.compute(each, num)
                state.in_step.append(each)
                used += num
            else:
                state.left.append(each)
        state.left = sorted(state.left + running, key=lambda each: each.arrival_s)

        def tokens(first: RequestState) -> int:
            return min(
                first.num_tokens, self.chunk_tokens - sum(item.stop - item.start for item in draft.items)
            )

        state.in_step.extend(
            _admit(draft, self.max_requests, self.max_in_step, lambda first: tokens(first) > 0, tokens)
        )


@dataclass(frozen=True)
class VidurOrca(_Scheduler):
    """Scheduler `orca`: ``max_num_tokens`` of the cache are reserved for each request."""

    max_requests: int = 128
    max_num_tokens: int = 4096

    def decide(self, draft: BatchDraft, state: _Running) -> None:
        running = state.take()
        for each in running[: self.max_requests]:
            draft.compute(each, draft.num_left(each))
            state.in_step.append(each)
        state.left = running[self.max_requests :]
        while len(draft.items) < self.max_requests:
            first = draft.first_waiting
            if first is None or not draft.compute(
                first, draft.num_left(first), reserve_tokens=self.max_num_tokens
            ):
                break
            state.in_step.append(first)


def shortest_queue(request: RequestState, instances: Sequence[Instance]) -> int:
    """Router `lor`: where the fewest requests wait."""
    return min(range(len(instances)), key=lambda number: len(instances[number].queues.waiting))


def _admit(
    draft: BatchDraft,
    max_requests: int,
    max_in_step: int,
    may_take: Callable[[RequestState], bool],
    tokens: Callable[[RequestState], int],
) -> list[RequestState]:
    """Requests that wait, in order, up to the first that may not be taken."""
    admitted = []
    while draft.num_running < max_requests and len(draft.items) < max_in_step:
        first = draft.first_waiting
        if first is None:
            break
        left = draft.num_free - draft.blocks_of(first.num_tokens)
        if left < floor(_WATERMARK * draft.num_blocks) or not may_take(first):
            break
        draft.compute(first, tokens(first), reserve_tokens=first.num_tokens)
        admitted.append(first)
    return admitted


def _decode(draft: BatchDraft, running: list[RequestState], state: _Running, max_in_step: int) -> None:
    while running and len(draft.items) < max_in_step:
        _decode_one(draft, running.pop(0), running, state)


def _decode_one(draft: BatchDraft, each: RequestState, others: list[RequestState], state: _Running) -> None:
    while draft.num_free < 1:
        if not others:
            draft.preempt(each)
            return
        draft.preempt(others.pop())
    draft.compute(each, 1)
    state.in_step.append(each)

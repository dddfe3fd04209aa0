"""An instance that checks every batch before it counts, for policies without tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.check import BatchChecker
from trainyard.serve.instance import Generated, Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_move import RequestMove
from trainyard.serve.request_state import RequestState

__all__ = ["CheckedInstance"]


class CheckedInstance(Instance):
    """An instance with a `BatchChecker`, which raises `ServeError` where a batch cannot be carried out.

    Parameters
    ----------
    policy, cache, given, more : arguments of `Instance`.

    Attributes
    ----------
    checker : knows the requests and the cache by what batches say.
    """

    def __init__(self, policy: BatchPolicy, cache: BlockCache, *given: Any, **more: Any) -> None:
        super().__init__(policy, cache, *given, **more)
        num_host_blocks = cache.host.num_blocks if cache.host else 0
        self.checker = BatchChecker(
            cache.num_blocks,
            cache.block_tokens,
            num_host_blocks,
            more.get("max_loras"),
            more.get("num_layers"),
        )
        self._known: set[int] = set()
        self._unchecked: Batch | None = None  # until it is known how often it is repeated

    def arrive(self, state: RequestState) -> str:
        why = super().arrive(state)
        if not why:
            self._know(state)
        return why

    def move_out(self, states: Sequence[RequestState], number: int) -> RequestMove:
        for each in states:
            self.checker.leave(each.number)
        return super().move_out(states, number)

    def decide(self, now_s: float) -> Batch:
        batch = super().decide(now_s)
        for request_move in self.moves:
            for each in request_move.states:
                self._known |= {sample.number for sample in each.sequences}
                self.checker.move_in(
                    each.number, each.num_tokens, each.num_computed, each.tokens, each.request.adapter
                )
        for state in (*self.queues.waiting.values(), *self.queues.running.values()):
            if state.number not in self._known:  # a sample that computes the prompt by itself
                self._know(state)
        if not batch.launches or self.num_stages > 1:
            self.check(batch)
        else:
            self._unchecked = batch
        return batch

    def repeated(self, batch: Batch, num: int) -> Batch:
        batch = super().repeated(batch, num)
        if self._unchecked is not None:
            self.check(batch)
        return batch

    def stop(self, batch: Batch) -> Batch:
        stopped = super().stop(batch)
        self.check(stopped)
        return stopped

    def check(self, batch: Batch) -> None:
        """Check a batch with the number of its repetitions."""
        self._unchecked = None
        self.checker.check(batch)
        for number, _ in batch.refused:
            self.checker.leave(number)

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        if self._unchecked is not None:  # one of several ranks, whose batches are repeated by none
            self.check(self._unchecked)
        states = dict(self.queues.running)
        before = {number: state.num_generated for number, state in states.items()}
        done = super().complete(batch, now_s, generated)
        for number, state in list(states.items()):
            for each in state.samples:
                if each.number not in self._known:
                    self._known.add(each.number)
                    self.checker.fork(number, each.number)
                    before[each.number], states[each.number] = 0, each
        for number, num in before.items():
            tokens = states[number].tokens
            if states[number].num_generated > num:
                self.checker.generate(number, tokens[-1] if tokens else None)
        for state in done:
            self.checker.leave(state.number)
        return done

    def _know(self, state: RequestState) -> None:
        self._known.add(state.number)
        of_request = state.request
        self.checker.arrive(
            state.number, state.num_tokens, state.tokens, of_request.adapter, trains=of_request.trains
        )

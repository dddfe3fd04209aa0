"""An instance: a model on some devices, with its cache and the requests that it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.queues import Queues
from trainyard.serve.request_state import RequestState

__all__ = ["Instance"]

Generated = Callable[[RequestState], tuple[int | None, bool]]
"""The token that a request generates, or None where tokens are not known, and whether it is its last one."""


class Instance:
    """What happens to the requests of an instance, whoever keeps the time.

    Parameters
    ----------
    policy : which makes its batches.
    cache : of its devices.
    max_model_len : the longest sequence, in tokens; by default what the cache has room for.

    Attributes
    ----------
    refused : requests that the last decision refused, and why.
    """

    def __init__(self, policy: BatchPolicy, cache: BlockCache, max_model_len: int | None = None) -> None:
        room = cache.num_blocks * cache.block_tokens
        if max_model_len is not None and not 2 <= max_model_len <= room:
            raise ServeError(
                f"max_model_len {max_model_len}; allowed is 2 to {room}, for which the cache has room; give it more"
            )
        self.max_model_len = max_model_len or room
        self.policy, self.cache, self.queues = policy, cache, Queues()
        self._keys = BlockKeys(cache.block_tokens)
        self._state: Any = policy.start()
        self._arrived: list[RequestState] = []
        self.refused: list[tuple[RequestState, str]] = []

    def arrive(self, state: RequestState) -> str:
        """A request comes; returns why it is refused, or nothing. Longer answers than there is room for are cut."""
        prompt, most = state.request.prompt_tokens, self.max_model_len
        if prompt >= most:
            return f"a prompt of {prompt} tokens, where a sequence has at most {most} with its answer"
        state.most_tokens = min(state.most_tokens, most)
        self.queues.arrive(state)
        self._arrived.append(state)
        return ""

    def decide(self, now_s: float) -> Batch:
        """What its policy wants now. The cache is already as the batch has it; its items are in a step."""
        draft = BatchDraft(now_s, self._arrived, self.queues, self.cache, self._keys)
        self._arrived = []
        self.policy.decide(draft, self._state)
        self.refused = draft.refused
        return draft.batch()

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        """A step ended; returns the requests that have all their tokens, which leave."""
        done, running, size = [], self.queues.running, self.cache.block_tokens
        for number, _, stop in batch.items:
            state = running[number]
            full = state.num_computed // size
            state.num_computed, state.num_in_step = stop, 0
            if stop // size > full:
                keys = self._keys.of(state, stop // size)
                for place in range(full, len(keys)):
                    self.cache.enter(state.blocks[place], keys[place])
            if stop < state.num_tokens:
                continue
            token, is_last = generated(state)
            state.num_tokens += 1
            state.num_generated += 1
            if state.num_generated == 1:
                state.first_token_s = now_s
            if token is not None:
                state.tokens.append(token)
            if is_last:
                done.append(state)
        for state in done:
            state.finished_s = now_s
            self.cache.give_back(state.blocks[::-1])
            state.blocks.clear()
            self.queues.leave(state)
        return done

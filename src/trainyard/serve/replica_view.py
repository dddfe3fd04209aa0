"""What a policy sees of a replica: its requests, its KV cache, and what a request would need of it."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.queues import Queues
from trainyard.serve.request_state import RequestState

__all__ = ["ReplicaView"]


class ReplicaView:
    """The requests and the KV cache of a replica, to be looked at.

    Attributes
    ----------
    block_tokens, num_blocks : tokens per block, and number of blocks, of the KV cache.
    """

    def __init__(self, queues: Queues, cache: BlockCache, keys: BlockKeys) -> None:
        self.block_tokens, self.num_blocks = cache.block_tokens, cache.num_blocks
        self._queues, self._cache, self._keys = queues, cache, keys

    @property
    def waiting(self) -> Iterator[RequestState]:
        """Requests without blocks, by arrival; preempted ones before them, the last preempted first, or at the end."""
        return iter(self._queues.waiting.values())

    @property
    def first_waiting(self) -> RequestState | None:
        """The first waiting request; None if none waits."""
        return next(self.waiting, None)

    def waits(self, state: RequestState) -> bool:
        """Whether a request waits."""
        return state.number in self._queues.waiting

    def waiting_of(self, client: str) -> Iterator[RequestState]:
        """The waiting requests of one client."""
        return iter(self._queues.waiting_by_client[client].values())

    @property
    def waiting_clients(self) -> Iterator[tuple[str, int]]:
        """Clients with waiting requests, and how many each has."""
        return ((client, len(them)) for client, them in self._queues.waiting_by_client.items())

    @property
    def num_waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queues.waiting)

    @property
    def running(self) -> list[RequestState]:
        """Requests with blocks that are in no step and not in this batch, in the order of admission."""
        return [state for state in self._queues.running.values() if not state.num_in_step]

    @property
    def all_running(self) -> Iterator[RequestState]:
        """Requests with blocks, in a step or not, in the order of admission."""
        return iter(self._queues.running.values())

    @property
    def num_running(self) -> int:
        """Number of running requests and samples, in a step or not, with the samples that are still to be forked."""
        return len(self._queues.running) + self._queues.num_to_fork

    def may_run(self, state: RequestState, max_requests: int) -> bool:
        """Whether a request with all its samples may run beside the others within ``max_requests``, or none runs yet."""
        num = self.num_running
        return num == 0 or num + 1 + state.num_to_fork <= max_requests

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return self._cache.num_free

    @property
    def swapped(self) -> list[RequestState]:
        """Requests whose blocks are on the host, in the order of arrival."""
        return sorted(self._queues.swapped.values(), key=lambda each: each.number)

    @property
    def num_swapped(self) -> int:
        """Number of swapped-out requests."""
        return len(self._queues.swapped)

    def blocks_of(self, num_tokens: int) -> int:
        """Number of blocks for so many tokens."""
        return -(-num_tokens // self.block_tokens)

    def num_left(self, state: RequestState) -> int:
        """Number of tokens of a request that are still to be computed: those that are not in the KV cache."""
        return state.num_tokens - (state.num_computed if state.blocks else self._num_there(state))

    def num_cached(self, state: RequestState) -> int:
        """Prefix hits: number of tokens of a waiting request that are in the KV cache.

        Its last token is never counted: it has to be computed to generate the next one.
        """
        return len(self._hits(state)) * self.block_tokens

    def num_new_blocks(self, state: RequestState, num_tokens: int) -> int:
        """Number of free blocks that a request needs to have blocks for the first ``num_tokens`` of its sequence.

        For a swapped-out request, this includes the blocks that it needs to be swapped in by itself.
        """
        if state.blocks:
            num = max(0, self.blocks_of(num_tokens) - len(state.blocks))
            return num + self._is_to_copy(state) if state.samples else num
        if state.host_blocks:
            return max(self.blocks_of(num_tokens), len(state.host_blocks))
        hits = self._hits(state)
        return self.blocks_of(num_tokens) - self._cache.num_held(hits)

    def _is_to_copy(self, state: RequestState) -> bool:
        """Whether one that runs writes next in a block that others have, too, as only samples may."""
        place = state.num_computed // self.block_tokens
        return place < len(state.blocks) and self._cache.ref_count(state.blocks[place]) > 1

    def _num_there(self, state: RequestState) -> int:
        """Tokens in the cache of a request that does not run."""
        return state.num_computed if state.host_blocks else self.num_cached(state)

    def _hits(self, state: RequestState) -> list[int]:
        if not state.request.reads_cache:
            return []
        return self._cache.find(self._keys.of(state, (state.num_tokens - 1) // self.block_tokens))

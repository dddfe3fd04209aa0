"""A batch while a policy makes it.

What a request finds in the cache, and whether there is room for it, depends on what the same decision gave to others.
So a policy makes its batch piece by piece: each piece is carried out on the instance's queues and cache at once, and
written down. What was written down is the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from trainyard.serve.batch import Batch, CacheOp, Launch, WorkItem
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.errors import ServeError
from trainyard.serve.queues import Queues
from trainyard.serve.request_state import RequestState

__all__ = ["BatchDraft"]


class BatchDraft:
    """What a policy sees of an instance, and what it does there.

    Attributes
    ----------
    now_s : the time.
    arrived : requests that came since the last decision, in this order; they are among those that wait, too.
    block_tokens, num_blocks : of the cache.
    refused : requests that are not served, and why.
    """

    def __init__(
        self,
        now_s: float,
        arrived: Sequence[RequestState],
        queues: Queues,
        cache: BlockCache,
        keys: BlockKeys,
    ) -> None:
        self.now_s, self.arrived = now_s, arrived
        self.block_tokens, self.num_blocks = cache.block_tokens, cache.num_blocks
        self._queues, self._cache, self._keys = queues, cache, keys
        self._items: dict[int, WorkItem] = {}
        self._ops: list[CacheOp] = []
        self._preempted: list[int] = []
        self.refused: list[tuple[RequestState, str]] = []

    @property
    def waiting(self) -> Iterator[RequestState]:
        """Requests without blocks: those that were preempted, the last one first, and the others as they arrived."""
        return iter(self._queues.waiting.values())

    @property
    def first_waiting(self) -> RequestState | None:
        """The first of those that wait."""
        return next(self.waiting, None)

    def waits(self, state: RequestState) -> bool:
        """Whether a request waits."""
        return state.number in self._queues.waiting

    def waiting_of(self, client: str) -> Iterator[RequestState]:
        """Those of one client."""
        return iter(self._queues.waiting_by_client[client].values())

    @property
    def waiting_clients(self) -> Iterator[tuple[str, int]]:
        """Clients of which requests wait, and how many of each."""
        return ((client, len(them)) for client, them in self._queues.waiting_by_client.items())

    @property
    def num_waiting(self) -> int:
        """How many requests have no blocks."""
        return len(self._queues.waiting)

    @property
    def running(self) -> list[RequestState]:
        """Requests with blocks that are in no step and not in this batch, as they were admitted."""
        return [state for state in self._queues.running.values() if not state.num_in_step]

    @property
    def num_running(self) -> int:
        """How many requests have blocks, in whatever step they are."""
        return len(self._queues.running)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self._cache.num_free

    @property
    def computed(self) -> list[RequestState]:
        """Requests that are in this batch."""
        return [self._queues.running[number] for number in self._items]

    @property
    def items(self) -> Collection[WorkItem]:
        """What is in this batch."""
        return self._items.values()

    def blocks_of(self, num_tokens: int) -> int:
        """How many blocks so many tokens fill."""
        return -(-num_tokens // self.block_tokens)

    def num_left(self, state: RequestState) -> int:
        """Tokens of a request that are to be computed, after those that are in the cache."""
        return state.num_tokens - (state.num_computed if state.blocks else self.num_cached(state))

    def num_cached(self, state: RequestState) -> int:
        """Tokens of a request that waits which are in the cache.

        Its last token is never among them: it has to be computed, since that gives the next one.
        """
        return len(self._hits(state)) * self.block_tokens

    def num_to_take(self, state: RequestState, num_tokens: int) -> int:
        """How many blocks will no longer be free when a request has room for so many tokens of its sequence."""
        if state.blocks:
            return max(0, self.blocks_of(num_tokens) - len(state.blocks))
        hits = self._hits(state)
        return self.blocks_of(num_tokens) - self._cache.num_held(hits)

    def compute(self, state: RequestState, num_tokens: int, room_tokens: int = 0) -> bool:
        """The next tokens of a request are computed.

        Parameters
        ----------
        num_tokens : how many, after those that are in the cache.
        room_tokens : it gets blocks for so many tokens of its sequence; by default, for those that are computed.

        Returns
        -------
        Whether there are blocks for that. If not, nothing changes.

        Raises
        ------
        ServeError
            If it has not so many tokens left, or is in a step.
        """
        start = state.num_computed if state.blocks else self.num_cached(state)
        stop = start + num_tokens
        if num_tokens < 1 or stop > state.num_tokens or state.num_in_step:
            raise ServeError(
                f"request {state.request.name!r}: {num_tokens} tokens are to be computed; it has "
                f"{state.num_tokens - start} left, of which {state.num_in_step} are in a step"
            )
        num = max(0, self.blocks_of(max(stop, room_tokens)) - len(state.blocks))
        if self.num_to_take(state, max(stop, room_tokens)) > self.num_free:
            return False
        if not state.blocks:
            num -= self._admit(state)
        if num > 0:
            blocks = self._cache.next_free(num)
            self._cache.take(blocks)
            state.blocks.extend(blocks)
            self._ops.append(CacheOp("take", state.number, tuple(blocks)))
        state.num_in_step = num_tokens
        self._items[state.number] = WorkItem(state.number, start, stop)
        return True

    def preempt(self, state: RequestState) -> None:
        """A request loses its blocks and waits before all others; its tokens will be computed once more.

        Raises
        ------
        ServeError
            If it has none, or is in a step that is under way.
        """
        if not state.blocks or (state.num_in_step and state.number not in self._items):
            raise ServeError(
                f"request {state.request.name!r} is to be preempted; allowed are requests that run and are in no step"
            )
        self._items.pop(state.number, None)
        self._give_back(state)
        state.num_computed = state.num_in_step = 0
        state.num_preemptions += 1
        self._queues.wait_again(state)
        self._preempted.append(state.number)

    def refuse(self, state: RequestState, why: str) -> None:
        """A request that waits is not served.

        Raises
        ------
        ServeError
            If it does not wait.
        """
        if not self.waits(state):
            raise ServeError(
                f"request {state.request.name!r} is to be refused; allowed are requests that wait"
            )
        self._queues.leave(state)
        self.refused.append((state, why))

    def batch(self) -> Batch:
        """What was done."""
        launches = (Launch(tuple(self._items.values())),) if self._items else ()
        refused = tuple((state.number, why) for state, why in self.refused)
        return Batch(launches, tuple(self._ops), tuple(self._preempted), refused)

    def _admit(self, state: RequestState) -> int:
        """A request that waits shares the blocks that it finds; returns how many."""
        hits = self._hits(state)
        self._queues.admit(state)
        if state.scheduled_s != state.scheduled_s:  # NaN: for the first time
            state.scheduled_s, state.num_hits = self.now_s, len(hits) * self.block_tokens
        state.num_computed = len(hits) * self.block_tokens
        if hits:
            self._cache.share(hits)
            state.blocks.extend(hits)
            self._ops.append(CacheOp("share", state.number, tuple(hits)))
        return len(hits)

    def _give_back(self, state: RequestState) -> None:
        blocks = tuple(reversed(state.blocks))  # its beginning is what others may share: it is lost last
        self._cache.give_back(blocks)
        self._ops.append(CacheOp("give back", state.number, blocks))
        state.blocks.clear()

    def _hits(self, state: RequestState) -> list[int]:
        return self._cache.find(self._keys.of(state, (state.num_tokens - 1) // self.block_tokens))

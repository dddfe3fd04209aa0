"""A batch while a policy makes it.

What a request finds in the cache, and whether there is room for it, depends on what the same decision gave to other
requests. So a policy makes its batch request by request: each change takes effect on the queues and the KV cache of the
instance at once, and is recorded. The record is the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trainyard.serve.batch import Batch, CacheOp, Layers, WaitReason, WorkItem
from trainyard.serve.cache.adapter_slots import AdapterSlots
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.draft_launches import error_of
from trainyard.serve.draft_weights import WeightsDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.queues import Queues
from trainyard.serve.request_move import copy_blocks
from trainyard.serve.request_state import RequestState

__all__ = ["BatchDraft"]

_NO_SLOT = "the next request needs another adapter; each of the {} on the device is of a running request"


class BatchDraft(WeightsDraft):
    """The batch that a policy makes on a replica, which it sees as it becomes.

    Attributes
    ----------
    now_s : the current time.
    arrived : requests that arrived since the last decision, in order; they are among the waiting ones, too.
    moved_in : requests that came from other instances since the last decision, in order; they are among the running
        ones, too.
    num_layers : layers of the model; None where steps are always of all layers.
    refused : requests that this decision refused, and why.
    """

    def __init__(
        self,
        now_s: float,
        arrived: Sequence[RequestState],
        queues: Queues,
        cache: BlockCache,
        keys: BlockKeys,
        adapters: AdapterSlots,
        num_layers: int | None = None,
        moved_in: Sequence[RequestState] = (),
    ) -> None:
        super().__init__(queues, cache, keys, adapters, num_layers)
        self.now_s, self.arrived, self.num_layers = now_s, arrived, num_layers
        self.moved_in = moved_in
        self._items = self._launches.items
        self._ops: list[CacheOp] = []
        self._preempted: list[int] = []
        self._wait_reason: WaitReason | None = None
        self.refused: list[tuple[RequestState, str]] = []

    def group(self, state: RequestState) -> list[RequestState]:
        """A request with its other samples in the same place: those that run and are in no step, or are swapped out."""
        if not state.samples:
            return [state]
        there = self._queues.swapped if state.host_blocks else self._queues.running
        return [each for each in state.samples if each.number in there and not self._is_under_way(each)]

    @property
    def computed(self) -> list[RequestState]:
        """Requests that are in this batch."""
        return [self._queues.running[number] for number in self._items]

    @property
    def items(self) -> Collection[WorkItem]:
        """The items of this batch."""
        return self._items.values()

    @property
    def has_preempted(self) -> bool:
        """Whether this batch preempts a request."""
        return bool(self._preempted)

    def compute(
        self,
        state: RequestState,
        num_tokens: int,
        reserve_tokens: int = 0,
        layers: Layers = None,
    ) -> bool:
        """Put the next tokens of a request in the batch, and allocate blocks for them; a waiting request is admitted.

        If the request writes in a shared block, it gets a copy of that block.

        Parameters
        ----------
        num_tokens : how many, after those that are in the KV cache.
        reserve_tokens : allocate blocks for the first so many tokens of its sequence; by default for the computed ones.
        layers : the first layer that they go through in this step, and the one after the last; by default all that are
            left. The first one is ``state.num_layers_done``. Tokens that went through some go through the others before
            other tokens of the request.

        Returns
        -------
        Whether there are enough free blocks, and a slot for its adapter. If not, nothing changes.

        Raises
        ------
        ServeError
            If fewer tokens are left, the request is in a step or swapped out, these layers are not its next ones, or the
            policy unloaded weights that they need.
        """
        start = state.num_computed if state.blocks else self._num_there(state)
        stop = start + num_tokens
        if num_tokens < 1 or stop > state.num_tokens or state.num_in_step or state.host_blocks:
            where = "; it is swapped out" if state.host_blocks else ""
            raise ServeError(
                f"request {state.request.name!r}: {num_tokens} tokens are to be computed; it has "
                f"{state.num_tokens - start} left, of which {state.num_in_step} are in a step{where}"
            )
        if layers is not None or state.num_layers_done:
            layers = self._launches.next_layers(state, num_tokens, layers)
        if not self._take_blocks(state, start, stop, max(stop, reserve_tokens)):
            return False
        state.num_in_step = num_tokens
        self._items[state.number] = WorkItem(state.number, start, stop)
        if layers is not None:
            self._launches.layers[state.number] = layers
        if self._adapters.absent:
            self._require_weights(state)
        return True

    def compute_backward(self, state: RequestState, start: int, stop: int, layers: Layers = None) -> None:
        """Let gradients of tokens of a request that trains go back through layers, from the last one to the first.

        All its tokens went forward before. A token goes back after later tokens of the request, which attend to it, and
        through a layer after the layers above it: some last tokens through all layers, or all tokens through some last
        layers, as `RequestState.backward_starts` says. Nothing is allocated. What is kept for it beside the KV cache
        (activations) is not counted in the memory of the device; `reserve_tokens` of `compute` can keep blocks for it.

        Parameters
        ----------
        start, stop : range of the tokens, without ``stop``.
        layers : the first layer that they go back through in this step, and the one after the last; by default all.

        Raises
        ------
        ServeError
            If the request does not train, is in a step or did not go forward as a whole, other tokens or layers are next,
            or the policy unloaded weights that they need.
        """
        self._launches.go_back(state, start, stop, layers)
        state.num_in_step = stop - start
        if self._adapters.absent:
            self._require_weights(state)

    def preempt(self, state: RequestState, *, to_back: bool = False) -> None:
        """Free the blocks of a running request, which waits again; its tokens will be computed again.

        Parameters
        ----------
        to_back : whether it waits after all others; by default it waits before them.

        Raises
        ------
        ServeError
            If it has no blocks, or is in a step.
        """
        self._stop(state, "preempted")
        self._free(state)
        state.num_computed, state.num_prefill_tokens = 0, state.num_tokens
        self._queues.wait_again(state, to_back=to_back)

    def swap_out(self, states: Sequence[RequestState]) -> bool:
        """Move the blocks of running requests to the host, together.

        Parameters
        ----------
        states : the requests; blocks that they share are copied once.

        Returns
        -------
        Whether there are enough free blocks on the host. If not, nothing changes.

        Raises
        ------
        ServeError
            If one of them has no blocks on the device, is in a step, or trains: what it went forward for is not in blocks
            alone.
        """
        for each in states:
            if each.request.trains:
                raise error_of(each, "swapped out; allowed are requests that do not train; preempt it")
        if not self._has_room(states, out=True):
            return False
        for each in states:
            self._stop(each, "swapped out")
        self._swap(states, out=True)
        return True

    def swap_in(self, states: Sequence[RequestState]) -> bool:
        """Move the blocks of swapped-out requests back to the device, together.

        Parameters
        ----------
        states : sequences of one request; blocks that they share are copied once.

        Returns
        -------
        Whether there are enough free blocks, and a slot for their adapter. If not, nothing changes.

        Raises
        ------
        ServeError
            If one of them is not swapped out.
        """
        for each in states:
            if not each.host_blocks:
                raise error_of(each, "swapped in; allowed are requests that are swapped out")
        if not self._has_room(states, out=False) or not self._may_use_adapter(states[0]):
            return False
        self._use_adapter(states[0])
        self._swap(states, out=False)
        return True

    def explain_wait(self, text: str, *numbers: float) -> None:
        """Say why no further waiting request is in this batch; what was said last counts.

        Parameters
        ----------
        text : with a place for each number, such as ``"needs {} blocks"``; it is formatted only when it is shown.
        """
        self._wait_reason = WaitReason(text, numbers)

    def refuse(self, state: RequestState, why: str) -> None:
        """Refuse a waiting request: it is not served.

        Raises
        ------
        ServeError
            If it does not wait.
        """
        if not all(map(self.waits, state.sequences)):
            raise error_of(state, "refused; allowed are requests that wait")
        for each in state.sequences:
            self._queues.leave(each)
        self.refused.append((state, why))

    def split_samples(self) -> None:
        """Fork new requests with several samples at once: each sample computes the prompt by itself."""
        if not any(each.num_to_fork for each in self.arrived):
            return
        for state in self.arrived:
            self._queues.leave(state)
            state.fork()
        self.arrived = [each for state in self.arrived for each in state.sequences]
        for each in self.arrived:
            self._queues.arrive(each)

    def batch(self) -> Batch:
        """The batch that was made."""
        refused = tuple((state.number, why) for state, why in self.refused)
        reason = None
        if self._queues.waiting:
            reason = (
                WaitReason(_NO_SLOT, (self._adapters.num or 0,)) if self._lacks_slot else self._wait_reason
            )
        return Batch(
            self._launches.launches(),
            tuple(self._ops),
            tuple(self._preempted),
            refused,
            tuple(self._weight_ops),
            wait_reason=reason,
        )

    def _take_blocks(self, state: RequestState, start: int, stop: int, num_tokens: int) -> bool:
        """Allocate blocks for the first tokens of a request; one that waits is admitted, with the blocks that it finds.

        Parameters
        ----------
        start, stop : range of the tokens that the batch computes.
        num_tokens : how many tokens have blocks then.

        Returns
        -------
        Whether there are enough free blocks, and a slot for its adapter. If not, nothing changes.
        """
        if num_tokens <= len(state.blocks) * self.block_tokens and not state.samples:
            return True  # as most steps of a decode: the block of the token before has room
        num = max(0, self.blocks_of(num_tokens) - len(state.blocks))
        if self.num_new_blocks(state, num_tokens) > self.num_free:
            return False
        if not state.blocks:
            if not self._may_use_adapter(state):
                return False
            num -= self._share_hits(state)
        elif state.samples and self._is_to_copy(state):
            self._copy(state, start // self.block_tokens)
        if num > 0:
            blocks = self._cache.next_free(num)
            self._cache.allocate(blocks)
            state.blocks.extend(blocks)
            self._ops.append(CacheOp("allocate", state.number, tuple(blocks)))
        return True

    def _admit(self, state: RequestState, num_cached: int) -> None:
        """A request that waits runs from now on; so many of its tokens are in the KV cache."""
        self._use_adapter(state)
        self._queues.admit(state)
        if state.scheduled_s != state.scheduled_s:  # NaN: for the first time
            state.scheduled_s, state.num_cached_tokens = self.now_s, num_cached
        state.num_computed = num_cached

    def _share_hits(self, state: RequestState) -> int:
        """A request that waits is admitted and shares the blocks that it finds; returns how many."""
        hits = self._hits(state)
        self._admit(state, len(hits) * self.block_tokens)
        if hits:
            self._cache.share(hits)
            state.blocks.extend(hits)
            self._ops.append(CacheOp("share", state.number, tuple(hits)))
        return len(hits)

    def _free(self, state: RequestState) -> None:
        blocks = tuple(reversed(state.blocks))  # its beginning is what others may share: it is lost last
        self._cache.free(blocks)
        self._ops.append(CacheOp("free", state.number, blocks))
        state.blocks.clear()

    def _has_room(self, states: Sequence[RequestState], out: bool) -> bool:
        """Whether there are free blocks for the blocks of some requests, on the host or on the device."""
        to = self._cache.host if out else self._cache
        held = {block for each in states for block in (each.blocks if out else each.host_blocks)}
        return to is not None and len(held) <= to.num_free

    def _swap(self, states: Sequence[RequestState], out: bool) -> None:
        """Blocks of some requests are copied to the host or back, and the copies are in their place."""
        device, host = self._cache, self._cache.host
        assert host is not None
        before, after = (device, host) if out else (host, device)
        held = [each.blocks if out else each.host_blocks for each in states]
        for each, blocks, copies in zip(states, held, copy_blocks(held, before, after), strict=True):
            before.free(blocks[::-1])
            op = CacheOp("swap out", each.number, tuple(blocks), "device", tuple(copies), "host")
            if out:
                each.blocks, each.host_blocks = [], copies
                self._queues.swap_out(each)
            else:
                op = op._replace(kind="swap in", tier="host", to_tier="device")
                each.blocks, each.host_blocks = copies, []
                self._queues.swap_in(each)
            self._ops.append(op)

    def _copy(self, state: RequestState, place: int) -> None:
        """Give a request a copy of a block that others have, too."""
        block = state.blocks[place]
        copy = self._cache.allocate_copies([block], self._cache)[block]
        self._cache.free([block])
        state.blocks[place] = copy
        self._ops.append(CacheOp("copy", state.number, (block,), to=(copy,)))

    def _stop(self, state: RequestState, what: str) -> None:
        """A request that runs is no longer in this batch."""
        if not state.blocks or self._is_under_way(state):
            raise error_of(state, f"{what}; allowed are requests that run and are in no step")
        self._launches.drop(state.number)
        state.num_in_step = state.num_layers_done = state.num_half_computed = 0
        state.backward_starts = ()
        state.num_preemptions += 1
        self._preempted.append(state.number)

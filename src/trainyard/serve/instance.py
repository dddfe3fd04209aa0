"""An instance: one replica of a model, with its KV cache and the requests that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import Batch, CacheOp, WeightOp, WorkItem
from trainyard.serve.cache.adapter_slots import AdapterSlots
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError, check_max_model_len, require_at_least
from trainyard.serve.policy import BatchPolicy, StoppingPolicy, TrainingPolicy
from trainyard.serve.queues import Queues
from trainyard.serve.request_move import RequestMove
from trainyard.serve.request_state import RequestState

__all__ = ["Instance"]

Ints = NDArray[np.int64]

_NOTHING = Batch()

Generated = Callable[[RequestState], tuple[int | None, bool]]
"""Takes a request; returns the token that it generates (None if ids are not known), and whether it is the last one."""


class Instance:
    """The requests and the KV cache of one replica. It keeps no time: the caller says when a step ends.

    Parameters
    ----------
    policy : makes its batches.
    cache : its KV cache.
    max_model_len : the longest sequence, in tokens; by default what the KV cache has room for.
    num_stages : pipeline stages; so many batches may be in the pipeline at once.
    prefix_caching : whether requests reuse blocks of the KV cache with the same tokens; if not, each computes all of its
        tokens.
    max_loras : adapters that are on its devices at once, where others are loaded from the host; by default all.
    num_layers : layers of the model, if a step may be of some of them; None if each is of all.

    Attributes
    ----------
    refused : requests that the last decision refused, and why.
    arriving : requests that come from other instances, and for whose blocks there was no room yet.
    moves : requests whose blocks come, since the last decision.
    num_expected : requests that will be handed over to it.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        cache: BlockCache,
        max_model_len: int | None = None,
        *,
        num_stages: int = 1,
        prefix_caching: bool = True,
        max_loras: int | None = None,
        num_layers: int | None = None,
    ) -> None:
        self._prefix_caching = prefix_caching
        self.num_stages = num_stages
        require_at_least(self, 1, "num_stages")
        self.num_layers = num_layers if num_stages == 1 else None
        if num_stages > 1 and isinstance(policy, StoppingPolicy):
            raise ServeError("the policy stops steps, which pipeline stages do not; use one stage")
        room = cache.num_blocks * cache.block_tokens
        if max_model_len is not None:
            check_max_model_len(max_model_len, room)
        self.max_model_len = max_model_len or room
        self.policy, self.cache, self.queues = policy, cache, Queues()
        self._keys, self._adapters = BlockKeys(cache.block_tokens), AdapterSlots(max_loras, self.num_layers)
        self._state: Any = policy.start()
        self._arrived: list[RequestState] = []
        self.refused: list[tuple[RequestState, str]] = []
        self._has_stopped = self._has_training = False
        self.arriving: list[RequestMove] = []
        self.moves: list[RequestMove] = []
        self.num_expected = 0

    @property
    def num_requests(self) -> int:
        """Requests and samples that it has, or will have by their routes."""
        return self.queues.num_requests + self.num_expected

    def arrive(self, state: RequestState) -> str:
        """Queue a new request; return why it is refused, or "". Longer answers than the longest sequence are cut.

        Raises
        ------
        ServeError
            If it trains, and the policy, or a pipeline, lets no tokens go backward.
        """
        prompt, most = state.request.prompt_tokens, self.max_model_len
        if state.request.trains:
            self._begin_training(state)
        if prompt > (most if state.request.trains else most - 1):
            return f"a prompt of {prompt} tokens; prompt and answer have at most {most}"
        state.max_num_tokens = min(state.max_num_tokens, most)
        self.queues.arrive(state)
        self._arrived.append(state)
        return ""

    def cancel(self, state: RequestState, now_s: float) -> None:
        """Serve a request no longer, with all its samples: they end as they are, and their blocks are free.

        Parameters
        ----------
        state : the request, or any of its samples; none is in a step.
        """
        for each in state.sequences:
            if not each.is_finished:
                self.end(each, now_s)

    def end(self, state: RequestState, now_s: float) -> None:
        """End one sequence as it is, such as a sample; it is in no step."""
        if state in self._arrived:
            self._arrived.remove(state)
        self._release(state)
        self.queues.leave(state)
        state.finished_s = now_s

    def decide(self, now_s: float) -> Batch:
        """Let the policy make the next batch. Its cache operations are done at once, and its items are in a step."""
        self.moves = []
        moved = self._begin_moves() if self.arriving else _NOTHING
        draft = BatchDraft(
            now_s,
            self._arrived,
            self.queues,
            self.cache,
            self._keys,
            self._adapters,
            self.num_layers,
            [state for each in self.moves for state in each.states],
        )
        self._arrived = []
        self.policy.decide(draft, self._state)
        self.refused = draft.refused
        batch = draft.batch()
        if self.moves or self._has_stopped:
            batch = replace(
                batch,
                cache_ops=moved.cache_ops + batch.cache_ops,
                weight_ops=moved.weight_ops + batch.weight_ops,
                stops_step=self._has_stopped,
            )
            self._has_stopped = False
        return batch

    def stops_for(self, arrived: RequestState, batch: Batch) -> bool:
        """Whether the policy stops the step that runs for a request that arrives."""
        if not isinstance(self.policy, StoppingPolicy):
            return False
        computed = [self.queues.running[item.request] for item in batch.items]
        return self.policy.stops(arrived, computed, self._state)

    def stop(self, batch: Batch) -> Batch:
        """Stop a step, so that none of its items is computed; return what was carried out of its batch."""
        for item in batch.items:
            self.queues.running[item.request].num_in_step = 0
        self._has_stopped = True
        return replace(batch, launches=())

    def move_out(self, states: Sequence[RequestState], number: int) -> RequestMove:
        """Let requests go that are in no step; their blocks stay until the hand-over ends.

        Parameters
        ----------
        states : sequences of one request.
        number : of this instance.
        """
        for each in states:
            self.queues.leave(each)
        return RequestMove(tuple(states), number, self.cache, tuple(tuple(each.blocks) for each in states))

    def move_in(self, request_move: RequestMove) -> None:
        """Let a request of another instance go on here as soon as there is room."""
        self.arriving.append(request_move)

    def _begin_moves(self) -> Batch:
        """Blocks of requests come, in the order of these, as far as there is room."""
        ops, weight_ops = list[CacheOp](), list[WeightOp]()
        running = self.queues.running_by_adapter
        while self.arriving and self.arriving[0].num_blocks <= self.cache.num_free:
            adapter = self.arriving[0].states[0].request.adapter
            if not self._adapters.has_room(adapter, running):
                break
            weight_ops += self._adapters.use(adapter, running)
            request_move = self.arriving.pop(0)
            ops += request_move.begin(self.cache)
            for state in request_move.states:
                self.queues.move_in(state)
            self.num_expected -= len(request_move.states)
            self.moves.append(request_move)
        return Batch(cache_ops=tuple(ops), weight_ops=tuple(weight_ops))

    def max_repeats(self, batch: Batch, most: int) -> int:
        """How often in a row the policy would decide on the same batch, if no request arrives and none ends meanwhile.

        Parameters
        ----------
        most : the largest answer.
        """
        repeats, queues = self.policy.repeats, self.queues
        if (
            most < 2
            or self.num_stages > 1
            or repeats == "never"
            or batch.preempted
            or batch.weight_ops
            or len(batch.launches) > 1
            or batch.launches[0].layers
            or batch.copies  # what is swapped in leaves room for others to come; and copies take their time once
            or len(batch.items) < len(queues.running)
        ):
            return 1
        if repeats != "always" and queues.waiting:
            return 1
        size, room = self.cache.block_tokens, []
        for number, start, stop in batch.items:
            state = queues.running[number]
            if stop - start > 1 or not state.decodes:
                return 1
            room.append(len(state.blocks) * size - stop)
        return _most_steps(np.array(room), size, self.cache.num_free, most)

    def repeated(self, batch: Batch, num: int) -> Batch:
        """The batch, repeated so often in a row; the blocks for that are allocated."""
        if num == 1:
            return batch
        size, lacking = self.cache.block_tokens, []
        for place, (number, _, stop) in enumerate(batch.items):
            room = len(self.queues.running[number].blocks) * size - stop
            lacking += [(step, place, number) for step in range(room + 1, num, size)]
        blocks = self.cache.next_free(len(lacking))
        self.cache.allocate(blocks)
        ops = []
        for (_, _, number), block in zip(sorted(lacking), blocks, strict=True):
            self.queues.running[number].blocks.append(block)
            ops.append(CacheOp("allocate", number, (block,)))
        return replace(batch, cache_ops=(*batch.cache_ops, *ops), repeat=num)

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        """End a step, or the last one of a repeated batch; return the finished requests, which leave."""
        running, size = self.queues.running, self.cache.block_tokens
        done = self._gone_backward(batch) if self._has_training else []
        before = batch.repeat - 1
        for number, _, stop in self._computed(batch):
            state = running[number]
            full = state.num_computed // size
            state.num_computed, state.num_in_step = stop + before, 0
            state.num_tokens += before
            state.num_generated += before
            if self._prefix_caching and state.num_computed // size > full:
                keys = self._keys.of(state, state.num_computed // size)
                for place in range(full, len(keys)):
                    self.cache.register(state.blocks[place], keys[place])
            if state.num_computed < state.num_tokens:
                continue
            token, is_last = generated(state)
            state.num_tokens += 1
            state.num_generated += 1
            if state.num_generated == 1:
                state.first_token_s = now_s
                if state.num_to_fork:
                    done += self._fork(state, now_s, generated)
            if token is not None and state.request.prompt_ids:  # else nothing before it is known
                state.tokens.append(token)
            if is_last:
                done.append(state)
        for state in done:
            state.finished_s = now_s
            self._release(state)
            self.queues.leave(state)
        return done

    def _computed(self, batch: Batch) -> Sequence[WorkItem]:
        """The items that have gone through all layers; others are half computed."""
        if len(batch.launches) == 1 and batch.launches[0].layers is None and not self._has_training:
            return batch.items
        found = list[WorkItem]()
        for launch in batch.launches:
            if launch.direction == "backward":
                continue
            if launch.layers is None or launch.layers[1] == self.num_layers:
                found += launch.items
                done, is_half = 0, False
            else:
                done, is_half = launch.layers[1], True
            for number, start, stop in launch.items:
                state = self.queues.running[number]
                state.num_layers_done, state.num_in_step = done, 0
                state.num_half_computed = stop - start if is_half else 0
        return [item for item in found if not self._trained_forward(item)] if self._has_training else found

    def _begin_training(self, state: RequestState) -> None:
        """A request comes that trains."""
        policy = self.policy
        if not (isinstance(policy, TrainingPolicy) and policy.trains) or self.num_stages > 1:
            raise ServeError(
                f"request {state.request.name!r} trains its adapter, and the policy or the pipeline of this replica only "
                "goes forward; use a policy that says trains = True, and one stage"
            )
        self._has_training = True
        # Nobody finds blocks by these keys: all of its tokens go forward, and nobody gets what they leave.
        num_full = state.num_tokens // self.cache.block_tokens
        state.keys = [(None, state.number, place) for place in range(num_full)]

    def _trained_forward(self, item: WorkItem) -> bool:
        """Whether tokens that are computed are of a request that trains: they may go backward when all are."""
        state = self.queues.running[item.request]
        if state.request.trains:
            state.num_computed, state.num_in_step = item.stop, 0
            if item.stop == state.num_tokens:
                state.backward_starts = (item.stop,) * (self.num_layers or 1)
        return state.request.trains

    def _gone_backward(self, batch: Batch) -> list[RequestState]:
        """Take note of tokens that went backward; returns the requests whose tokens all did, through all layers."""
        done = []
        for launch in batch.launches:
            for number, start, _ in launch.items if launch.direction == "backward" else ():
                state = self.queues.running[number]
                starts = list(state.backward_starts)
                for layer in range(*(launch.layers or (0, len(starts)))):
                    starts[layer] = start
                state.backward_starts, state.num_in_step = tuple(starts), 0
                if not any(starts):
                    done.append(state)
        return done

    def _release(self, state: RequestState) -> None:
        """Free its blocks, last one first."""
        self.cache.free(state.blocks[::-1])
        state.blocks.clear()
        if state.host_blocks and self.cache.host is not None:
            self.cache.host.free(state.host_blocks[::-1])
            state.host_blocks.clear()

    def _fork(self, state: RequestState, now_s: float, generated: Generated) -> list[RequestState]:
        """A prompt is computed: its other samples get their first tokens, too; returns those that have all of theirs."""
        others, done = state.fork(), []
        blocks = state.blocks[: -(-state.num_computed // self.cache.block_tokens)]
        self.queues.fork(state, others)
        for each in others:
            self.cache.share(blocks)
            each.blocks = list(blocks)
            token, is_last = generated(each)
            each.num_tokens += 1
            each.num_generated, each.first_token_s = 1, now_s
            if token is not None and each.request.prompt_ids:
                each.tokens.append(token)
            if is_last:
                done.append(each)
        return done


def _most_steps(room: Ints, block_tokens: int, num_free: int, most: int) -> int:
    """How many steps in a row there are free blocks for, at most so many.

    Parameters
    ----------
    room : tokens for which each request has room after the first step.
    """

    def lacking(num: int) -> int:
        return int(np.maximum(0, -((room - (num - 1)) // block_tokens)).sum())

    least = 1
    if lacking(most) <= num_free:
        return most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if lacking(middle) <= num_free else (least, middle)
    return least

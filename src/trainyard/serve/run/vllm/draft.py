"""A draft on the KV cache of vLLM, which allocates the blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.request import Request

from trainyard.serve.batch import CacheOp
from trainyard.serve.cache.adapter_slots import AdapterSlots
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.block_keys import BlockKeys
from trainyard.serve.draft import BatchDraft
from trainyard.serve.queues import Queues
from trainyard.serve.request_state import RequestState

__all__ = ["VllmCache", "VllmDraft"]


class VllmCache(BlockCache):
    """The KV cache of vLLM, of which a draft asks how many blocks are free; there are none on the host.

    Parameters
    ----------
    manager : that keeps the blocks.
    block_tokens : tokens per block.
    """

    def __init__(self, manager: KVCacheManager, block_tokens: int) -> None:
        super().__init__(manager.block_pool.num_gpu_blocks - 1, block_tokens)  # block 0 stands for none
        self.manager = manager

    @property
    def num_free(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())


class VllmDraft(BatchDraft):
    """A draft whose blocks vLLM allocates, finds and frees.

    Blocks that a batch fills can be found from the next batch on, as in an instance.

    Parameters
    ----------
    now_s, arrived, queues : as of `BatchDraft`.
    requests : of vLLM, by number.
    cache : of vLLM.
    admits : whether requests that wait may be computed.
    preempt : lets vLLM free the blocks of a request.

    Attributes
    ----------
    new_blocks : what each request of the batch got, by number.
    """

    def __init__(
        self,
        now_s: float,
        arrived: Sequence[RequestState],
        queues: Queues,
        requests: Mapping[int, Request],
        cache: VllmCache,
        admits: bool,
        preempt: Callable[[Request], None],
    ) -> None:
        super().__init__(now_s, arrived, queues, cache, BlockKeys(cache.block_tokens), AdapterSlots())
        self._requests, self._manager = requests, cache.manager
        self._admits, self._preempt = admits, preempt
        self.new_blocks: dict[int, KVCacheBlocks] = {}

    def num_cached(self, state: RequestState) -> int:
        return int(self._manager.get_computed_blocks(self._requests[state.number])[1])

    def num_new_blocks(self, state: RequestState, num_tokens: int) -> int:
        num = self.blocks_of(num_tokens)
        if state.blocks:
            return max(0, num - len(state.blocks))
        hits = self._manager.get_computed_blocks(self._requests[state.number])[0]
        return num - sum(bool(block.ref_cnt) for block in hits.blocks[0])

    def _take_blocks(self, state: RequestState, start: int, stop: int, num_tokens: int) -> bool:
        if self.num_new_blocks(state, num_tokens) > self.num_free or not (state.blocks or self._admits):
            return False
        request, hits = self._requests[state.number], None
        if not state.blocks:
            hits = self._manager.get_computed_blocks(request)[0]
        new = self._manager.allocate_slots(
            request,
            stop - start,
            0 if hits is None else start,
            hits,
            num_lookahead_tokens=num_tokens - stop,
            delay_cache_blocks=True,
        )
        if new is None:
            return False
        if hits is not None:
            self._admit(state, start)
            self._hold("share", state, hits)
        self._hold("allocate", state, new)
        self.new_blocks[state.number] = new
        return True

    def _hold(self, kind: Literal["share", "allocate"], state: RequestState, blocks: KVCacheBlocks) -> None:
        ids = blocks.get_block_ids()[0]
        if ids:
            state.blocks.extend(ids)
            self._ops.append(CacheOp(kind, state.number, tuple(ids)))

    def _free(self, state: RequestState) -> None:
        self._ops.append(CacheOp("free", state.number, tuple(reversed(state.blocks))))
        state.blocks.clear()
        self.new_blocks.pop(state.number, None)
        self._preempt(self._requests[state.number])

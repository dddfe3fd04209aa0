"""Requests that go on at another instance: their blocks of the KV cache move there.

A request leaves an instance when its prompt is computed, if its route goes on. It keeps its blocks there until the next
instance has room for them and they have come. Where prompts and decodes are computed on different instances, neither
waits for the other: Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024; Zhong
et al., "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving", OSDI 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from trainyard.serve.batch import CacheOp
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.request_state import RequestState

__all__ = ["RequestMove", "copy_blocks"]


def copy_blocks(held: Sequence[Sequence[int]], before: BlockCache, after: BlockCache) -> list[list[int]]:
    """Hold copies of the blocks of some requests; blocks that they share are copied once.

    Parameters
    ----------
    held : the blocks of each request.
    before, after : the cache that they are in, and the one of the copies, which has room for them.

    Returns
    -------
    The copies of each request's blocks.
    """
    copy_of = after.allocate_copies(chain.from_iterable(held), before)
    shared, copies = set[int](), [[copy_of[block] for block in blocks] for blocks in held]
    for each in copies:
        after.share([copy for copy in each if copy in shared])
        shared.update(each)
    return copies


@dataclass(eq=False)
class RequestMove:
    """A request, with all its samples that go on, between two instances.

    Attributes
    ----------
    states : its sequences; while their blocks come, they are in a step.
    source, cache : number of the instance that it comes from, and the cache there, which has its blocks.
    held : blocks there of each sequence; what stands in the first ones moves.
    """

    states: tuple[RequestState, ...]
    source: int
    cache: BlockCache
    held: tuple[tuple[int, ...], ...]

    @property
    def num_blocks(self) -> int:
        """Number of blocks that move."""
        return len(set(chain.from_iterable(self._written)))

    @property
    def _written(self) -> list[tuple[int, ...]]:
        """The blocks of each sequence that have tokens."""
        size = self.cache.block_tokens
        return [
            blocks[: -(-state.num_computed // size)]
            for state, blocks in zip(self.states, self.held, strict=True)
        ]

    def begin(self, to: BlockCache) -> list[CacheOp]:
        """Allocate blocks for those that come; return the operations."""
        ops, written = [], self._written
        copies = copy_blocks(written, self.cache, to)
        for state, blocks, new in zip(self.states, written, copies, strict=True):
            state.blocks, state.num_in_step = new, 1
            ops.append(CacheOp("move", state.number, blocks, to=tuple(new), instance=self.source))
        return ops

    def end(self) -> None:
        """All blocks have come: those where they came from are freed, and the request goes on."""
        for state, blocks in zip(self.states, self.held, strict=True):
            self.cache.free(blocks[::-1])
            state.num_in_step = 0

"""A KV cache in blocks of tokens, which requests share where their prefixes are equal.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023. A request
has a list of blocks. A full block can be found by its key, which stands for all tokens from the beginning of a sequence
to the end of the block. A block that no request holds is free, but keeps its content and its key until it is allocated
again. So the least recently used content is lost first, unless another eviction order is given.

The host may have blocks, too, to which requests are swapped out (section 4.5): a second cache beside that of the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from trainyard.serve.cache.eviction import EvictionOrder, FreeBlocks, LeastRecentlyUsed
from trainyard.serve.errors import ServeError

__all__ = ["BlockCache"]


class BlockCache:
    """The blocks of a replica; its devices hold a part of each block.

    Parameters
    ----------
    num_host_blocks : blocks on the host; 0 if nothing is swapped out.
    eviction : the order in which free blocks are allocated.

    Attributes
    ----------
    num_blocks : number of blocks; they are numbered from 0.
    block_tokens : tokens per block.
    host : the blocks on the host; None if there are none.

    Raises
    ------
    ServeError
        If a number is too small.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        num_host_blocks: int = 0,
        eviction: EvictionOrder = LeastRecentlyUsed,
    ) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ServeError(
                f"a cache of {num_blocks} blocks of {block_tokens} tokens; allowed is 1 or more of both"
            )
        if num_host_blocks < 0:
            raise ServeError(f"a cache with {num_host_blocks} blocks on the host; allowed is 0 or more")
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self.host = BlockCache(num_host_blocks, block_tokens, 0, eviction) if num_host_blocks else None
        self._ref_counts: list[int] = []  # of the blocks that were ever used: the first ones
        self._free: FreeBlocks = eviction()
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return len(self._free) + self.num_blocks - len(self._ref_counts)

    def ref_count(self, block: int) -> int:
        """Number of requests that hold a block."""
        return self._ref_counts[block] if block < len(self._ref_counts) else 0

    def find(self, keys: Sequence[Hashable]) -> list[int]:
        """The blocks with these keys, up to the first key that is not in the cache."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def num_held(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are held by a request."""
        return sum(self.ref_count(block) > 0 for block in blocks)

    def next_free(self, num: int) -> list[int]:
        """The free blocks that are to be allocated next, in this order: first those that were never used.

        Raises
        ------
        ServeError
            If there are fewer free blocks.
        """
        if num > self.num_free:
            raise ServeError(
                f"{num} blocks are to be allocated; {self.num_free} of {self.num_blocks} are free"
            )
        num_used = len(self._ref_counts)
        found = list(range(num_used, min(num_used + num, self.num_blocks)))
        return found + self._free.first(num - len(found)) if len(found) < num else found

    def allocate(self, blocks: Sequence[int]) -> None:
        """Allocate the next free blocks to a request, for new tokens: their old content is lost."""
        for block in blocks:
            if block == len(self._ref_counts):
                self._ref_counts.append(1)
                continue
            self._free.remove(block)
            self._ref_counts[block] = 1
            key = self._key_of.pop(block, None)
            if key is not None and self._block_of.get(key) == block:
                del self._block_of[key]

    def share(self, blocks: Sequence[int]) -> None:
        """Let one more request hold blocks, for their content; they may be free before."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                self._free.remove(block)
            self._ref_counts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Let one request release blocks. Of those that become free, the first is allocated first."""
        ref_counts, add, key_of = self._ref_counts, self._free.add, self._key_of.get
        for block in blocks:
            ref_counts[block] -= 1
            if ref_counts[block] == 0:
                add(block, key_of(block))

    def register(self, block: int, key: Hashable) -> None:
        """Register a full block under its key, in place of any other block with the same key."""
        self._key_of[block] = key
        self._block_of[key] = block

    def forget(self) -> None:
        """Let no request find what is in any block, also on the host; requests keep the blocks that they hold."""
        self._key_of.clear()
        self._block_of.clear()
        for block in self._free.first(len(self._free)):
            self._free.remove(block)
            self._free.add(block, None)
        if self.host is not None:
            self.host.forget()

    def allocate_copies(self, blocks: Iterable[int], of: BlockCache) -> dict[int, int]:
        """Allocate free blocks for copies of other blocks, of this cache or of another one.

        Parameters
        ----------
        blocks : the blocks to copy; one that is given several times is copied once.
        of : the cache that they are in.

        Returns
        -------
        The new block of each. It is registered here under the same key, if there is one.
        """
        copied = list(dict.fromkeys(blocks))
        to = dict(zip(copied, self.next_free(len(copied)), strict=True))
        self.allocate(list(to.values()))
        for block, copy in to.items():
            key = of._key_of.get(block)
            if key is not None:
                self.register(copy, key)
        return to

"""A cache in blocks of tokens, which requests share where they begin alike.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023. A request
has a list of blocks. A block that is full can be found by its key, which stands for all tokens from the beginning of a
sequence to the end of the block. A block that nobody holds is free, but keeps what is in it, and its key, until it is
taken for something else. So what was given back longest ago is lost first, unless another order is given.

The host may have blocks, too, to which those of requests are swapped out (section 4.5): a cache of its own beside that of
the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from trainyard.serve.cache.eviction import EvictionOrder, FreeBlocks, LeastRecentlyUsed
from trainyard.serve.errors import ServeError

__all__ = ["BlockCache"]


class BlockCache:
    """Blocks of one device, or of one group of devices that hold parts of each block.

    Parameters
    ----------
    num_host_blocks : how many there are on the host; 0 where nothing is swapped out.
    eviction : in which order free blocks are taken.

    Attributes
    ----------
    num_blocks : how many there are; they are numbered from 0.
    block_tokens : how many tokens each has room for.
    host : blocks on the host; None where there is none.

    Raises
    ------
    ServeError
        If there is no block, or none has room.
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
        self._ref_counts = [0] * num_blocks
        self._free: FreeBlocks = eviction()
        for block in range(num_blocks):
            self._free.add(block, None)
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def ref_count(self, block: int) -> int:
        """How many requests hold a block."""
        return self._ref_counts[block]

    def find(self, keys: Sequence[Hashable]) -> list[int]:
        """Blocks with the first of these keys, up to the first that is not there."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def num_held(self, blocks: Sequence[int]) -> int:
        """How many of some blocks somebody holds."""
        return sum(self._ref_counts[block] > 0 for block in blocks)

    def next_free(self, num: int) -> list[int]:
        """The free blocks that are to be taken next, in this order.

        Raises
        ------
        ServeError
            If there are fewer.
        """
        if num > len(self._free):
            raise ServeError(f"{num} blocks are asked for; {len(self._free)} of {self.num_blocks} are free")
        return self._free.first(num)

    def allocate(self, blocks: Sequence[int]) -> None:
        """Somebody holds free blocks, for something new: what was in them is lost."""
        for block in blocks:
            self._free.remove(block)
            self._ref_counts[block] = 1
            key = self._key_of.pop(block, None)
            if key is not None and self._block_of.get(key) == block:
                del self._block_of[key]

    def share(self, blocks: Sequence[int]) -> None:
        """Somebody else holds blocks, too, or free ones for what is in them."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                self._free.remove(block)
            self._ref_counts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Somebody holds blocks no longer. Of those that become free, the first is the first to be taken."""
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.add(block, self._key_of.get(block))

    def register(self, block: int, key: Hashable) -> None:
        """A block is full, and found by its key from now on, in place of another one with the same key."""
        self._key_of[block] = key
        self._block_of[key] = block

    def allocate_copies(self, blocks: Iterable[int], of: BlockCache) -> dict[int, int]:
        """Somebody takes free blocks for what is in other ones, of this cache or of another one.

        Parameters
        ----------
        blocks : of which copies are made; each of them once, however often it stands there.
        of : the cache in which they are.

        Returns
        -------
        The new block of each. What is in it is found here by the same key, if it has one.
        """
        copied = list(dict.fromkeys(blocks))
        to = dict(zip(copied, self.next_free(len(copied)), strict=True))
        self.allocate(list(to.values()))
        for block, copy in to.items():
            key = of._key_of.get(block)
            if key is not None:
                self.register(copy, key)
        return to

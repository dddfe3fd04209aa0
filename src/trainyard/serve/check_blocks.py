"""The blocks of a KV cache, as batches say."""

from __future__ import annotations

from collections import Counter

__all__ = ["BlocksAccount"]


class BlocksAccount:
    """Which blocks of one tier each request has, and what is in them.

    Parameters
    ----------
    num : of blocks.

    Attributes
    ----------
    of : blocks of each request, in the order of its tokens.
    ref_count : how many requests have a block.
    num_written : tokens in a block.
    content : tokens up to the end of a block that is full, where they are known.
    version : two blocks of the same version have the same in them; each write makes another one.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.of: dict[int, list[int]] = {}
        self.ref_count: Counter[int] = Counter()
        self.num_written: Counter[int] = Counter()
        self.content: dict[int, tuple[int, ...]] = {}
        self.version: dict[int, int] = {}

    def hold(self, request: int, block: int) -> None:
        """A request has a block, too."""
        self.of.setdefault(request, []).append(block)
        self.ref_count[block] += 1

    def free(self, request: int, block: int) -> None:
        """A request gives a block back."""
        self.of[request].remove(block)
        self.ref_count[block] -= 1

    def copy(self, block: int, source: BlocksAccount, from_block: int) -> None:
        """A block has what is in one of the same or another tier."""
        self.num_written[block], self.version[block] = (
            source.num_written[from_block],
            source.version[from_block],
        )
        self.content.pop(block, None)
        if from_block in source.content:
            self.content[block] = source.content[from_block]

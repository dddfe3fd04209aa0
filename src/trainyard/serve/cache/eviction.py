"""Eviction orders: which free block of a KV cache is allocated next, so that its content is lost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from typing import Protocol

__all__ = ["EvictionOrder", "FreeBlocks", "LeastRecentlyUsed", "UnkeyedFirst"]


class FreeBlocks(Protocol):
    """The free blocks of a cache, in the order in which they are to be allocated."""

    def __len__(self) -> int:
        """Number of free blocks."""
        ...

    def add(self, block: int, key: Hashable, /) -> None:
        """Add a block that became free, with the key of its content; None if it has none."""
        ...

    def remove(self, block: int, /) -> None:
        """Remove a block that was allocated, or shared again for its content."""
        ...

    def first(self, num: int) -> list[int]:
        """The next ``num`` blocks to allocate; there are at least as many."""
        ...


EvictionOrder = Callable[[], FreeBlocks]
"""Makes the empty set of free blocks of a new cache; those that were never used are allocated before those of the set."""


class LeastRecentlyUsed(OrderedDict[int, Hashable]):
    """The block that was freed longest ago comes first.

    A request that finds a block holds it until it is freed again, so this order is least recently used.
    """

    add = OrderedDict.__setitem__
    remove = OrderedDict.__delitem__

    def first(self, num: int) -> list[int]:
        return list(islice(self, num))


class UnkeyedFirst:
    """Blocks without a key come first, as no request can find their content, then the least recently used ones."""

    def __init__(self) -> None:
        self._unkeyed, self._keyed = LeastRecentlyUsed(), LeastRecentlyUsed()

    def __len__(self) -> int:
        return len(self._unkeyed) + len(self._keyed)

    def __iter__(self) -> Iterator[int]:
        return chain(self._unkeyed, self._keyed)

    def add(self, block: int, key: Hashable) -> None:
        (self._unkeyed if key is None else self._keyed).add(block, key)

    def remove(self, block: int) -> None:
        (self._unkeyed if block in self._unkeyed else self._keyed).remove(block)

    def first(self, num: int) -> list[int]:
        return list(islice(self, num))

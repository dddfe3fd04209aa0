"""Which of the free blocks of a cache is taken next: what was in it is lost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from typing import Protocol

__all__ = ["EvictionOrder", "FreeBlocks", "LeastRecentlyUsed", "UnkeyedFirst"]


class FreeBlocks(Protocol):
    """The free blocks of a cache, in the order in which they are to be taken."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def add(self, block: int, key: Hashable, /) -> None:
        """A block is free, with the key that was entered for what is in it; None if none was."""
        ...

    def remove(self, block: int, /) -> None:
        """A block is free no longer: it was taken, or somebody found what is in it."""
        ...

    def first(self, num: int) -> list[int]:
        """So many that are to be taken next; there are as many."""
        ...


EvictionOrder = Callable[[], FreeBlocks]
"""Makes the free blocks of a new cache, of which there are none yet."""


class LeastRecentlyUsed(OrderedDict[int, Hashable]):
    """What was given back longest ago comes first.

    Who finds a block holds it until it is given back once more: so this is least recently used, too.
    """

    add = OrderedDict.__setitem__
    remove = OrderedDict.__delitem__

    def first(self, num: int) -> list[int]:
        return list(islice(self, num))


class UnkeyedFirst:
    """Blocks without a key come first, as nobody can find what is in them, then what was given back longest ago."""

    def __init__(self) -> None:
        self._useless, self._useful = LeastRecentlyUsed(), LeastRecentlyUsed()

    def __len__(self) -> int:
        return len(self._useless) + len(self._useful)

    def __iter__(self) -> Iterator[int]:
        return chain(self._useless, self._useful)

    def add(self, block: int, key: Hashable) -> None:
        (self._useless if key is None else self._useful).add(block, key)

    def remove(self, block: int) -> None:
        (self._useless if block in self._useless else self._useful).remove(block)

    def first(self, num: int) -> list[int]:
        return list(islice(self, num))

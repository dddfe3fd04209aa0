"""The decision of level 3: what one step of an instance computes, and what becomes of its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Batch", "CacheOp", "Launch", "WorkItem"]


class WorkItem(NamedTuple):
    """Tokens of a request that a step computes.

    Attributes
    ----------
    request : its number.
    start, stop : the tokens of its sequence, from ``start`` on and without ``stop``.
    """

    request: int
    start: int
    stop: int


class Launch(NamedTuple):
    """Items that run through a model together.

    Attributes
    ----------
    model : its name; "" where an instance has one.
    """

    items: tuple[WorkItem, ...]
    model: str = ""


class CacheOp(NamedTuple):
    """One thing that happens to blocks of the cache.

    Attributes
    ----------
    kind : a request takes free blocks for new tokens, shares blocks for what is in them, or gives back blocks.
    request : its number.
    blocks : their numbers, in the order in which this happens.
    """

    kind: Literal["take", "share", "give back"]
    request: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What an instance does next.

    Attributes
    ----------
    launches : what is computed; none where nothing can be.
    cache_ops : what happens to the cache before, in this order.
    preempted : numbers of the requests that lost their blocks and wait again, in the order in which they did.
    refused : requests that are not served, and why.
    repeat : how many times it is computed, each time with the tokens after those of the time before.
    """

    launches: tuple[Launch, ...] = ()
    cache_ops: tuple[CacheOp, ...] = ()
    preempted: tuple[int, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    repeat: int = 1

    @property
    def items(self) -> tuple[WorkItem, ...]:
        """Of all launches."""
        if len(self.launches) == 1:
            return self.launches[0].items
        return tuple(item for launch in self.launches for item in launch.items)

    @property
    def num_tokens(self) -> int:
        """That are computed."""
        return self.repeat * sum(item.stop - item.start for item in self.items)

    def __str__(self) -> str:
        parts = [f"{item.request}[{item.start}:{item.stop}]" for item in self.items]
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        lines = [f"compute {' '.join(parts) or 'nothing'}{times}"]
        lines += [f"{op.kind} {op.request}: {' '.join(map(str, op.blocks))}" for op in self.cache_ops]
        lines += [f"preempt {number}" for number in self.preempted]
        lines += [f"refuse {number}: {why}" for number, why in self.refused]
        return "\n".join(lines)

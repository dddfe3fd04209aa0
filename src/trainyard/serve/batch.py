"""The decision of level 3: what one step of an instance computes, and what becomes of its cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Batch", "CacheOp", "Launch", "Tier", "WorkItem", "num_copied"]

Tier = Literal["device", "host"]
"""Where blocks of the cache are."""


class WorkItem(NamedTuple):
    """Tokens of a request that a step computes.

    Attributes
    ----------
    request : its number; where a request has several samples, that of the sample.
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

    A request takes free blocks for new tokens, shares blocks for what is in them, or gives back blocks. Or it gets blocks
    with what is in those that it has, and gives back the latter, the last one first: "copy" on the device, since others
    have that block, too, and it is about to write; "swap out" to the host; "swap in" to the device. Where others of the
    same batch have done so with the same block, the same copy is for all of them.

    Attributes
    ----------
    kind : what happens.
    request : its number.
    blocks : their numbers, in the order in which this happens.
    tier : where these blocks are.
    to : numbers of the blocks that it gets for them, one for each; none where nothing is copied.
    to_tier : where those are.
    """

    kind: Literal["allocate", "share", "free", "copy", "swap out", "swap in"]
    request: int
    blocks: tuple[int, ...]
    tier: Tier = "device"
    to: tuple[int, ...] = ()
    to_tier: Tier = "device"

    def __str__(self) -> str:
        to = f" -> {' '.join(map(str, self.to))}" if self.to else ""
        return f"{self.kind} {self.request}: {' '.join(map(str, self.blocks))}{to}"


def num_copied(ops: Iterable[CacheOp]) -> tuple[int, int]:
    """How many blocks operations of one batch copy on the device, and how many between device and host."""
    pairs = {(op.tier, op.to_tier, *pair) for op in ops for pair in zip(op.blocks, op.to, strict=False)}
    within = sum(tier == to_tier for tier, to_tier, _, _ in pairs)
    return within, len(pairs) - within


@dataclass(frozen=True, slots=True)
class Batch:
    """What an instance does next.

    Attributes
    ----------
    launches : what is computed; none where nothing can be.
    cache_ops : what happens to the cache before, in this order.
    preempted : numbers of the requests that lost their blocks on the device, in the order in which they did: they wait
        again, or are swapped out.
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

    @property
    def copies(self) -> bool:
        """Whether blocks of the cache are copied before."""
        return any(op.to for op in self.cache_ops)

    def __str__(self) -> str:
        parts = [f"{item.request}[{item.start}:{item.stop}]" for item in self.items]
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        lines = [f"compute {' '.join(parts) or 'nothing'}{times}"]
        lines += map(str, self.cache_ops)
        lines += [f"preempt {number}" for number in self.preempted]
        lines += [f"refuse {number}: {why}" for number, why in self.refused]
        return "\n".join(lines)

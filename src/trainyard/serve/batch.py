"""The decision of level 3: what one step of a replica computes, and what happens to its KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Batch", "CacheOp", "Launch", "Tier", "WaitReason", "WorkItem", "num_copied"]

Tier = Literal["device", "host"]
"""The memory that a block of the KV cache is in."""


class WorkItem(NamedTuple):
    """Tokens of a request that a step computes.

    Attributes
    ----------
    request : number of the request, or of its sample.
    start, stop : range of tokens of its sequence, without ``stop``.
    """

    request: int
    start: int
    stop: int


class Launch(NamedTuple):
    """Items that go through a model together.

    Attributes
    ----------
    model : its name; "" if the instance has only one.
    """

    items: tuple[WorkItem, ...]
    model: str = ""


class CacheOp(NamedTuple):
    """One operation on blocks of the KV cache.

    "allocate" takes free blocks for new tokens, "share" holds blocks for what is in them, and "free" releases blocks. The
    others copy the blocks of a request to new ones and then free the old ones, last one first: "copy" on the device,
    because the request is about to write in a shared block; "swap out" to the host; "swap in" to the device. Requests of
    the same batch that copy the same block get the same copy.

    Attributes
    ----------
    kind : the operation.
    request : number of the request.
    blocks : numbers of the blocks, in order.
    tier : the memory that they are in.
    to : numbers of the new blocks, one for each; empty if nothing is copied.
    to_tier : the memory that the new blocks are in.
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


class WaitReason(NamedTuple):
    """Why no further waiting request is in a batch; put into words when it is printed.

    Attributes
    ----------
    text : with a place for each number, as `str.format` takes them.
    numbers : that stand there.
    """

    text: str
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.text.format(*self.numbers)


def num_copied(ops: Iterable[CacheOp]) -> tuple[int, int]:
    """Count the blocks that the operations of a batch copy on the device, and between device and host."""
    pairs = {(op.tier, op.to_tier, *pair) for op in ops for pair in zip(op.blocks, op.to, strict=False)}
    within = sum(tier == to_tier for tier, to_tier, _, _ in pairs)
    return within, len(pairs) - within


@dataclass(frozen=True, slots=True)
class Batch:
    """What a replica does in its next step.

    Attributes
    ----------
    launches : what is computed; empty if nothing is.
    cache_ops : operations on the KV cache before that, in order.
    preempted : numbers of the requests that lose their blocks on the device, in order: they wait again, or are swapped
        out.
    refused : numbers of refused requests, and why.
    repeat : number of steps in which the same requests decode, each time with the next token.
    wait_reason : why no further waiting request is in it; None if none waits, or the policy does not say.
    """

    launches: tuple[Launch, ...] = ()
    cache_ops: tuple[CacheOp, ...] = ()
    preempted: tuple[int, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    repeat: int = 1
    wait_reason: WaitReason | None = field(default=None, compare=False)

    @property
    def items(self) -> tuple[WorkItem, ...]:
        """The items of all launches."""
        if len(self.launches) == 1:
            return self.launches[0].items
        return tuple(item for launch in self.launches for item in launch.items)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are computed."""
        return self.repeat * sum(item.stop - item.start for item in self.items)

    @property
    def copies(self) -> bool:
        """Whether any operation copies blocks of the KV cache."""
        return any(op.to for op in self.cache_ops)

    def __str__(self) -> str:
        parts = [f"{item.request}[{item.start}:{item.stop}]" for item in self.items]
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        lines = [f"compute {' '.join(parts) or 'nothing'}{times}"]
        lines += map(str, self.cache_ops)
        lines += [f"preempt {number}" for number in self.preempted]
        lines += [f"refuse {number}: {why}" for number, why in self.refused]
        lines += [f"others wait: {self.wait_reason}"] if self.wait_reason is not None else []
        return "\n".join(lines)

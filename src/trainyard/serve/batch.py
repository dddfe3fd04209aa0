"""The decision of level 3: what one step of a replica computes, and what happens to its KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "Batch",
    "CacheOp",
    "CopiedBlocks",
    "Direction",
    "Launch",
    "Layers",
    "Tier",
    "WaitReason",
    "WeightOp",
    "WorkItem",
    "num_copied",
    "share_of_layers",
]

Tier = Literal["device", "host"]
"""The memory that a block of the KV cache is in."""

Direction = Literal["forward", "backward"]
"""Whether tokens go through layers from the first to the last, or their gradients go back from the last to the first."""

Layers = tuple[int, int] | None
"""The first of some layers, and the one after the last of these; None for all."""


class WorkItem(NamedTuple):
    """Tokens of a request that a step computes.

    Which adapter they use, and whether they train it, says the request (`Request.adapter`, `Request.trains`).

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
    layers : that they go through. Tokens are computed when they went through all, in one step after the other.
    direction : "backward" if gradients of the items go back through the layers: only of requests that train, all of whose
        tokens went forward. It takes no blocks and generates nothing; weights of the model do not change.
    """

    items: tuple[WorkItem, ...]
    model: str = ""
    layers: Layers = None
    direction: Direction = "forward"


class CacheOp(NamedTuple):
    """One operation on blocks of the KV cache.

    "allocate" takes free blocks for new tokens, "share" holds blocks for what is in them, and "free" releases blocks. The
    others copy the blocks of a request to new ones and then free the old ones, last one first: "copy" on the device,
    because the request is about to write in a shared block; "swap out" to the host; "swap in" to the device; "move" from
    another instance, beside the steps of both, at the end of which the old ones are freed there. Requests of the same
    batch that copy the same block get the same copy.

    Attributes
    ----------
    kind : the operation.
    request : number of the request.
    blocks : numbers of the blocks, in order.
    tier : the memory that they are in.
    to : numbers of the new blocks, one for each; empty if nothing is copied.
    to_tier : the memory that the new blocks are in.
    instance : number of the instance that ``blocks`` are in; None if it is the one whose batch it is.
    """

    kind: Literal["allocate", "share", "free", "copy", "swap out", "swap in", "move"]
    request: int
    blocks: tuple[int, ...]
    tier: Tier = "device"
    to: tuple[int, ...] = ()
    to_tier: Tier = "device"
    instance: int | None = None

    def __str__(self) -> str:
        source = "" if self.instance is None else f" of instance {self.instance}"
        to = f" -> {' '.join(map(str, self.to))}" if self.to else ""
        return f"{self.kind} {self.request}: {' '.join(map(str, self.blocks))}{source}{to}"


class WeightOp(NamedTuple):
    """One operation on weights of the device.

    "load" copies weights to the device, and "unload" makes their memory free.

    Attributes
    ----------
    kind : the operation.
    adapter : name of the adapter whose weights they are; "" for the model itself.
    source : the memory that they are loaded from.
    layers : whose weights they are.
    """

    kind: Literal["load", "unload"]
    adapter: str
    source: Tier = "host"
    layers: Layers = None

    def __str__(self) -> str:
        whose = f"adapter {self.adapter}" if self.adapter else "the model"
        source = f" from {self.source}" if self.kind == "load" else ""
        return f"{self.kind} {whose}{_text_of(self.layers)}{source}"


def share_of_layers(layers: Layers, num_layers: int | None) -> float:
    """Return the share of a model's layers that some layers are; all layers count the same.

    Parameters
    ----------
    num_layers : of the model; None where nothing is of some layers.
    """
    return (layers[1] - layers[0]) / num_layers if layers is not None and num_layers else 1.0


def _text_of(layers: Layers) -> str:
    return "" if layers is None else f" in layers {layers[0]} to {layers[1] - 1}"


class WaitReason(NamedTuple):
    """Why no further waiting request is in a batch; formatted only when it is shown.

    Attributes
    ----------
    text : with a place for each number, as `str.format` takes them.
    numbers : that stand there.
    """

    text: str
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        try:
            return self.text.format(*self.numbers)
        except Exception:  # a policy of the user's own gave both, and showing them is no reason to fail
            return f"{self.text} {self.numbers}"


class CopiedBlocks(NamedTuple):
    """Numbers of blocks that the operations of a batch copy.

    Attributes
    ----------
    on_device : to other blocks of the device.
    swapped : to the host or back.
    moved : from other instances.
    """

    on_device: int
    swapped: int
    moved: int


def num_copied(ops: Iterable[CacheOp]) -> CopiedBlocks:
    """Count the blocks that are copied; one that is copied for several requests counts once."""
    pairs = {
        (op.instance, op.tier, op.to_tier, *pair)
        for op in ops
        for pair in zip(op.blocks, op.to, strict=False)
    }
    moved = sum(instance is not None for instance, *_ in pairs)
    swapped = sum(tier != to_tier for _, tier, to_tier, *_ in pairs)
    return CopiedBlocks(len(pairs) - moved - swapped, swapped, moved)


@dataclass(frozen=True, slots=True)
class Batch:
    """Work of a replica in its next step.

    Attributes
    ----------
    launches : what is computed; empty if nothing is.
    cache_ops : operations on the KV cache before that, in order.
    preempted : numbers of the requests that lose their blocks on the device, in order: they wait again, or are swapped
        out.
    refused : numbers of refused requests, and why.
    weight_ops : operations on weights before what is computed, in order.
    stops_step : whether it stops the step before it, which still runs.
    repeat : number of steps in which the same requests decode, each time with the next token.
    wait_reason : why no further waiting request is in it; None if none waits, or the policy does not say.
    """

    launches: tuple[Launch, ...] = ()
    cache_ops: tuple[CacheOp, ...] = ()
    preempted: tuple[int, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    weight_ops: tuple[WeightOp, ...] = ()
    stops_step: bool = False
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
        """Whether any operation copies blocks of the KV cache before the step; moves go on beside it."""
        return any(op.to and op.kind != "move" for op in self.cache_ops)

    def __str__(self) -> str:
        parts = [
            f"{item.request}[{item.start}:{item.stop}]"
            + (" backward" if launch.direction == "backward" else "")
            + _text_of(launch.layers)
            for launch in self.launches
            for item in launch.items
        ]
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        lines = ["stop the step that runs"] if self.stops_step else []
        lines += [f"compute {' '.join(parts) or 'nothing'}{times}"]
        lines += map(str, (*self.weight_ops, *self.cache_ops))
        lines += [f"preempt {number}" for number in self.preempted]
        lines += [f"refuse {number}: {why}" for number, why in self.refused]
        lines += [f"others wait: {self.wait_reason}"] if self.wait_reason is not None else []
        return "\n".join(lines)

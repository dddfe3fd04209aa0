"""The space that is searched: every product of parallel degrees that the batch, the model and the cluster allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainyard.divisors import divisors
from trainyard.job.plan import microbatches_text
from trainyard.job.strategies.parallel.zero import DIVIDED

Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")

SCHEDULES = (("one_f_one_b", 1), ("interleaved", 2), ("interleaved", 4), ("zero_bubble_h1", 1))
"""Schedules with their stages per rank; GPipe is never better than 1F1B in time or memory."""


@dataclass(frozen=True, order=True)
class Sharding:
    """The part of a point that changes the graph of a block and so has to be probed.

    Attributes
    ----------
    tensor : ranks of the tensor axis.
    sequence : whether the regions between tensor-parallel ones are cut along the sequence.
    expert : whether experts are cut over the data axis.
    data : ranks of the data axis, where experts are cut over it or rows depend on each other; 1 otherwise, since then
        it changes no block.
    rows : rows of one microbatch on one data-parallel rank.
    """

    tensor: int
    sequence: bool
    expert: bool
    data: int
    rows: int


@dataclass(frozen=True)
class Point:
    """One plan of the space.

    Attributes
    ----------
    pipeline, data, tensor : ranks along the axes.
    """

    sharding: Sharding
    pipeline: int
    data: int
    num_microbatches: int
    schedule: str
    stages_per_rank: int
    recompute: Recompute
    zero_stage: int

    @property
    def tensor(self) -> int:
        return self.sharding.tensor

    @property
    def divided(self) -> tuple[str, ...]:
        """The model state that data-parallel ranks divide between them."""
        return DIVIDED.get(self.zero_stage, ())

    def __str__(self) -> str:
        parts = [f"pipeline {self.pipeline} x data {self.data} x tensor {self.tensor}"]
        if self.pipeline > 1:
            parts.append(self.schedule + (f" x{self.stages_per_rank}" if self.stages_per_rank > 1 else ""))
        parts.append(f"{microbatches_text(self.num_microbatches)} of {self.sharding.rows * self.data}")
        if self.sharding.sequence:
            parts.append("sequence parallel")
        if self.sharding.expert:
            parts.append("expert parallel")
        if self.recompute != "none":
            parts.append(f"{self.recompute} recomputation")
        if self.zero_stage:
            parts.append(f"ZeRO-{self.zero_stage}")
        return ", ".join(parts)


def degrees(num_devices: int, max_tensor: int, max_pipeline: int) -> Iterator[tuple[int, int, int]]:
    """Every (pipeline, data, tensor) whose product uses all devices."""
    for tensor in divisors(num_devices):
        for pipeline in divisors(num_devices // tensor):
            if tensor <= max_tensor and pipeline <= max_pipeline:
                yield pipeline, num_devices // (tensor * pipeline), tensor


def microbatch_rows(num_rows: int, data: int) -> list[int]:
    """Rows of a microbatch on one rank: of its share of the batch the largest divisor up to each power of two, and all.

    Examples
    --------
    >>> microbatch_rows(96, 2)
    [1, 2, 4, 8, 16, 24, 48]
    """
    if num_rows % data:
        return []
    share = num_rows // data
    known = divisors(share)
    powers = (2**i for i in range(share.bit_length()))
    return sorted({max(d for d in known if d <= power) for power in powers} | {share})

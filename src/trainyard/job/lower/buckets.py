"""Buckets: parameters whose gradients (and, sharded, whose values) travel together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from trainyard.job.plan import DATA, TENSOR, Plan
from trainyard.program.placement import Placement, Replicate, Shard

MAX_REDUCTIONS_IN_FLIGHT = 2
"""Of a rank's microbatch gradients that ZeRO shares: one travels while the next is computed, and the rest wait. More
would hold what sharing saves."""


@dataclass(frozen=True)
class Param:
    """One rank's part of a parameter.

    Attributes
    ----------
    path : name in the module.
    shape : of the part, and ``whole_shape`` of the parameter.
    placements : by mesh axis.
    stages : pipeline stages that use it.
    """

    path: str
    shape: tuple[int, ...]
    whole_shape: tuple[int, ...]
    placements: Mapping[str, Placement]
    stages: tuple[int, ...]
    trainable: bool

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Bucket:
    """Parameters of one stage in one flat buffer.

    Attributes
    ----------
    name : unique in the plan.
    paths, shapes : the parameters in the order in which the forward pass uses them.
    num_elements : of the buffer, padded so that ``num_shards`` parts are equal.
    num_shards : data-parallel ranks that share the state of this bucket; 1 where each keeps it.
    reduced : whether gradients are summed over the data axis; not for parameters that are cut along it.
    stages : stages whose gradients are summed, more than one for a tied parameter.
    num_copies : ranks that hold the same elements, along the tensor axis and the stages.
    """

    name: str
    stage: int
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_elements: int
    num_shards: int
    reduced: bool
    stages: tuple[int, ...]
    num_copies: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each parameter."""
        return tuple(torch.Size(s).numel() for s in self.shapes)


def is_sharded(plan: Plan, bucket: Bucket) -> bool:
    """Whether the gradients of a bucket are reduced for every microbatch and kept as a part.

    What several stages use is summed over them first, at the end of the step, and only then cut.
    """
    return bucket.num_shards > 1 and plan.zero_stage >= 2 and len(bucket.stages) == 1


def make_buckets(plan: Plan, stage: int, params: Iterable[Param]) -> tuple[Bucket, ...]:
    """Group the trainable parameters of a stage, in the order given, into buckets of ``plan.bucket_bytes``.

    Parameters that are reduced over different ranks never share a bucket.
    """
    element_bytes = 4
    open_groups: dict[tuple[object, ...], list[Param]] = {}
    closed: list[list[Param]] = []
    for param in params:
        reduced = not isinstance(param.placements.get(DATA, Replicate()), Shard)
        cut = isinstance(param.placements.get(TENSOR, Replicate()), Shard)
        shared = param.path if len(param.stages) > 1 else ""
        key = (reduced, cut, shared)
        group = open_groups.setdefault(key, [])
        if group and sum(p.numel for p in (*group, param)) * element_bytes > plan.bucket_bytes:
            closed.append(group)
            open_groups[key] = group = []
        group.append(param)
    groups = closed + [g for g in open_groups.values() if g]
    return tuple(_bucket(plan, stage, i, group) for i, group in enumerate(groups))


def _bucket(plan: Plan, stage: int, index: int, group: list[Param]) -> Bucket:
    first = group[0]
    reduced = plan.data > 1 and not isinstance(first.placements.get(DATA, Replicate()), Shard)
    cut = isinstance(first.placements.get(TENSOR, Replicate()), Shard)
    num_shards = plan.data if reduced and plan.zero_stage > 0 else 1
    total = sum(p.numel for p in group)
    copies = (1 if cut else plan.tensor) * len(first.stages)
    return Bucket(
        f"stage{stage}.bucket{index}",
        stage,
        tuple(p.path for p in group),
        tuple(p.shape for p in group),
        -(-total // num_shards) * num_shards,
        num_shards,
        reduced,
        first.stages,
        copies,
    )

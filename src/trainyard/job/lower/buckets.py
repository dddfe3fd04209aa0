"""Buckets: parameters whose gradients (and, sharded, whose values) travel together.

What is not trained has no gradients, so it lies in buckets only where its values are sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    dtype : in which it is computed with.
    """

    path: str
    shape: tuple[int, ...]
    whole_shape: tuple[int, ...]
    placements: Mapping[str, Placement]
    stages: tuple[int, ...]
    trainable: bool
    dtype: str

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
    num_shards : data-parallel ranks that share the optimizer's state of this bucket; 1 where each keeps it.
    gradients_shared : whether gradients are reduced for every microbatch, and each rank keeps its part. What several
        stages use is summed over them first, at the end of the step, and only then cut.
    parameters_shared : whether each rank keeps its part of the values only, and they are gathered on use.
    reduced : whether gradients are summed over the data axis; not for parameters that are cut along it.
    stages : stages whose gradients are summed, more than one for a tied parameter.
    pipeline_ranks : those of the stages.
    num_copies : ranks that hold the same elements, along the tensor axis and the pipeline.
    dtype : in which the parameters are computed with.
    is_trained : whether there are gradients, optimizer state and values in float32. Without, each rank keeps its part
        of the values in ``dtype``, and nothing else.
    """

    name: str
    stage: int
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_elements: int
    num_shards: int
    gradients_shared: bool
    parameters_shared: bool
    reduced: bool
    stages: tuple[int, ...]
    pipeline_ranks: tuple[int, ...]
    num_copies: int
    dtype: str
    is_trained: bool

    @property
    def is_of_one_action(self) -> bool:
        """Whether no other stage or pipeline rank adds to the gradients that an action makes."""
        return len(self.stages) == len(self.pipeline_ranks) == 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each parameter."""
        return tuple(torch.Size(s).numel() for s in self.shapes)

    @property
    def share(self) -> int:
        """Elements of one rank's part."""
        return self.num_elements // self.num_shards

    @property
    def element_bytes(self) -> int:
        """Bytes of an element as it is computed with."""
        return int(getattr(torch, self.dtype).itemsize)

    @property
    def converted_bytes(self) -> int:
        """Bytes of a part in the type that it is computed with, if it is made from float32 whenever it is gathered."""
        return self.share * self.element_bytes if self.is_trained and self.element_bytes != 4 else 0

    def views(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parameters' shapes in a flat buffer of ``num_elements``."""
        parts = flat[: sum(self.sizes)].split(list(self.sizes))
        return tuple(p.view(s) for p, s in zip(parts, self.shapes, strict=True))


def make_buckets(plan: Plan, stage: int, params: Iterable[Param]) -> tuple[Bucket, ...]:
    """Group the trained parameters of a stage, in the order given, into buckets of ``plan.bucket_bytes``.

    Parameters that are reduced over different ranks never share a bucket.
    """

    def apart(param: Param) -> tuple[object, ...]:
        shared = param.path if len(param.stages) > 1 else ""
        return (_is_whole(param, DATA), _is_whole(param, TENSOR), shared, param.dtype)

    groups = _groups([p for p in params if p.trainable], apart, lambda _: 4, plan.bucket_bytes)
    return tuple(_bucket(plan, stage, f"stage{stage}.bucket{i}", group) for i, group in enumerate(groups))


def make_frozen_buckets(plan: Plan, stage: int, params: Iterable[Param]) -> tuple[Bucket, ...]:
    """Group those parameters of a stage that are not trained, where data-parallel ranks share parameters.

    A parameter that several stages use is shared out in each of them. One that is cut along the data axis is not
    shared out again.
    """
    if plan.zero_stage < 3 or plan.data == 1:
        return ()
    whole = [p for p in params if not p.trainable and _is_whole(p, DATA)]
    groups = _groups(
        whole, lambda p: (p.dtype,), lambda p: int(getattr(torch, p.dtype).itemsize), plan.bucket_bytes
    )
    return tuple(_bucket(plan, stage, f"stage{stage}.frozen{i}", group) for i, group in enumerate(groups))


def _groups(
    params: Iterable[Param],
    apart: Callable[[Param], tuple[object, ...]],
    element_bytes: Callable[[Param], int],
    most_bytes: int,
) -> list[list[Param]]:
    """Parameters that travel together: alike in what ``apart`` says of them, and of at most so many bytes."""
    open_groups: dict[tuple[object, ...], list[Param]] = {}
    closed: list[list[Param]] = []
    for param in params:
        key = apart(param)
        group = open_groups.setdefault(key, [])
        if group and sum(p.numel for p in (*group, param)) * element_bytes(param) > most_bytes:
            closed.append(group)
            open_groups[key] = group = []
        group.append(param)
    return closed + [g for g in open_groups.values() if g]


def _is_whole(param: Param, axis: str) -> bool:
    return not isinstance(param.placements.get(axis, Replicate()), Shard)


def _bucket(plan: Plan, stage: int, name: str, group: list[Param]) -> Bucket:
    first = group[0]
    reduced = plan.data > 1 and _is_whole(first, DATA)
    num_shards = plan.data if reduced and plan.zero_stage > 0 else 1
    total = sum(p.numel for p in group)
    stages = first.stages if first.trainable else (stage,)
    ranks = plan.schedule.ranks_with(stages)
    copies = (plan.tensor if _is_whole(first, TENSOR) else 1) * max(len(stages), len(ranks))
    return Bucket(
        name,
        stage,
        tuple(p.path for p in group),
        tuple(p.shape for p in group),
        -(-total // num_shards) * num_shards,
        num_shards,
        num_shards > 1 and plan.zero_stage >= 2 and len(stages) == 1 and first.trainable,
        num_shards > 1 and plan.zero_stage == 3,
        reduced,
        stages,
        ranks,
        copies,
        first.dtype,
        first.trainable,
    )

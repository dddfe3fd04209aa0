"""Buckets: parameters whose gradients (and, sharded, whose values) travel together.

What is not trained has no gradients, so it lies in buckets only where its values are sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from trainyard.job.plan import Axes, Mesh, Plan
from trainyard.program.placement import Placement, Shard

MAX_REDUCTIONS_IN_FLIGHT = 2
"""Of a rank's gradients of microbatches, where ranks divide them: one travels while the next is computed, and the rest
wait. More would hold what dividing saves."""


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
    summed_over : axes over which gradients are summed; none along which the parameters are cut.
    num_terms : ranks along these axes.
    num_shards : ranks that divide the optimizer's state of this bucket; 1 where each keeps it.
    gradients_shared : whether gradients are reduced for every microbatch, and each rank keeps its part. What several
        stages use is summed over them first, at the end of the step, and only then cut.
    parameters_shared : whether each rank keeps its part of the values only, and they are gathered on use.
    stages : stages whose gradients are summed, more than one for a tied parameter.
    pipeline_ranks : those of the stages.
    num_copies : ranks that hold the same elements, along the other axes and the pipeline.
    dtype : in which the parameters are computed with.
    is_trained : whether there are gradients, optimizer state and values in float32. Without, each rank keeps its part
        of the values in ``dtype``, and nothing else.
    """

    name: str
    stage: int
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_elements: int
    summed_over: Axes
    num_terms: int
    num_shards: int
    gradients_shared: bool
    parameters_shared: bool
    stages: tuple[int, ...]
    pipeline_ranks: tuple[int, ...]
    num_copies: int
    dtype: str
    is_trained: bool

    @property
    def is_of_one_action(self) -> bool:
        """True if no other stage or pipeline rank adds to the gradients that an action makes."""
        return len(self.stages) == len(self.pipeline_ranks) == 1

    @property
    def reduced(self) -> bool:
        """True if several ranks have terms of the gradients."""
        return self.num_terms > 1

    @property
    def num_holders(self) -> int:
        """Ranks that hold the same elements of the sum of gradients."""
        return self.num_copies * self.num_terms // self.num_shards

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
    def is_converted(self) -> bool:
        """True if the weights of a step are converted from the float32 values that are trained."""
        return self.is_trained and self.dtype != "float32"

    @property
    def converted_bytes(self) -> int:
        """Bytes of a part in the type that it is computed with, if it is made from float32 whenever it is gathered."""
        return self.share * self.element_bytes if self.is_converted else 0

    def views(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parameters' shapes in a flat buffer of ``num_elements``."""
        parts = flat[: sum(self.sizes)].split(list(self.sizes))
        return tuple(p.view(s) for p, s in zip(parts, self.shapes, strict=True))


def make_buckets(plan: Plan, stage: int, params: Iterable[Param]) -> tuple[Bucket, ...]:
    """Group the trained parameters of a stage, in the order given, into buckets.

    Parameters that are reduced over different ranks never share a bucket.
    """

    mesh = plan.stages[stage].mesh

    def apart(param: Param) -> tuple[object, ...]:
        shared = param.path if len(param.stages) > 1 else ""
        return (_cut_along(param, mesh), shared, param.dtype)

    groups = _groups([p for p in params if p.trainable], apart, lambda _: 4, plan.traffic.bucket_bytes)
    return tuple(_bucket(plan, stage, f"stage{stage}.bucket{i}", group) for i, group in enumerate(groups))


def make_frozen_buckets(plan: Plan, stage: int, params: Iterable[Param]) -> tuple[Bucket, ...]:
    """Group those parameters of a stage that are not trained, where ranks divide parameters between them.

    A parameter that several stages use is divided in each of them. One that is cut along an axis over which the others
    are divided is not divided again.
    """
    axes = plan.state.parameters
    mesh = plan.stages[stage].mesh
    if mesh.size(*axes) == 1:
        return ()
    whole = [p for p in params if not p.trainable and not _cut_along(p, mesh) & set(axes)]
    groups = _groups(
        whole,
        lambda p: (_cut_along(p, mesh), p.dtype),
        lambda p: int(getattr(torch, p.dtype).itemsize),
        plan.traffic.bucket_bytes,
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


def _cut_along(param: Param, mesh: Mesh) -> frozenset[str]:
    """The axes along which a parameter is cut."""
    return frozenset(a for a in mesh.axes if isinstance(param.placements.get(a), Shard))


def _bucket(plan: Plan, stage: int, name: str, group: list[Param]) -> Bucket:
    first, mesh = group[0], plan.stages[stage].mesh
    cut, state = _cut_along(first, mesh), plan.state
    summed_over = tuple(a for a in state.summed_over if a not in cut and mesh.size(a) > 1)
    num_terms = mesh.size(*summed_over)
    num_shards = num_terms if state.optimizer else 1
    total = sum(p.numel for p in group)
    stages = first.stages if first.trainable else (stage,)
    ranks = plan.schedule.ranks_with(stages)
    same = max(len(stages), len(ranks))
    copies = mesh.num_ranks // (num_terms * mesh.size(*cut)) * same
    return Bucket(
        name,
        stage,
        tuple(p.path for p in group),
        tuple(p.shape for p in group),
        -(-total // num_shards) * num_shards,
        summed_over,
        num_terms,
        num_shards,
        num_shards > 1 and bool(state.gradients) and len(stages) == 1 and first.trainable,
        num_shards > 1 and bool(state.parameters),
        stages,
        ranks,
        copies,
        first.dtype,
        first.trainable,
    )

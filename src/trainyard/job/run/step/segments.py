"""Segments: ranges of a flat buffer of parameters that an optimizer updates as one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from trainyard.job.lower.buckets import Bucket, Param
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.groups import ParameterGroup, group_of
from trainyard.job.run.step.state import BucketState


@dataclass(frozen=True, eq=False)
class Segment:
    """A range of a bucket's master.

    Attributes
    ----------
    first, last : its elements, counted in the master.
    part : float32 view of the master, what PyTorch's optimizer knows; the master itself if it is all of it.
    paths : of the parameters that have elements in it.
    start : the first element, counted in the first parameter.
    """

    first: int
    last: int
    part: torch.Tensor
    paths: tuple[str, ...]
    start: int = 0

    def give(self, master: torch.Tensor, grad: torch.Tensor) -> None:
        """Give the part its gradient. The master may lie elsewhere than before."""
        if self.part is not master:
            self.part.data = self.of(master)
        self.part.grad = self.of(grad)

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The same range of a tensor of the master's size."""
        return flat[self.first : self.last].view(self.part.shape)


def group_segments(
    config: OptimizerConfig, state: BucketState, shard_index: int, params: Mapping[str, Param]
) -> dict[ParameterGroup, list[Segment]]:
    """Cut the part of a bucket that a rank keeps where groups of parameters meet; the last group has the padding."""
    found: dict[ParameterGroup, list[Segment]] = {}
    bucket, end = state.bucket, 0
    groups = [group_of(config, path, len(params[path].whole_shape)) for path in bucket.paths]
    together = groupby(zip(groups, bucket.paths, bucket.sizes, strict=True), key=lambda each: each[0])
    runs = [(group, [(path, size) for _, path, size in members]) for group, members in together]
    for place, (group, members) in enumerate(runs, 1):
        start, end = end, end + sum(size for _, size in members)
        padded = bucket.num_elements if place == len(runs) else end
        paths = tuple(path for path, _ in members)
        found.setdefault(group, []).extend(_segment(state, shard_index, start, padded, paths, None))
    return found


def parameter_segments(state: BucketState, shard_index: int) -> list[Segment]:
    """Cut the part of a bucket that a rank keeps into its parameters; whole ones have their own shape."""
    bucket: Bucket = state.bucket
    found, end = list[Segment](), 0
    for path, shape, size in zip(bucket.paths, bucket.shapes, bucket.sizes, strict=True):
        start, end = end, end + size
        found += _segment(state, shard_index, start, end, (path,), shape or (1,))
    return found


def _segment(
    state: BucketState,
    shard_index: int,
    start: int,
    end: int,
    paths: tuple[str, ...],
    shape: Sequence[int] | None,
) -> Iterator[Segment]:
    """The elements of a range of a bucket that a rank keeps, if there are any; of a shape if they are all of it."""
    share = state.bucket.share
    before = shard_index * share
    first, last = (min(max(0, at - before), share) for at in (start, end))
    if first == last:
        return
    part = state.master
    if last - first < share or shape is not None:
        part = state.master[first:last].detach()
        part = part.view(tuple(shape)) if shape is not None and last - first == end - start else part
    yield Segment(first, last, part, paths, before + first - start)

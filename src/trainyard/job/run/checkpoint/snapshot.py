"""Snapshot: the state of a run by parameter path and in whole shapes, as the parts that one rank holds.

What is saved says nothing of the plan that it was saved under: what is divided is put together first, a part
of a cut parameter knows where it lies in the whole one, and every element is written by one rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.segment import Segment
from trainyard.job.plan import PIPELINE
from trainyard.job.run.checkpoint.same_run import BUFFERS, FIELDS, PARAMS
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.state import BucketState
from trainyard.program.boxes import Box, boxes
from trainyard.program.placement import Placement, Shard

Written = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Types and shapes of the tensors of a checkpoint, by ``<field>/<path>``."""


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a tensor that one rank holds.

    Attributes
    ----------
    shape : of the whole tensor.
    tensor : the rank's part, at least one-dimensional.
    boxes : its rectangles; all of them together are the part.
    """

    shape: tuple[int, ...]
    tensor: torch.Tensor
    boxes: tuple[Box, ...]


def fields(executor: Executor) -> tuple[str, ...]:
    """Names of the tensors of a trained parameter: its value, and what the optimizer keeps."""
    # Not what this rank has: it may have no trained parameters.
    config = executor.optimizer.config
    return (PARAMS, *config.moments, *config.tensors)


def take(executor: Executor, wanted: tuple[str, ...]) -> dict[str, Part]:
    """The parts that this rank writes, copied to the CPU, by ``<field>/<path>``.

    Collective. At most one bucket of one field is whole on a device at a time.

    Parameters
    ----------
    wanted : fields of trained parameters; all else of the module is taken in any case.
    """
    taken: dict[str, Part] = {}
    position = _positions(executor)
    for state in executor.state.buckets.values():
        first_of_its_stages = state.bucket.stage == state.bucket.stages[0] and _is_first_of(
            executor, state.bucket.stage
        )
        for field, flat in _flats(executor, state).items():
            if field not in wanted:
                continue
            whole = executor.state.local_tensors({state.bucket.name: flat})
            for path, value in whole.items():
                placements = executor.lowered.params[path].placements
                if first_of_its_stages and _is_writer(executor, placements, position[path]):
                    taken[f"{field}/{path}"] = _part(executor, value, placements)
    for field, of_params in executor.optimizer.tensors().items():
        for path, value in of_params.items() if field in wanted else ():
            if _is_first_of(executor, executor.lowered.params[path].stages[0]) and _is_writer(
                executor, {}, position[path]
            ):
                # In its own type, and in its own shape.
                taken[f"{field}/{path}"] = _described(executor, value.detach().to("cpu", copy=True), {})
    for frozen in executor.state.frozen.values():
        for path, value in executor.state.local_tensors({frozen.bucket.name: frozen.exact}).items():
            param = executor.lowered.params[path]
            if frozen.bucket.stage == param.stages[0] and _is_writer(
                executor, param.placements, position[path]
            ):
                taken[f"{PARAMS}/{path}"] = _part(executor, value, param.placements)
    for field, path, value in _constants(executor):
        placements = executor.placements(path)
        if _is_home(executor, path) and _is_writer(executor, placements, position.get(path, 0)):
            taken[f"{field}/{path}"] = _part(executor, executor.exact.get(path, value), placements)
    for (kind, path), value in executor.unused.items():
        taken[f"{FIELDS[kind]}/{path}"] = _part(executor, value, {})
    return taken


def _positions(executor: Executor) -> dict[str, int]:
    """Parameters by size, on all ranks alike: where every other is a weight, every other is not a bias."""
    params = executor.lowered.params.values()
    ordered = sorted(params, key=lambda p: (-math.prod(p.whole_shape), p.path))
    return {param.path: i for i, param in enumerate(ordered)}


def _is_home(executor: Executor, path: str) -> bool:
    """Return whether this rank has the stage that writes a constant: the one that makes it, else the first that uses
    it."""
    stages = executor.lowered.stages
    making = [s.stage for s in stages for seg in s.segments.values() if _makes(seg, path)]
    using = [s.stage for s in stages for seg in s.segments.values() if _uses(seg, path)]
    return _is_first_of(executor, min(making or using or [0]))


def _is_first_of(executor: Executor, stage: int) -> bool:
    """Return whether this rank writes the tensors that all ranks of a stage have."""
    return executor.plan.schedule.ranks_of(stage)[0] == executor.groups.index(PIPELINE)


def _uses(segment: Segment, path: str) -> bool:
    return any(slot.name == path and slot.kind in ("buffer", "param") for slot in segment.inputs)


def _makes(segment: Segment, path: str) -> bool:
    return any(result == f"buffer:{path}" for _, result in segment.results)


def _flats(executor: Executor, state: BucketState) -> dict[str, torch.Tensor]:
    moments = executor.optimizer.moments()
    return {PARAMS: state.master, **{name: of[state.bucket.name] for name, of in moments.items()}}


def _is_writer(executor: Executor, placements: Mapping[str, Placement], position: int) -> bool:
    """Copies are written by one rank, another one for each parameter so that all write about as much."""
    groups = executor.groups
    for axis in groups.mesh.axes:
        if not isinstance(placements.get(axis), Shard):
            if groups.index(axis) != position % groups.size(axis):
                return False
            position //= groups.size(axis)
    return True


def _constants(executor: Executor) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Buffers, and the parameters that are not trained and not in buckets, as they are computed with: field, path, value.

    Ranks that hold the same ones all name them.
    """
    trained = {p for s in executor.state.buckets.values() for p in s.bucket.paths}
    for path, value in executor.params.items():
        if path not in trained and path in executor.constants:
            yield PARAMS, path, value
    for path, value in executor.buffers.items():
        yield BUFFERS, path, value


def _part(executor: Executor, value: torch.Tensor, placements: Mapping[str, Placement]) -> Part:
    return _described(executor, value.detach().to("cpu", _kept_dtype(value), copy=True), placements)


def _kept_dtype(value: torch.Tensor) -> torch.dtype:
    """Return the type of a number on the disk, which has at least the precision of float32."""
    return torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype


def _described(executor: Executor, part: torch.Tensor, placements: Mapping[str, Placement]) -> Part:
    """A part with its place; a number without dimensions becomes a row of one."""
    groups = executor.groups
    part = part.view(1) if part.dim() == 0 else part
    shape = list(part.shape)
    for axis in groups.shares:
        placement = placements.get(axis)
        if isinstance(placement, Shard):
            shape[placement.dim] *= groups.size(axis)
    return Part(tuple(shape), part, boxes(tuple(shape), placements, groups.shares))


class Target:
    """The tensors into which a checkpoint is read: views of a rank's state if possible, else tensors that are copied
    later.

    Attributes
    ----------
    parts : what this rank needs, by ``<field>/<path>``; only parameters of which it keeps an element.
    """

    def __init__(self, executor: Executor, wanted: tuple[str, ...], written: Written) -> None:
        self.executor = executor
        self.parts: dict[str, Part] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._exact: dict[str, torch.Tensor] = {}
        for state in executor.state.buckets.values():
            for field, flat in _flats(executor, state).items():
                if field in wanted:
                    self._add(field, state.bucket, flat)
        self._tensors = self._optimizer_tensors(wanted, written)
        for frozen in executor.state.frozen.values():
            self._add(PARAMS, frozen.bucket, frozen.exact)
            if frozen.part is not frozen.exact:
                self._copies.append((frozen.part, frozen.exact))
        for field, path, value in _constants(executor):
            exact = executor.exact.get(path, value)
            # Copied over even where the type is the same: buffers may be shared with graphs that ran.
            read = torch.empty(exact.shape, dtype=_kept_dtype(exact))
            self.parts[f"{field}/{path}"] = _described(executor, read, executor.placements(path))
            self._copies.append((value, read))
            if path in executor.exact:
                self._exact[path] = read
        self._unused = {key: torch.empty(v.shape, dtype=_kept_dtype(v)) for key, v in executor.unused.items()}
        for (kind, path), read in self._unused.items():
            self.parts[f"{FIELDS[kind]}/{path}"] = _described(executor, read, {})

    def _optimizer_tensors(
        self, wanted: tuple[str, ...], written: Written
    ) -> dict[str, dict[str, torch.Tensor]]:
        """The tensors that an optimizer keeps of this rank's whole parameters, as the checkpoint has their shapes."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        paths = [path for state in self.executor.state.buckets.values() for path in state.bucket.paths]
        for field in set(wanted) & set(self.executor.optimizer.config.tensors):
            for path in paths:
                if (known := written.get(f"{field}/{path}")) is not None:
                    read = torch.empty(known[1], dtype=known[0])
                    found.setdefault(field, {})[path] = read
                    self.parts[f"{field}/{path}"] = _described(self.executor, read, {})
        return found

    def _add(self, field: str, bucket: Bucket, flat: torch.Tensor) -> None:
        """The parameters of a bucket of which this rank keeps elements ``low`` to ``high``."""
        share = flat.numel()
        low = self.executor.state.shard_index(bucket) * share
        high = low + share
        start = 0
        for path, shape, size in zip(bucket.paths, bucket.shapes, bucket.sizes, strict=True):
            first, last = max(low, start), min(high, start + size)
            placements = self.executor.lowered.params[path].placements
            if first < last:
                mine = flat[first - low : last - low]
                if last - first == size:
                    part = mine.view(shape)
                else:
                    part = torch.empty(shape, dtype=flat.dtype)
                    self._copies.append((mine, part.view(-1)[first - start : last - start]))
                self.parts[f"{field}/{path}"] = _described(self.executor, part, placements)
            start += size

    def finish(self) -> None:
        """Put what was read where it belongs, and give all ranks the new weights. Collective."""
        for kept, read in self._copies:
            kept.copy_(read)
        if self._tensors:
            self.executor.optimizer.restore_tensors(self._tensors)
        self.executor.exact |= self._exact
        self.executor.unused |= self._unused
        self.executor.restored()

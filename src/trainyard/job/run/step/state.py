"""The state of one rank: parameters, gradients and what reduces them, in flat buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from trainyard.job.lower.buckets import MAX_REDUCTIONS_IN_FLIGHT, Bucket, Param
from trainyard.job.run.step.process_groups import ProcessGroups, gather_into, scatter_from
from trainyard.program.placement import Placement, Shard
from trainyard.program.spmd import take_part

Values = Callable[[str], torch.Tensor]
"""The whole value of a parameter or buffer by path."""


def local_part(
    value: torch.Tensor, placements: Mapping[str, Placement], groups: ProcessGroups
) -> torch.Tensor:
    """This rank's part of a whole tensor: cut along one axis of the mesh after the other, the outermost first."""
    for axis, (first, held, num_parts) in groups.shares.items():
        placement = placements.get(axis)
        if isinstance(placement, Shard):
            value = take_part(value, first, placement.dim, placement.blocks, num_parts, held)
    return value


@dataclass(eq=False)
class BucketState:
    """One bucket on one rank.

    Attributes
    ----------
    master : float32 [num_elements / num_shards], what the optimizer updates.
    weights : compute type [num_elements], or None where parameters are gathered when they are used.
    params : the parameters as views of ``weights``.
    grads : float32 gradients: [num_elements], or of ``master``'s size if gradients are sharded.
    """

    bucket: Bucket
    master: torch.Tensor
    weights: torch.Tensor | None
    grads: torch.Tensor
    num_accumulated: int = 0

    @cached_property
    def grad_views(self) -> list[torch.Tensor]:
        """The gradients in the parameters' shapes, where they are not sharded."""
        return list(self.bucket.views(self.grads))


@dataclass(frozen=True, eq=False)
class FrozenState:
    """The part that one rank keeps of a bucket that is not trained.

    Attributes
    ----------
    part : compute type [bucket.share].
    exact : what it was before it was rounded to that type, on the CPU; ``part`` itself where nothing was rounded.
    """

    bucket: Bucket
    part: torch.Tensor
    exact: torch.Tensor


class RankState:
    """Parameters, gradients and buffers of one rank.

    Parameters
    ----------
    buckets, frozen : of all stages of the rank: what is trained, and what is not and is shared by the ranks.
    params, values : descriptions of the parameters, and whole initial values.
    num_microbatches : whose gradients are added up before the next update; it changes where updates are of some of the
        microbatches.
    """

    def __init__(
        self,
        buckets: tuple[Bucket, ...],
        frozen: tuple[Bucket, ...],
        params: Mapping[str, Param],
        groups: ProcessGroups,
        values: Values,
        device: torch.device,
        num_microbatches: int,
    ) -> None:
        self.groups = groups
        self.device = device
        self.num_microbatches = num_microbatches
        self.buckets = {b.name: self._make(b, params, values) for b in buckets}
        self.frozen = {b.name: self._make_frozen(b, params, values) for b in frozen}
        # Reductions of the whole step's gradients that are under way, and those that are done until the update: their
        # part (None if in place).
        self.pending: dict[str, tuple[dist.Work, torch.Tensor | None]] = {}
        self.reduced: dict[str, torch.Tensor | None] = {}
        # Gathers of weights, and what each rank gives to them.
        self.gathering: dict[str, tuple[dist.Work, torch.Tensor]] = {}
        # Reductions of one microbatch's, oldest first: the part, and what is reduced.
        self.in_flight: deque[tuple[BucketState, dist.Work, torch.Tensor, torch.Tensor]] = deque()

    def _make(self, bucket: Bucket, params: Mapping[str, Param], values: Values) -> BucketState:
        flat = torch.zeros(bucket.num_elements, dtype=torch.float32)
        flat[: sum(bucket.sizes)] = self._initial(bucket, params, values)
        flat = flat.to(self.device)
        share, own = bucket.share, self._own(bucket)
        weights = None if bucket.parameters_shared else flat.to(_dtype(bucket))
        # Detached: a view would hold the memory of these weights when the next ones lie elsewhere.
        in_weights = None if bucket.is_converted else weights
        master = flat[own].clone() if in_weights is None else in_weights[own].detach()
        grads = torch.zeros(share if bucket.gradients_shared else bucket.num_elements, device=self.device)
        return BucketState(bucket, master, weights, grads)

    def _make_frozen(self, bucket: Bucket, params: Mapping[str, Param], values: Values) -> FrozenState:
        given = self._initial(bucket, params, values)
        flat = given.new_zeros(bucket.num_elements)
        flat[: given.numel()] = given
        exact = flat[self.shard_index(bucket) * bucket.share :][: bucket.share].clone()
        part = exact.to(self.device, _dtype(bucket))
        return FrozenState(bucket, part, part if part.dtype == exact.dtype else exact)

    def _initial(self, bucket: Bucket, params: Mapping[str, Param], values: Values) -> torch.Tensor:
        """The values of a bucket's parameters, one after the other."""
        return torch.cat(
            [local_part(values(p), params[p].placements, self.groups).reshape(-1) for p in bucket.paths]
        )

    def shard_index(self, bucket: Bucket) -> int:
        """Return which of a bucket's equal parts this rank keeps."""
        return self.groups.bucket_group(bucket.summed_over).rank() if bucket.num_shards > 1 else 0

    def _own(self, bucket: Bucket) -> slice:
        """Return the range of a bucket that is this rank's part."""
        return slice(self.shard_index(bucket) * bucket.share, (self.shard_index(bucket) + 1) * bucket.share)

    def param_views(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Return whole local parameters by path, of the buckets that are not gathered on use; by default of all."""
        found: dict[str, torch.Tensor] = {}
        for name in self.buckets if names is None else names:
            state = self.buckets[name]
            if state.weights is not None:
                found |= zip(state.bucket.paths, state.bucket.views(state.weights), strict=True)
        return found

    def gather_params(self, name: str) -> tuple[torch.Tensor, ...]:
        """The parameters of a sharded bucket, whole."""
        if name in self.frozen:
            bucket, part = self.frozen[name].bucket, self.frozen[name].part
        else:
            bucket = self.buckets[name].bucket
            part = self.buckets[name].master.to(_dtype(bucket))
        flat = self._gather(bucket, part)
        self.groups.count_sent(flat, bucket.num_shards)
        return bucket.views(flat)

    def _gather(self, bucket: Bucket, part: torch.Tensor) -> torch.Tensor:
        """A whole bucket; it travels as bytes, since not every type of numbers may travel."""
        flat = torch.empty(bucket.num_elements, dtype=part.dtype, device=part.device)
        group = self.groups.bucket_group(bucket.summed_over)
        gather_into(flat.view(torch.uint8), part.contiguous().view(torch.uint8), group=group)
        return flat

    def accumulate_grads(self, name: str, grads: list[torch.Tensor]) -> None:
        """Add one microbatch's gradients; after the last, start to reduce them."""
        state = self.buckets[name]
        state.num_accumulated += 1
        last = state.num_accumulated == self.num_microbatches
        if state.grads.numel() != state.bucket.num_elements:
            self._accumulate_sharded(state, grads)
            return
        views = state.grad_views
        if state.num_accumulated == 1:
            # Some were computed there.
            apart = [(v, g) for v, g in zip(views, grads, strict=True) if v.data_ptr() != g.data_ptr()]
            if apart:
                torch._foreach_copy_([view for view, _ in apart], [grad for _, grad in apart])
        else:
            torch._foreach_add_(views, [g.to(torch.float32) for g in grads])
        if last and state.bucket.reduced and state.bucket.is_of_one_action:
            self.start_reduction(name)

    def _accumulate_sharded(self, state: BucketState, grads: list[torch.Tensor]) -> None:
        if state.num_accumulated == 1:
            state.grads.zero_()
        self._settle(MAX_REDUCTIONS_IN_FLIGHT - 1)
        flat = torch.empty(state.bucket.num_elements, device=self.device)
        flat[sum(state.bucket.sizes) :] = 0
        torch._foreach_copy_(list(state.bucket.views(flat)), grads)
        part = torch.empty_like(state.grads)
        work = scatter_from(
            part, flat, group=self.groups.bucket_group(state.bucket.summed_over), async_op=True
        )
        self.groups.count_sent(flat, state.bucket.num_shards)
        self.in_flight.append((state, work, part, flat))

    def _settle(self, num_left: int) -> None:
        """Wait for the oldest reductions of microbatches until ``num_left`` are in flight, and add what they made."""
        while len(self.in_flight) > num_left:
            state, work, part, _ = self.in_flight.popleft()
            self.groups.finish(work)
            state.grads += part

    # What the routines of the update call; see ``trainyard.job.lower.update``.

    def start_reduction(self, name: str) -> None:
        """Sum a bucket's gradients over the ranks that have terms of them, each of which may keep a part."""
        state = self.buckets[name]
        group = self.groups.bucket_group(state.bucket.summed_over)
        if state.bucket.num_shards == 1:
            work = dist.all_reduce(state.grads, group=group, async_op=True)
            self.groups.count_sent(state.grads, state.bucket.num_terms, rounds=2)
            self.pending[name] = (work, None)
        else:
            part = torch.empty_like(state.master)
            work = scatter_from(part, state.grads, group=group, async_op=True)
            self.groups.count_sent(state.grads, state.bucket.num_shards)
            self.pending[name] = (work, part)

    def wait_reduction(self, name: str) -> None:
        """Until the bucket's gradients are summed."""
        work, self.reduced[name] = self.pending.pop(name)
        self.groups.finish(work)

    def finish_accumulation(self, names: Iterable[str]) -> None:
        """All microbatches have given their gradients; what is reduced for each of them is added to the end.

        Raises
        ------
        RuntimeError
            If not every microbatch has.
        """
        for name in names:
            state = self.buckets[name]
            if state.num_accumulated != self.num_microbatches:
                raise RuntimeError(
                    f"{name} ({', '.join(state.bucket.paths)}) has gradients of {state.num_accumulated} microbatches "
                    f"of {self.num_microbatches}; update only after all of their actions"
                )
            state.num_accumulated = 0
        self._settle(0)

    def add_grads(self, name: str, other: str) -> None:
        """Add another bucket's gradients, of the same parameters."""
        self.buckets[name].grads += self.buckets[other].grads

    def copy_grads(self, name: str, other: str) -> None:
        """Take over another bucket's gradients, of the same parameters."""
        self.buckets[name].grads.copy_(self.buckets[other].grads)

    def sum_over_stages(self, name: str, stages: tuple[int, ...]) -> None:
        """Sum a bucket's gradients over the ranks of the stages that have its parameters."""
        total, group = self.buckets[name].grads, self.groups.stage_group(stages)
        dist.all_reduce(total, group=group)
        self.groups.count_sent(total, group.size(), rounds=2)

    def gradients(self, names: Iterable[str]) -> list[torch.Tensor]:
        """The gradient of every bucket's ``master``, once it is summed; until the update."""
        parts = [(self.buckets[name], self.reduced.get(name)) for name in names]
        return [state.grads if part is None else part for state, part in parts]

    def move_weights(self, names: Iterable[str]) -> None:
        """Go on with a copy of the parameters, so that an update leaves what they were."""
        for state in map(self.buckets.__getitem__, names):
            assert state.weights is not None
            state.weights = state.weights.clone()
            if not state.bucket.is_converted:
                # The optimizer knows the tensor, not where it lies.
                state.master.data = state.weights[self._own(state.bucket)]

    def convert_weights(self, name: str) -> None:
        """The updated parameters of a bucket, in the type in which they are computed with."""
        state = self.buckets[name]
        assert state.weights is not None
        state.weights.copy_(state.master)

    def start_weights(self, name: str) -> None:
        """Put the updated parts of a bucket's parameters together, on every rank."""
        state = self.buckets[name]
        assert state.weights is not None
        part = state.master.to(_dtype(state.bucket), copy=True)
        work = gather_into(
            state.weights, part, group=self.groups.bucket_group(state.bucket.summed_over), async_op=True
        )
        self.groups.count_sent(state.weights, state.bucket.num_shards)
        self.gathering[name] = (work, part)

    def wait_weights(self, name: str) -> None:
        """Until they are."""
        work, _ = self.gathering.pop(name)
        self.groups.finish(work)

    def local_tensors(self, flats: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return whole local tensors by parameter path, from one flat tensor per bucket of a whole one's size or a
        part's.

        Collective where a bucket is divided over ranks.
        """
        found: dict[str, torch.Tensor] = {}
        for name, flat in flats.items():
            bucket = (self.frozen if name in self.frozen else self.buckets)[name].bucket
            if flat.numel() != bucket.num_elements:
                flat = self._gather(bucket, flat)
            found |= zip(bucket.paths, bucket.views(flat), strict=True)
        return found


def _dtype(bucket: Bucket) -> torch.dtype:
    """The type in which a bucket's parameters are computed with."""
    found: torch.dtype = getattr(torch, bucket.dtype)
    return found

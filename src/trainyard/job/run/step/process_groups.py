"""Process groups: one rank's place among the processes, and the groups in which it communicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from trainyard.job.lower.calls import Transfer, rank_pairs
from trainyard.job.lower.lower import Lowered
from trainyard.job.plan import PIPELINE, Axes, Plan
from trainyard.program import spmd

# PyTorch 2.13 renames these two; 2.11 knows only the older names.
gather_into: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_from: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}

Pair = tuple[int, int]


@dataclass(frozen=True)
class Started:
    """A message under way.

    Attributes
    ----------
    sent : what it reads until it has arrived.
    result : to be called then.
    """

    work: dist.Work
    sent: torch.Tensor
    result: Callable[[], torch.Tensor]


class ProcessGroups:
    """The process groups of a plan, as one rank sees them.

    Parameters
    ----------
    plan : its axes.
    rank : of this process. Groups are made collectively: every rank makes its own at the same time.
    device : on which values lie.
    summed_over : sets of axes over which gradients are summed.
    shared_stages : sets of stages whose ranks share a parameter and therefore sum its gradients.
    transfers : what stages send to each other.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        summed_over: Iterable[Axes] = (),
        shared_stages: frozenset[tuple[int, ...]] = frozenset(),
        transfers: Iterable[Transfer] = (),
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.coordinate = plan.coordinate(rank)
        pipeline = self.coordinate[PIPELINE]
        self.mesh = plan.meshes[pipeline]
        self.shares = self.mesh.shares(rank - plan.ranks(pipeline).start)
        # Apart, though their ranks may be the same: see `Group.of_buckets`.
        self._axis_groups: dict[str, dist.ProcessGroup] = {}
        self._bucket_groups: dict[Axes, dist.ProcessGroup] = {}
        self._stage_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._pair_groups: dict[Pair, dist.ProcessGroup] = {}
        self.sent_bytes, self.waited_s = 0, 0.0
        if plan.num_ranks == 1:
            return
        for axis in sorted({axis for mesh in plan.meshes for axis, _ in mesh.nontrivial}):
            if (own := self._make_groups(self._along((axis,)))) is not None:
                self._axis_groups[axis] = own
        for axes in sorted(set(summed_over) - {()}):
            if (own := self._make_groups(self._along(axes))) is not None:
                self._bucket_groups[axes] = own
        for stages in sorted(shared_stages):
            self._make_stage_groups(stages)
        if device.type == "cuda":
            self._make_pair_groups(transfers)

    def _along(self, axes: Axes) -> list[tuple[int, ...]]:
        return [group for p in range(self.plan.pipeline) for group in self.plan.groups(axes, p)]

    def _make_groups(self, groups: Iterable[tuple[int, ...]]) -> dist.ProcessGroup | None:
        """Make process groups; the one that has this rank."""
        found = None
        for ranks in groups:
            group = dist.new_group(list(ranks))
            found = group if self.rank in ranks else found
        return found

    def _make_stage_groups(self, stages: tuple[int, ...]) -> None:
        pipeline_ranks = self.plan.schedule.ranks_with(stages)
        if len(pipeline_ranks) == 1:
            return
        if (own := self._make_groups(self.plan.groups_across(pipeline_ranks))) is not None:
            self._stage_groups[stages] = own

    def _make_pair_groups(self, transfers: Iterable[Transfer]) -> None:
        """One group per sender and receiver.

        NCCL knows no tags, and runs what a pair sends in one group in the order of the calls, both directions in
        one line: two ranks that each begin by sending would wait for each other for ever.
        """
        plan = self.plan
        between = [
            (t, pair) for t in transfers for pair in rank_pairs(plan.schedule, t) if pair[0] != pair[1]
        ]
        for peers in sorted({peers for t, pair in between for peers in t.peers(plan, *pair)}):
            if (own := self._make_groups([peers])) is not None:
                self._pair_groups[peers] = own

    def size(self, *axes: str) -> int:
        """Ranks along some axes together."""
        return self.mesh.size(*axes)

    def index(self, axis: str) -> int:
        """This rank's index on an axis."""
        return self.coordinate[axis]

    def bucket_group(self, axes: Axes) -> dist.ProcessGroup:
        """The ranks that differ from this one on some axes only, for buckets."""
        return self._bucket_groups[axes]

    def stage_group(self, stages: tuple[int, ...]) -> dist.ProcessGroup:
        """This rank and its peers that share a parameter of some stages."""
        return self._stage_groups[stages]

    def pair_group(self, sender: int, receiver: int) -> dist.ProcessGroup | None:
        """The group in which one rank sends to another; None for the one of all ranks."""
        return self._pair_groups.get((sender, receiver))

    def count_sent(self, whole: torch.Tensor, num_ranks: int, rounds: int = 1) -> None:
        """Count what this rank sends in a collective by the ring algorithm, into ``sent_bytes``.

        Parameters
        ----------
        whole : of which each of ``num_ranks`` ranks passes on all parts but one, ``rounds`` times: twice in an
            all-reduce (reduce-scatter, then all-gather), else once.
        """
        whole_bytes = whole.numel() * whole.element_size()
        self.sent_bytes += rounds * whole_bytes * (num_ranks - 1) // num_ranks

    # What lowered graphs call; see ``trainyard.program.spmd.Communicator``.

    def axis_offset(self, axis: str, scale: int) -> int:
        return self.shares[axis].first * scale

    def start_all_reduce(self, x: torch.Tensor, axis: str, reduction: str) -> Started:
        n, share = self.size(axis), self.shares[axis]
        result = x.clone(memory_format=torch.contiguous_format)
        is_uneven = reduction == "avg" and n != share.of
        if is_uneven:
            result *= share.held / share.of
        work = dist.all_reduce(result, _OPS[reduction], group=self._axis_groups[axis], async_op=True)
        self.count_sent(result, n, rounds=2)
        return Started(work, result, lambda: result / n if reduction == "avg" and not is_uneven else result)

    def start_all_gather(self, x: torch.Tensor, axis: str, dim: int, blocks: int) -> Started:
        n, size = self.size(axis), x.shape[dim]
        parts, sent = x.new_empty((n, *x.shape)), x.contiguous()
        work = gather_into(parts.flatten(0, 1), sent, group=self._axis_groups[axis], async_op=True)
        self.count_sent(parts, n)

        def result() -> torch.Tensor:
            if dim == 0 and blocks == 1:
                return parts.flatten(0, 1)
            # [ranks, .., blocks, part, ..] -> [.., blocks, ranks, part, ..]
            cut: torch.Tensor = parts.unflatten(dim + 1, (blocks, size // blocks))
            return cut.movedim(0, dim + 1).flatten(dim, dim + 2)

        return Started(work, sent, result)

    def start_reduce_scatter(self, x: torch.Tensor, axis: str, dim: int, blocks: int) -> Started:
        n = self.size(axis)
        cut: torch.Tensor = x.unflatten(dim, (blocks, n, x.shape[dim] // (blocks * n)))
        parts = cut.movedim(dim + 1, 0).contiguous()
        result = parts.new_empty(parts.shape[1:])
        work = scatter_from(result, parts.flatten(0, 1), group=self._axis_groups[axis], async_op=True)
        self.count_sent(parts, n)
        return Started(work, parts, lambda: result.flatten(dim, dim + 1))

    def start_all_to_all(
        self, x: torch.Tensor, axis: str, dim: int, blocks: int, to_dim: int, to_blocks: int
    ) -> Started:
        n = self.size(axis)
        if dim == to_dim:
            gather = self.start_all_gather(x, axis, dim, blocks)
            return replace(gather, result=lambda: self._own_part(gather.result(), axis, dim, to_blocks))
        # Cut what is kept whole into one part per rank, exchange, and put the parts of the cut dimension together.
        cut: torch.Tensor = x.unflatten(to_dim, (to_blocks, n, x.shape[to_dim] // (to_blocks * n)))
        sent = cut.movedim(to_dim + 1, 0).contiguous()
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(
            received.flatten(0, 1), sent.flatten(0, 1), group=self._axis_groups[axis], async_op=True
        )
        self.count_sent(sent, n)

        def result() -> torch.Tensor:
            parts: torch.Tensor = received.flatten(to_dim + 1, to_dim + 2)
            joined: torch.Tensor = parts.unflatten(dim + 1, (blocks, parts.shape[dim + 1] // blocks))
            return joined.movedim(0, dim + 1).flatten(dim, dim + 2)

        return Started(work, sent, result)

    def _own_part(self, whole: torch.Tensor, axis: str, dim: int, blocks: int) -> torch.Tensor:
        return spmd.take_part(whole, self.index(axis), dim, blocks, self.size(axis))

    def finish(self, work: dist.Work) -> None:
        """Wait for a message or a collective, and count the seconds."""
        began_s = time.perf_counter()
        work.wait()
        self.waited_s += time.perf_counter() - began_s

    def wait(self, started: Started, *read: torch.Tensor) -> torch.Tensor:
        self.finish(started.work)
        return started.result()


def make_groups(lowered: Lowered, rank: int, device: torch.device) -> ProcessGroups:
    """Make the process groups of a lowered plan, as one rank sees them; all ranks call this together."""
    trained = [b for stage in lowered.stages for b in stage.buckets]
    shared = frozenset(b.stages for b in trained if len(b.pipeline_ranks) > 1)
    summed_over = {b.summed_over for b in (*trained, *(b for s in lowered.stages for b in s.frozen))}
    return ProcessGroups(lowered.plan, rank, device, summed_over, shared, lowered.transfers)

"""Proof that each update of a stage applies the gradients made since the one before, and keeps what is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from trainyard.job.lower import ops
from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.verify_update import LoweringError


def check_stage_updates(lowered: Lowered, rank: int) -> None:
    """Check the calls of a pipeline rank that are updates, what they run, and the end of its step.

    Raises
    ------
    LoweringError
        Names the rank and the call at fault.
    """
    for stage in lowered.stages_of(rank):
        versions = _Versions(lowered, f"rank {rank}")
        for call in lowered.calls[rank]:
            if call.action.stage == stage.stage:
                versions.run(call)
        versions.finish(stage.stage)
    buckets = {stage.stage: stage.buckets for stage in lowered.stages_of(rank)}
    for update, graph in lowered.stage_updates.items():
        if update.stage in buckets:
            share = update.num_microbatches / lowered.plan.num_microbatches
            where = f"rank {rank}, {update}"
            _check_ops(_ops(graph), buckets[update.stage], update.in_place, share, where)
    _check_end(lowered, rank)


class _Versions:
    """Follows the weights of one stage: which versions are held, and the gradients that wait for an update."""

    def __init__(self, lowered: Lowered, where: str) -> None:
        self.lowered, self.where = lowered, where
        self.newest = 0
        self.held = {0}
        self.began_with: dict[int, int] = {}
        self.waiting: list[Call] = []

    def run(self, call: Call) -> None:
        """One call of the stage."""
        used, microbatch = call.weights.version, call.action.microbatch
        if call.action.kind == "U":
            self._update(call)
            return
        if call.action.kind == "F":
            self.began_with[microbatch] = self.newest
        self._need(
            call, used == self.began_with.get(microbatch), "does not use the weights of its forward pass"
        )
        self._need(call, used in self.held, "uses weights that are no more there")
        if call.action.kind in ("B", "W"):
            self.waiting.append(call)
            del self.began_with[microbatch]
        if call.weights.is_last:
            self.held.remove(used)

    def _update(self, call: Call) -> None:
        needed = self.newest in self.began_with.values()
        self._need(call, call.weights.version == self.newest, "does not update the newest weights")
        self._need(
            call, call.weights.is_last != needed, "writes over weights that are needed, or keeps others"
        )
        right = bool(self.waiting) and all(
            c.weights.num_own == len(self.waiting) for c in (call, *self.waiting)
        )
        self._need(call, right, "does not apply the gradients since the last update, once")
        self._need(
            call, call.weights.num_applied == self._num_applied(call), "counts the microbatches wrongly"
        )
        self._need(call, call.update in self.lowered.stage_updates, "has nothing to run")
        self.waiting.clear()
        if call.weights.is_last:
            self.held.remove(self.newest)
        self.newest += 1
        self.held.add(self.newest)

    def _num_applied(self, update: Call) -> int:
        """Microbatches of the same update of all ranks of the stage."""
        stage = update.action.stage
        calls = (c for rank in self.lowered.plan.schedule.ranks_of(stage) for c in self.lowered.calls[rank])
        same = (update.action, update.weights.version)
        return sum(c.weights.num_own for c in calls if (c.action, c.weights.version) == same)

    def finish(self, stage: int) -> None:
        """After the last call."""
        if self.waiting or self.began_with:
            raise LoweringError(f"{self.where}: not all gradients of stage {stage} are applied")
        if self.held != {self.newest}:
            raise LoweringError(f"{self.where}: weights of stage {stage} are never let go of")

    def _need(self, call: Call, is_right: bool, otherwise: str) -> None:
        if not is_right:
            raise LoweringError(f"{self.where}, {call.action}: {otherwise}")


def _ops(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _check_ops(
    nodes: list[fx.Node], buckets: Sequence[Bucket], in_place: bool, share: float, where: str
) -> None:
    """Gradients are summed over the ranks of the stage, and its parameters updated, in this order and once."""
    names = tuple(b.name for b in buckets)
    holders = tuple(b.num_holders for b in buckets)
    norm = next((n for n in nodes if n.target is ops.squared_norm), None)
    wanted: list[tuple[Any, ...]] = [(ops.finish_accumulation, names)]
    wanted += [(ops.sum_over_stages, b.name, b.stages) for b in buckets if len(b.pipeline_ranks) > 1]
    wanted += [(ops.squared_norm, names, holders)]
    wanted += [] if in_place else [(ops.keep_weights, names)]
    wanted += [(ops.update_stage, names, norm, share)]
    wanted += [(ops.convert_weights, b.name) for b in buckets if b.is_converted]
    _compare(nodes, wanted, where)


def _check_end(lowered: Lowered, rank: int) -> None:
    """The losses and the norm are summed over all ranks, and nothing is updated again."""
    losses = tuple(sorted(name for name in lowered.results if not name.startswith("buffer:")))
    nodes = list(lowered.updates[rank].nodes)
    by_op = {node.target: node for node in nodes}
    wanted: list[tuple[Any, ...]] = [(ops.wait_sends,), (ops.start_losses, losses), (ops.mean_squared_norm,)]
    norm = by_op.get(ops.mean_squared_norm)
    if lowered.plan.num_ranks > 1:
        wanted.append((ops.sum_over_ranks, norm))
        norm = by_op.get(ops.sum_over_ranks)
    wanted += [(ops.wait_losses,), (ops.finish_updates, norm, by_op.get(ops.wait_losses))]
    _compare(nodes, wanted, f"rank {rank}, end of the step")


def _compare(nodes: list[fx.Node], wanted: list[tuple[Any, ...]], where: str) -> None:
    found = [(node.target, *node.args) for node in nodes]
    for node, is_right in zip(nodes, (f in wanted for f in found), strict=True):
        if not is_right:
            raise LoweringError(f"{where}: {node.name} of {', '.join(map(str, node.args))} is wrong")
    if found != wanted:
        missing = [op.__name__ for op, *_ in wanted if op not in {f[0] for f in found}]
        raise LoweringError(
            f"{where}: {missing[0] + ' is missing' if missing else 'ops are not in order, once each'}"
        )

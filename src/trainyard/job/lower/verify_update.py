"""Proof that the end of a step does all that it has to: gradients are summed once and used, and weights made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from trainyard.job.lower import ops
from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.lower import Lowered
from trainyard.job.plan import Plan


class LoweringError(RuntimeError):
    """The lowered program is wrong: a fault of the lowering, not of the plan. Nothing has run yet."""


def check_update(lowered: Lowered, rank: int) -> None:
    """Check the routines at the end of a step of one pipeline rank.

    Raises
    ------
    LoweringError
        Names the rank and the op at fault.
    """
    plan, where = lowered.plan, f"rank {rank}, update"
    buckets = {b.name: b for s in lowered.stages_of(rank) for b in s.buckets}
    update = lowered.updates[rank]
    gradients = _Gradients(plan, buckets, where)
    for node in _calls(update.gradients):
        gradients.run(node)
    gradients.finish()
    losses = tuple(sorted(name for name in lowered.results if not name.startswith("buffer:")))
    if any(n.args[0] != losses for n in _calls(update.gradients) if n.target is ops.start_losses):
        raise LoweringError(f"{where}: not all losses are averaged")
    _check_parameters(_calls(update.parameters), plan, list(buckets.values()), where)
    _check_weights(_calls(update.weights), buckets, where)


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


class _Gradients:
    """Follows what the gradients of every bucket are: of which stages the sum, and whether of all ranks with terms."""

    def __init__(self, plan: Plan, buckets: dict[str, Bucket], where: str) -> None:
        self.plan, self.buckets, self.where = plan, buckets, where
        self.stages = {name: frozenset({b.stage}) for name, b in buckets.items()}
        # The last gradients of an action are on their way when it ends, except where they are shared by stages.
        alone = {name for name, b in buckets.items() if b.reduced and b.is_of_one_action}
        # Accumulation has reduced these, and no op on gradients may come before its end.
        self.reduced = {name for name, b in buckets.items() if b.gradients_shared}
        self.started = alone - self.reduced
        self.once: list[Any] = []

    def run(self, node: fx.Node) -> None:
        """One op of the routine."""
        known: dict[Any, Callable[..., None]] = {
            ops.add_grads: self._add,
            ops.copy_grads: self._copy,
            ops.sum_over_stages: self._sum_over_stages,
            ops.start_reduction: self._start,
            ops.wait_reduction: self._wait,
        }
        if node.target in known:
            if ops.finish_accumulation not in self.once:
                raise LoweringError(f"{self.where}: {node.name} comes before the end of accumulation")
            unknown = [a for a in node.args if isinstance(a, str) and a not in self.buckets]
            if unknown:
                raise LoweringError(f"{self.where}: {node.name} names {unknown[0]}, which the rank has not")
            known[node.target](node, *node.args)
        else:
            self._need(node, node.target not in self.once, "has run before")
            if node.target is ops.finish_accumulation:
                self._need(node, node.args[0] == tuple(self.buckets), "is not of all gradients of the rank")
            self.once.append(node.target)

    def finish(self) -> None:
        """After the last op."""
        missing = [op.__name__ for op in _ONCE if op not in self.once]
        if missing:
            raise LoweringError(f"{self.where}: there is no {missing[0]}")
        for name, bucket in self.buckets.items():
            if self.stages[name] != set(bucket.stages):
                raise LoweringError(
                    f"{self.where}: gradients of {name} are not summed over stages {bucket.stages}"
                )
            if bucket.reduced != (name in self.reduced):
                raise LoweringError(
                    f"{self.where}: gradients of {name} are not summed over the ranks that have terms of them"
                )

    def _need(self, node: fx.Node, is_right: bool, otherwise: str) -> None:
        if not is_right:
            raise LoweringError(f"{self.where}: {node.name} of {', '.join(map(str, node.args))} {otherwise}")

    def _add(self, node: fx.Node, name: str, other: str) -> None:
        self._need(node, self.buckets[name].paths == self.buckets[other].paths, "adds what is not shared")
        self._need(node, self.stages[name].isdisjoint(self.stages[other]), "adds the same twice")
        self._need(node, name not in self.started | self.reduced, "adds to what is on its way")
        self.stages[name] |= self.stages[other]

    def _copy(self, node: fx.Node, name: str, source: str) -> None:
        self._need(node, self.buckets[name].paths == self.buckets[source].paths, "copies what is not shared")
        self._need(node, self.stages[source] == set(self.buckets[source].stages), "copies a part of a sum")
        self._need(node, {name, source}.isdisjoint(self.started | self.reduced), "copies what is on its way")
        self.stages[name] = self.stages[source]

    def _sum_over_stages(self, node: fx.Node, name: str, stages: Sequence[int]) -> None:
        bucket, ranks_of = self.buckets[name], self.plan.schedule.ranks_of
        own = {s for s in bucket.stages if ranks_of(s) == ranks_of(bucket.stage)}
        self._need(node, tuple(stages) == bucket.stages, "is not of the stages that share it")
        self._need(node, self.stages[name] == own, "is not of all gradients of the rank, once")
        self._need(node, name not in self.started, "sums what is on its way")
        self.stages[name] = frozenset(bucket.stages)

    def _start(self, node: fx.Node, name: str) -> None:
        self._need(node, self.buckets[name].reduced, "sums what each rank has for itself")
        self._need(node, name not in self.started | self.reduced, "sums the same twice")
        self._need(node, self.stages[name] == set(self.buckets[name].stages), "is of a part of a sum")
        self.started.add(name)

    def _wait(self, node: fx.Node, name: str) -> None:
        self._need(node, name in self.started, "waits for what nothing started")
        self.started.remove(name)
        self.reduced.add(name)


_ONCE = (ops.wait_sends, ops.start_losses, ops.finish_accumulation)


def _check_parameters(nodes: list[fx.Node], plan: Plan, buckets: list[Bucket], where: str) -> None:
    """All gradients count once in the norm, and all parameters are updated with it."""
    by_op = {node.target: node for node in nodes}
    missing = {ops.squared_norm, ops.wait_losses, ops.update_parameters} - by_op.keys()
    if missing or len(by_op) != len(nodes):
        raise LoweringError(f"{where}: parameters are not updated once, with one norm and the losses")
    norm, update = by_op[ops.squared_norm], by_op[ops.update_parameters]
    names = tuple(b.name for b in buckets)
    for node in (norm, update):
        if node.args[0] != names:
            raise LoweringError(f"{where}: {node.name} is not of all gradients of the rank, once each")
    holders = tuple(b.num_holders for b in buckets)
    summed = by_op.get(ops.sum_over_ranks)
    if summed is None:
        # Each rank has all, and what stages share once in each of them, so that what it finds is the norm.
        on_rank = tuple(len(b.stages) for b in buckets)
        everywhere = tuple(plan.num_ranks * count for count in on_rank)
        is_right = plan.pipeline == 1 and norm.args[1] == on_rank and holders == everywhere
    else:
        is_right = norm.args[1] == holders and summed.args == (norm,)
    if not is_right:
        raise LoweringError(f"{where}: {norm.name} does not count every gradient once")
    if update.args[1:] != (summed or norm, by_op[ops.wait_losses]):
        raise LoweringError(f"{where}: {update.name} does not take the norm and the losses")


def _check_weights(nodes: list[fx.Node], buckets: dict[str, Bucket], where: str) -> None:
    """Weights that are kept beside what is updated are made once."""
    found = sorted((node.target.__name__, str(node.args[0])) for node in nodes)  # type: ignore[union-attr]
    wanted = []
    for name, bucket in buckets.items():
        if bucket.num_shards == 1:
            wanted += [("convert_weights", name)] if bucket.is_converted else []
        elif not bucket.parameters_shared:
            wanted += [("start_weights", name), ("wait_weights", name)]
    if found != sorted(wanted):
        wrong = sorted(set(found) ^ set(wanted)) or [f for f in found if found.count(f) > 1]
        raise LoweringError(
            f"{where}: weights are not made once: {' of '.join(wrong[0])} is missing or too much"
        )

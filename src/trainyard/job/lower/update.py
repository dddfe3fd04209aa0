"""Updates: routines that sum the gradients, update the parameters, and give every rank the new ones.

They run at the end of a step. Under a schedule with updates those of a stage run where the schedule says, and at the end
there is only what the step reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx, nn

from trainyard.job.lower import ops
from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.calls import StageUpdate
from trainyard.job.plan import Plan


@dataclass(frozen=True, eq=False)
class Update:
    """The routines of a pipeline rank after the last action of a step.

    Attributes
    ----------
    gradients : sums them over the ranks.
    parameters : updates this rank's part of them, unless a loss or the gradients' norm is not finite; returns the losses,
        the norm, and whether all is finite.
    weights : makes the weights with which the next step computes.
    restored : makes them of what was read from a checkpoint.
    """

    gradients: fx.Graph
    parameters: fx.Graph
    weights: fx.Graph
    restored: fx.Graph

    @property
    def routines(self) -> dict[str, fx.Graph]:
        """Routines of a step in their order, by name."""
        return {"gradients": self.gradients, "parameters": self.parameters, "weights": self.weights}

    @cached_property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Their ops, in the order in which they run."""
        return tuple(n for graph in self.routines.values() for n in graph.nodes if n.op == "call_function")


def write_update(plan: Plan, buckets: Sequence[Bucket], losses: Sequence[str]) -> Update:
    """The end of a step on one pipeline rank.

    Parameters
    ----------
    buckets : those that are trained of all stages of the rank.
    losses : names of the losses and metrics that the stages of the plan compute.
    """
    weights = _weights(buckets)
    if plan.schedule.has_updates:
        return Update(_started_losses(losses), _report(plan), _nothing(), weights)
    return Update(_gradients(plan, buckets, losses), _parameters(plan, buckets), weights, weights)


def write_stage_update(plan: Plan, update: StageUpdate, buckets: Sequence[Bucket]) -> fx.Graph:
    """The update of one stage in the middle of a step, on one pipeline rank.

    Parameters
    ----------
    buckets : those of the stage that are trained.
    """
    graph = fx.Graph()
    names = tuple(b.name for b in buckets)
    _call(graph, ops.finish_accumulation, names)
    for bucket in buckets:
        if len(bucket.pipeline_ranks) > 1:
            _call(graph, ops.sum_over_stages, bucket.name, bucket.stages)
    norm = _call(graph, ops.squared_norm, names, tuple(b.num_holders for b in buckets))
    if not update.in_place:
        _call(graph, ops.keep_weights, names)
    # Gradients are terms of the mean over all microbatches of the step.
    _call(graph, ops.update_stage, names, norm, update.num_microbatches / plan.num_microbatches)
    _make_weights(graph, buckets)
    graph.output(None)
    return graph


def graph_module(graph: fx.Graph) -> fx.GraphModule:
    """The graph of a routine without inputs, as a function."""
    return fx.GraphModule(nn.Module(), graph)


def _started_losses(losses: Sequence[str]) -> fx.Graph:
    graph = fx.Graph()
    _call(graph, ops.wait_sends)
    _call(graph, ops.start_losses, tuple(losses))
    graph.output(None)
    return graph


def _report(plan: Plan) -> fx.Graph:
    graph = fx.Graph()
    norm = _call(graph, ops.mean_squared_norm)
    if plan.num_ranks > 1:
        norm = _call(graph, ops.sum_over_ranks, norm)
    graph.output(_call(graph, ops.finish_updates, norm, _call(graph, ops.wait_losses)))
    return graph


def _nothing() -> fx.Graph:
    graph = fx.Graph()
    graph.output(None)
    return graph


def _gradients(plan: Plan, buckets: Sequence[Bucket], losses: Sequence[str]) -> fx.Graph:
    graph = fx.Graph()
    _call(graph, ops.wait_sends)
    # On its way while gradients arrive and their norm is computed.
    _call(graph, ops.start_losses, tuple(losses))
    _call(graph, ops.finish_accumulation, tuple(b.name for b in buckets))
    shared: dict[tuple[str, ...], list[Bucket]] = {}
    for bucket in buckets:
        if len(bucket.stages) > 1:
            shared.setdefault(bucket.paths, []).append(bucket)
    # In one order on all ranks, whose buckets may lie in different ones.
    for _, same in sorted(shared.items()):
        _sum_shared(graph, plan, same)
    for bucket in buckets:
        if bucket.reduced and not bucket.gradients_shared:
            _call(graph, ops.wait_reduction, bucket.name)
    graph.output(None)
    return graph


def _sum_shared(graph: fx.Graph, plan: Plan, same: Sequence[Bucket]) -> None:
    """A tied parameter has a gradient in every stage that uses it, some of which may be on this rank."""
    first, *others = same
    for other in others:
        _call(graph, ops.add_grads, first.name, other.name)
    if len(first.pipeline_ranks) > 1:
        _call(graph, ops.sum_over_stages, first.name, first.stages)
    for other in others:
        _call(graph, ops.copy_grads, other.name, first.name)
    for bucket in same:
        if bucket.reduced:
            _call(graph, ops.start_reduction, bucket.name)


def _parameters(plan: Plan, buckets: Sequence[Bucket]) -> fx.Graph:
    graph = fx.Graph()
    names = tuple(b.name for b in buckets)
    holders = tuple(b.num_holders for b in buckets)
    # As a rank that has all stages holds what they share.
    on_rank = tuple(len(b.stages) for b in buckets)
    every_rank_has_all = plan.pipeline == 1 and holders == tuple(plan.num_ranks * count for count in on_rank)
    norm = _call(graph, ops.squared_norm, names, on_rank if every_rank_has_all else holders)
    if plan.num_ranks > 1 and not every_rank_has_all:
        norm = _call(graph, ops.sum_over_ranks, norm)
    losses = _call(graph, ops.wait_losses)
    graph.output(_call(graph, ops.update_parameters, names, norm, losses))
    return graph


def _weights(buckets: Sequence[Bucket]) -> fx.Graph:
    graph = fx.Graph()
    _make_weights(graph, buckets)
    graph.output(None)
    return graph


def _make_weights(graph: fx.Graph, buckets: Sequence[Bucket]) -> None:
    gathered = [b.name for b in buckets if b.num_shards > 1 and not b.parameters_shared]
    for bucket in buckets:
        if bucket.name in gathered:
            _call(graph, ops.start_weights, bucket.name)
        elif bucket.num_shards == 1 and bucket.is_converted:
            _call(graph, ops.convert_weights, bucket.name)
    for name in gathered:
        _call(graph, ops.wait_weights, name)


def _call(graph: fx.Graph, op: Callable[..., Any], *args: Any) -> fx.Node:
    node = graph.call_function(op, args)
    node.meta = {"val": None}
    return node

"""Simulate a plan: the time and memory of one step of what the lowering made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import fx

from trainyard.cost.ops import OpSeconds, Roofline
from trainyard.engine.simulate import simulate
from trainyard.engine.timeline import Timeline
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.errors import HardwareError
from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.segment import Segment
from trainyard.job.lower.signatures import Library, RankContext, rank_context
from trainyard.job.schedule import Kind
from trainyard.job.simulation.build import Assembly, MemoryColumns
from trainyard.job.simulation.memory import (
    MEMORY_KINDS,
    OLDER_WEIGHTS,
    ActionMemory,
    Effect,
    StageMemory,
    stage_memory,
    state_bytes,
    totals_memory,
)
from trainyard.job.simulation.op_prices import PredictedOp, predicted_op
from trainyard.job.simulation.overhead import overhead_by_kind, smallest_device
from trainyard.job.simulation.prices import Prices, Ranks
from trainyard.job.simulation.result import ShareMemory, Simulation
from trainyard.job.simulation.template import Template, TemplateInput, make_template, op_seconds_of
from trainyard.job.simulation.transfers import add_transfers
from trainyard.job.simulation.update import update_template
from trainyard.program.flops import program_flops

__all__ = ["Simulation", "simulate_plan"]


def simulate_plan(
    lowered: Lowered,
    cluster: Cluster,
    op_seconds: OpSeconds | None = None,
) -> Simulation:
    """Simulate one step, after the first.

    Parameters
    ----------
    lowered : what the ranks run.
    cluster : rank ``r`` of the plan runs on its device ``r``.
    op_seconds : how long ops take; by default the roofline.

    Raises
    ------
    HardwareError
        If the plan needs more ranks than the cluster has.
    """
    plan = lowered.plan
    if plan.num_ranks > cluster.num_devices:
        raise HardwareError(
            f"the plan has {plan.num_ranks} ranks, and cluster {cluster.name!r} {cluster.num_devices} devices; plan "
            "for fewer ranks or take a larger cluster"
        )
    op_seconds = op_seconds or Roofline()
    flops = float(program_flops(lowered.program)) * plan.num_microbatches
    found = []
    # Where ranks of a mesh have unequal shares, a plan has the memory that it needs if each of them has.
    for variant in lowered.variants:
        assembly = assemble(variant, cluster, op_seconds)
        found.append(_result(assembly, simulate(assembly.builder.build()), flops))
    shortest = max(found, key=lambda result: max(result.shortage_bytes))
    return replace(shortest, sources=op_seconds.sources(), shares=_shares(lowered, found))


def _shares(lowered: Lowered, found: Sequence[Simulation]) -> tuple[ShareMemory, ...]:
    """Return the memory of each share of every pipeline rank, the largest first."""
    shares = {
        (pipeline, text): ShareMemory(
            pipeline, text, result.peak_bytes[pipeline], result.memory_limit_bytes[pipeline]
        )
        for variant, result in zip(lowered.variants, found, strict=True)
        for pipeline in range(lowered.plan.pipeline)
        if (text := variant.share_text(pipeline))
    }
    return tuple(sorted(shares.values(), key=lambda share: (share.pipeline, -share.peak_bytes)))


def assemble(lowered: Lowered, cluster: Cluster, op_seconds: OpSeconds) -> Assembly:
    """The tasks of a step, and the memory they take; parameters as those of `simulate_plan`."""
    plan = lowered.plan
    prices = Prices(plan, cluster, op_seconds)
    assembly = Assembly(lowered, cluster)
    stages = [lowered.stages_of(rank) for rank in range(plan.pipeline)]
    assembly.add_ranks([state_bytes(lowered, own) for own in stages])
    # The processors of this machine send over gloo.
    library: Library = "nccl" if cluster.profile is None else "gloo"
    contexts = [rank_context(lowered, rank, library) for rank in range(plan.pipeline)]
    memory = {
        s.stage: stage_memory(lowered, s, replace(context, is_first=_adds_nothing(lowered, s.stage)))
        for context, own in zip(contexts, stages, strict=True)
        for s in own
    }
    together: Together = {}
    for rank, context in enumerate(contexts):
        _add_rank(assembly, prices, rank, memory, context, together)
    add_transfers(assembly, prices, memory, library)
    assembly.wait()
    # Ranks that send to each other begin when the last of them is ready.
    for tasks in together.values():
        for ready, _ in tasks:
            assembly.builder.add_dependencies(ready, [task for _, task in tasks])
    columns = assembly.memory.columns()
    assembly.builder.add_memory(columns[0], columns[1], columns[3], columns[4])
    return assembly


def predicted_ops(
    lowered: Lowered, cluster: Cluster, op_seconds: OpSeconds
) -> dict[tuple[int, str], dict[str, PredictedOp]]:
    """Return the seconds of every op by itself, by pipeline rank and routine, then by the name of its node.

    A routine is a stage and a kind of action (``0F``), ``totals``, or one of the end of a step (``gradients``). Ops that
    only wait are left out: what they take is no cost of theirs. Other parameters are those of `simulate_plan`.
    """
    prices, found = Prices(lowered.plan, cluster, op_seconds), {}
    library: Library = "nccl" if cluster.profile is None else "gloo"
    for rank in range(lowered.plan.pipeline):
        context = rank_context(lowered, rank, library)
        graphs: dict[str, tuple[fx.Graph, Mapping[fx.Node, float], RankContext]]
        graphs = {name: (graph, {}, context) for name, graph in lowered.updates[rank].routines.items()}
        for stage in lowered.stages_of(rank):
            of_stage = replace(context, is_first=_adds_nothing(lowered, stage.stage))
            for kind, segment in stage.segments.items():
                op_s = _op_seconds(lowered, rank, segment, prices)
                graphs[f"{stage.stage}{kind}"] = segment.graph, op_s, of_stage
        for call in lowered.calls[rank]:
            if call.action.kind == "U":
                graphs[f"{call.action.stage}U"] = lowered.stage_updates[call.update], {}, context
        if (totals := lowered.totals[rank]) is not None:
            graphs["totals"] = totals.graph, op_seconds_of(totals, prices.devices(rank), prices), context
        for routine, (graph, seconds, own) in graphs.items():
            priced = (
                (n.name, predicted_op(n, seconds.get(n, 0.0), rank, own, prices))
                for n in graph.nodes
                if n.op == "call_function"
            )
            found[rank, routine] = {name: op for name, op in priced if op is not None}
    return found


Together = dict[tuple[Ranks, str, int], list[tuple[int, int]]]
"""Messages of several pipeline ranks in updates: the task before and its own, on each of them. By the ranks, what the
message is about, and the version of the weights that is updated, -1 at the end of the step."""


def _adds_nothing(lowered: Lowered, stage: int) -> bool:
    """Return whether every update of a stage is of one microbatch of each rank."""
    ranks = lowered.plan.schedule.ranks_of(stage)
    calls = (call for rank in ranks for call in lowered.calls[rank] if call.action.stage == stage)
    return all(call.weights.num_own <= 1 for call in calls)


def _add_rank(
    assembly: Assembly,
    prices: Prices,
    rank: int,
    memory: Mapping[int, StageMemory],
    context: RankContext,
    together: Together,
) -> None:
    """Make the templates of a rank's calls, and add what they run."""
    lowered = assembly.lowered
    calls, make = lowered.calls[rank], _Templates(lowered, prices, rank, memory, context)
    # Between two updates of a stage its gradients are added up from nothing.
    spans = list(_spans(calls))
    first, last = (
        {span: i for i, span in reversed(list(enumerate(spans)))},
        {s: i for i, s in enumerate(spans)},
    )
    templates = [
        make.of(call, first[span] == i, last[span] == i)
        for i, (call, span) in enumerate(zip(calls, spans, strict=True))
    ]
    before = _totals_template(lowered, prices, rank, context)
    after = update_template(lowered.updates[rank].nodes, rank, context, prices)
    tasks = assembly.add_actions(rank, prices.plan.schedule.actions[rank], templates, before, after)
    versions = [*(call.weights.version for call in calls), -1]
    for version, template, ids in zip(versions, [*templates, after], tasks, strict=True):
        for message, ready, task in template.joint:
            at = (message.group.pipelines(prices.plan), message.about, version)
            together.setdefault(at, []).append((int(ids[ready]), int(ids[task])))


def _spans(calls: Sequence[Call]) -> Iterator[tuple[int, Kind, int]]:
    """Return the stage and kind of every call, and the number of updates of that stage before it."""
    num_updates: Counter[int] = Counter()
    for call in calls:
        stage, kind = call.action.stage, call.action.kind
        yield stage, kind, num_updates[stage]
        num_updates[stage] += kind == "U"


class _Templates:
    """The templates of a rank's calls; those that are alike are made once."""

    def __init__(
        self,
        lowered: Lowered,
        prices: Prices,
        rank: int,
        memory: Mapping[int, StageMemory],
        context: RankContext,
    ) -> None:
        self.lowered, self.prices, self.rank = lowered, prices, rank
        self.memory, self.context = memory, context
        self.works = {
            (s.stage, kind): TemplateInput(
                segment,
                rank,
                context,
                _op_seconds(lowered, rank, segment, prices),
                memory[s.stage].actions[kind].graph,
            )
            for s in lowered.stages_of(rank)
            for kind, segment in s.segments.items()
        }
        self.known: dict[object, Template] = {}

    def of(self, call: Call, is_first: bool, is_last: bool) -> Template:
        """The template of a call, the first or the last whose gradients are added up."""
        action, lets_go = call.action, call.weights.is_last
        key = call.update if action.kind == "U" else (action.stage, action.kind, is_first, is_last, lets_go)
        if key not in self.known:
            self.known[key] = (
                self._update(call) if action.kind == "U" else self._pass(call, is_first, is_last)
            )
        return self.known[key]

    def _update(self, call: Call) -> Template:
        graph = self.lowered.stage_updates[call.update]
        nodes = (node for node in graph.nodes if node.op == "call_function")
        return update_template(nodes, self.rank, self.context, self.prices)

    def _pass(self, call: Call, is_first: bool, is_last: bool) -> Template:
        stage, kind = call.action.stage, call.action.kind
        template = make_template(self.works[stage, kind], self.prices, is_first, is_last)
        _between_actions(template, self.memory[stage].actions[kind])
        if call.weights.is_last:
            held = sum(b.num_elements * b.element_bytes for b in self.lowered.stages[stage].buckets)
            template.effects.append(Effect(template.last_compute, OLDER_WEIGHTS, 0, -held))
        return template


def _op_seconds(lowered: Lowered, pipeline: int, segment: Segment, prices: Prices) -> dict[fx.Node, float]:
    """Seconds of the ops of a segment on the rank of a pipeline rank that takes longest for its own share."""
    plan = lowered.plan
    if not plan.meshes[pipeline].unequal:
        return op_seconds_of(segment, prices.devices(pipeline), prices)
    devices: dict[Lowered, list[DeviceSpec]] = {}
    for rank in plan.ranks(pipeline):
        devices.setdefault(lowered.for_rank(rank), []).append(prices.cluster.devices[rank])
    longest: dict[fx.Node, float] = {}
    for variant, own in devices.items():
        # The same ops, in the same order.
        same = variant.stages[segment.stage].segments[segment.kind].graph
        of_variant = op_seconds_of(variant.stages[segment.stage].segments[segment.kind], own, prices)
        for node, counterpart in zip(segment.graph.nodes, same.nodes, strict=True):
            if counterpart in of_variant:
                longest[node] = max(longest.get(node, 0.0), of_variant[counterpart])
    return longest


def _totals_template(lowered: Lowered, prices: Prices, rank: int, context: RankContext) -> Template | None:
    """Return the template of what a rank computes over the whole batch before its first action; its results stay."""
    segment = lowered.totals[rank]
    if segment is None:
        return None
    memory = totals_memory(segment, context)
    op_s = op_seconds_of(segment, prices.devices(rank), prices)
    template = make_template(
        TemplateInput(segment, rank, context, op_s, memory), prices, is_first=False, is_last=False
    )
    template.label = ["totals of the batch"] * len(template.label)
    left = int(memory.after_bytes[-1])
    template.effects.append(Effect(template.last_compute, "temporaries", 0, -left))
    return template


def _between_actions(template: Template, memory: ActionMemory) -> None:
    """Return what an action takes over when it starts, and leaves when it ends."""
    last, graph = template.last_compute, memory.graph
    taken = graph.before_bytes
    left = int(graph.after_bytes[-1])
    template.effects += [
        Effect(0, "communication", -memory.received, 0),
        Effect(0, "activations", memory.at_start, 0),
        Effect(0, "temporaries", taken, 0),
        Effect(last, "temporaries", 0, -left),
        Effect(last, "activations", 0, memory.kept),
    ]


def _once(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


# What a rank sends of a collective's bytes by the usual ring algorithms.
_RING_SHARE = {"all_reduce": lambda n: 2 * _once(n), "send": lambda n: 1.0}


def _result(assembly: Assembly, timeline: Timeline, model_flops: float) -> Simulation:
    plan, cluster = assembly.plan, assembly.cluster
    step_s = timeline.makespan_s
    peaks = [d.peak(plan.dtype) for d in cluster.devices[: plan.num_ranks]]
    breakdown, exposed = _breakdown(timeline)
    num_bytes: list[dict[str, int]] = [{} for _ in range(plan.pipeline)]
    sent_bytes = [0] * plan.pipeline
    for rank, kind, size, num_ranks in assembly.sent:
        num_bytes[rank][kind] = num_bytes[rank].get(kind, 0) + size
        sent_bytes[rank] += int(_RING_SHARE.get(kind, _once)(num_ranks) * size)
    smallest = [smallest_device(assembly.lowered, cluster, pipeline) for pipeline in range(plan.pipeline)]
    used = _peaks_by_kind(assembly, timeline)
    held = [
        overhead_by_kind(assembly.lowered, cluster, rank, tensors)
        for rank, tensors in zip(smallest, used, strict=True)
    ]
    return Simulation(
        plan,
        step_s,
        timeline.with_more_memory([sum(kinds.values()) for kinds in held]),
        tuple({**tensors, **beside} for tensors, beside in zip(used, held, strict=True)),
        tuple(cluster.devices[rank].usable_bytes for rank in smallest),
        breakdown,
        exposed,
        tuple(num_bytes),
        tuple(sent_bytes),
        tuple(assembly.work_s),
        model_flops,
        model_flops / (step_s * sum(peaks)) if step_s > 0 else 0.0,
    )


def _breakdown(timeline: Timeline) -> tuple[dict[str, float], dict[str, float]]:
    """Mean seconds per rank by kind of work, and exposed communication by kind."""
    parts = timeline.breakdowns()
    computing: dict[str, float] = {}
    exposed: dict[str, float] = {}
    for part in parts:
        for into, found in ((computing, part.computing_s), (exposed, part.exposed_s)):
            for name, seconds in found.items():
                into[name] = into.get(name, 0.0) + seconds / len(parts)
    computing["communication"] = sum(exposed.values())
    computing["bubble"] = sum(part.bubble_s for part in parts) / len(parts)
    return computing, exposed


def _peaks_by_kind(assembly: Assembly, timeline: Timeline) -> tuple[dict[str, int], ...]:
    """Bytes by kind when a pipeline rank uses most, the first such moment, of every rank."""
    effects = assembly.memory.columns()
    return tuple(_peak_by_kind(effects, assembly.base, timeline, rank) for rank in range(len(assembly.base)))


def _peak_by_kind(
    effects: MemoryColumns, base: list[dict[str, int]], timeline: Timeline, rank: int
) -> dict[str, int]:
    task, device, kind, start_bytes, end_bytes = effects
    here = device == rank
    tasks = task[here]
    step = np.concatenate((timeline.start_step[tasks], timeline.end_step[tasks]))
    change = np.concatenate((start_bytes[here], end_bytes[here]))
    kinds = np.concatenate((kind[here], kind[here]))
    steps, at = np.unique(step, return_inverse=True)
    table = np.zeros((len(steps) + 1, len(MEMORY_KINDS)), np.int64)
    np.add.at(table, (at + 1, kinds), change)
    levels = np.cumsum(table, axis=0) + np.array([base[rank][name] for name in MEMORY_KINDS])
    peak = levels[int(levels.sum(axis=1).argmax())]
    return {name: int(value) for name, value in zip(MEMORY_KINDS, peak, strict=True)}

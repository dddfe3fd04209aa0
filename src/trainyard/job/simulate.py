"""Simulate a plan: the time and memory of one step of what the lowering made of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainyard.cost.ops import OpSeconds, Pass, Roofline
from trainyard.engine.simulate import simulate
from trainyard.engine.timeline import Timeline
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.errors import HardwareError
from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.lower import Lowered, StageProgram, Transfer
from trainyard.job.plan import DATA
from trainyard.job.schedule import Action, Kind
from trainyard.job.simulation.build import Assembly
from trainyard.job.simulation.memory import (
    MEMORY_KINDS,
    ActionMemory,
    Effect,
    action_memory,
    is_sharded,
    state_bytes,
    transfer_bytes,
)
from trainyard.job.simulation.prices import Prices
from trainyard.job.simulation.result import Simulation
from trainyard.job.simulation.template import Template, Work, make_template, op_seconds_of
from trainyard.program.flops import program_flops

__all__ = ["Simulation", "simulate_plan"]


def simulate_plan(
    lowered: Lowered,
    cluster: Cluster,
    op_seconds: OpSeconds | None = None,
    *,
    optimizer: Pass = "adamw",
    flops_per_microbatch: float | None = None,
) -> Simulation:
    """Simulate one step, after the first.

    Parameters
    ----------
    lowered : what the ranks run.
    cluster : rank ``r`` of the plan runs on its device ``r``.
    op_seconds : how long ops take; by default the roofline.
    optimizer : ``adamw`` or ``sgd``.
    flops_per_microbatch : of the whole program of a microbatch, `program_flops` of what was lowered; by default
        those of one rank times the data- and tensor-parallel ranks, which counts what they repeat.

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
    prices = Prices(plan, cluster, op_seconds or Roofline())
    assembly = Assembly(lowered, cluster)
    stages = [
        [s for s in lowered.stages if s.stage in plan.schedule.stages_of(rank)]
        for rank in range(plan.pipeline)
    ]
    base = [state_bytes(lowered, own, optimizer) for own in stages]
    assembly.add_ranks([sum(kinds.values()) for kinds in base])
    memory = _memory(lowered, stages, cluster.profile is not None)
    for rank, own in enumerate(stages):
        _add_rank(assembly, prices, rank, own, memory)
    assembly.add_transfers(_send_seconds(lowered, prices), memory)
    _Finish(assembly, prices, stages, optimizer).add()
    columns = assembly.memory.columns()
    assembly.builder.add_memory(columns[0], columns[1], columns[3], columns[4])
    timeline = simulate(assembly.builder.build())
    if flops_per_microbatch is None:
        flops_per_microbatch = float(program_flops(lowered.program)) * plan.data * plan.tensor
    return _result(assembly, timeline, base, flops_per_microbatch * plan.num_microbatches)


def _memory(
    lowered: Lowered, stages: list[list[StageProgram]], over_gloo: bool
) -> dict[tuple[int, Kind], ActionMemory]:
    """Memory of every action; values handed over on a rank belong to the stage that keeps them."""
    found = {}
    keeps = {
        (s.stage, slot.name) for s in lowered.stages for seg in s.segments.values() for slot in seg.inputs
    }
    rank_of = {s.stage: rank for rank, own in enumerate(stages) for s in own}
    for stage in lowered.stages:
        handed_over = frozenset(
            t.value
            for t in lowered.transfers
            if t.target == stage.stage
            and rank_of[t.source] == rank_of[t.target]
            and (t.source, t.value) in keeps
        )
        for kind, memory in action_memory(lowered, stage, handed_over, over_gloo).items():
            found[stage.stage, kind] = memory
    return found


def _add_rank(
    assembly: Assembly,
    prices: Prices,
    rank: int,
    stages: list[StageProgram],
    memory: Mapping[tuple[int, Kind], ActionMemory],
) -> None:
    """Make the templates of a rank's actions, and add the actions."""
    actions = prices.plan.schedule.actions[rank]
    works = {
        (s.stage, kind): Work(
            segment,
            rank,
            {b.name: b for b in s.buckets},
            op_seconds_of(segment, rank, prices),
            memory[s.stage, kind].graph,
        )
        for s in stages
        for kind, segment in s.segments.items()
    }
    firsts: dict[tuple[int, Kind], Action] = {}
    lasts: dict[tuple[int, Kind], Action] = {}
    for action in actions:
        firsts.setdefault((action.stage, action.kind), action)
        lasts[action.stage, action.kind] = action
    known: dict[tuple[int, Kind, bool, bool], Template] = {}
    templates = []
    for action in actions:
        place = (action.stage, action.kind)
        key = (*place, firsts[place] == action, lasts[place] == action)
        if key not in known:
            known[key] = make_template(works[place], prices, key[2], key[3])
            _between_actions(known[key], memory[place])
        templates.append(known[key])
    assembly.add_actions(rank, actions, templates)


def _between_actions(template: Template, memory: ActionMemory) -> None:
    """What an action takes over when it starts, and leaves when it ends."""
    last, graph = template.last_compute, memory.graph
    taken = graph.before_bytes
    left = int(graph.after_bytes[-1])
    template.effects += [
        Effect(0, "communication", -memory.received, 0),
        Effect(0, "activations", memory.received_kept - memory.popped, 0),
        Effect(0, "temporaries", taken, 0),
        Effect(last, "temporaries", 0, -left),
        Effect(last, "activations", 0, memory.kept),
    ]


def _send_seconds(lowered: Lowered, prices: Prices) -> dict[Transfer, float]:
    schedule = lowered.plan.schedule
    found: dict[Transfer, float] = {}
    for transfer in lowered.transfers:
        source, target = schedule.rank_of(transfer.source), schedule.rank_of(transfer.target)
        same = source == target
        found[transfer] = 0.0 if same else prices.send_s(source, target, transfer_bytes(transfer))
    return found


class _Finish:
    """The end of a step: reductions, optimizer, and the weights that every rank gets back."""

    def __init__(
        self, assembly: Assembly, prices: Prices, stages: list[list[StageProgram]], optimizer: Pass
    ) -> None:
        self.assembly, self.prices, self.stages, self.optimizer = assembly, prices, stages, optimizer
        self.plan = prices.plan
        self.buckets = [[b for s in own for b in s.buckets] for own in stages]

    def add(self) -> None:
        ranks = range(self.plan.pipeline)
        for rank in ranks:
            self._wait(rank, self.assembly.sending[rank], "sends are done")
        self._sum_over_stages()
        for rank in ranks:
            self._wait(rank, self.assembly.waiting[rank], "gradients are reduced")
            self._scale(rank)
        if self.plan.num_ranks > 1:
            self._together(tuple(ranks), self.prices.everyone_s(8), "gradient norm", 8, self.plan.num_ranks)
        for rank in ranks:
            elements = sum(b.num_elements // b.num_shards for b in self.buckets[rank])
            self.assembly.then(
                rank, self.prices.pass_s(self.optimizer, rank, elements), self.optimizer, "optimizer"
            )
            self._publish(rank)
        if self.plan.num_ranks > 1:
            self._together(tuple(ranks), self.prices.everyone_s(8), "losses", 8, self.plan.num_ranks)

    def _wait(self, rank: int, tasks: list[int], label: str) -> None:
        if tasks:
            join = self.assembly.then(rank, 0.0, label, "other")
            self.assembly.builder.add_dependencies(tasks, join)

    def _together(
        self, ranks: tuple[int, ...], seconds: float, label: str, num_bytes: int, num_ranks: int | None = None
    ) -> None:
        """An all-reduce in which pipeline ranks wait for each other."""
        assembly = self.assembly
        size = len(ranks) if num_ranks is None else num_ranks
        ready = [assembly.tail[rank] for rank in ranks]
        for rank in ranks:
            task = assembly.add_one(rank, "compute", seconds, label, "all_reduce")
            assembly.builder.add_dependencies(ready, task)
            assembly.tail[rank] = task
            assembly.sent.append((rank, "all_reduce", num_bytes, size))

    def _sum_over_stages(self) -> None:
        shared: dict[tuple[str, ...], Bucket] = {}
        for bucket in (b for own in self.buckets for b in own if len(b.stages) > 1):
            shared.setdefault(bucket.paths, bucket)
        for bucket in shared.values():
            ranks = tuple(sorted({self.plan.schedule.rank_of(s) for s in bucket.stages}))
            num_bytes = bucket.num_elements * 4
            seconds = self.prices.between_stages_s(ranks, num_bytes)
            self._together(ranks, seconds, f"sum {', '.join(bucket.paths)} over stages", num_bytes)
            for rank in ranks if bucket.reduced else ():
                kind = "all_reduce" if bucket.num_shards == 1 else "reduce_scatter"
                self._asynchronous(rank, kind, bucket)

    def _asynchronous(self, rank: int, kind: str, bucket: Bucket) -> None:
        assembly = self.assembly
        num_bytes = bucket.num_elements * 4
        seconds = self.prices.collective_s(kind, DATA, rank, num_bytes)
        task = assembly.add_one(rank, "communication", seconds, f"{bucket.name} {kind}", kind)
        assembly.builder.add_dependencies(assembly.tail[rank], task)
        assembly.waiting[rank].append(task)
        assembly.sent.append((rank, kind, num_bytes, self.plan.data))
        if bucket.num_shards > 1:
            staged = self.prices.staged_bytes(kind, num_bytes)
            part = num_bytes // bucket.num_shards
            assembly.memory.add(assembly.tail[rank], rank, Effect(0, "communication", 0, part + staged))
            assembly.memory.add(task, rank, Effect(0, "communication", 0, -staged))

    def _scale(self, rank: int) -> None:
        """Averages over microbatches, and the norm; what ZeRO reduced is added and let go."""
        plan, pass_s = self.plan, self.prices.pass_s
        sharded = [b for b in self.buckets[rank] if is_sharded(plan, b)]
        pending = sum(b.num_elements * 4 // b.num_shards + b.num_elements * 4 for b in sharded)
        added = sum(b.num_elements // b.num_shards for b in sharded)
        elements = sum(b.num_elements // b.num_shards for b in self.buckets[rank])
        seconds = plan.num_microbatches * pass_s("accumulate", rank, added)
        seconds += pass_s("scale", rank, elements) + pass_s("norm", rank, elements)
        task = self.assembly.then(rank, seconds, "average gradients", "optimizer")
        if pending:
            self.assembly.memory.add(task, rank, Effect(0, "communication", 0, -pending))

    def _reduces_to_part(self, bucket: Bucket) -> bool:
        """Whether the reduced gradient is a tensor beside the rank's own, held to the end of the step."""
        return bucket.reduced and bucket.num_shards > 1 and not is_sharded(self.plan, bucket)

    def _publish(self, rank: int) -> None:
        """Updated parts go to the peers; where the weights have another type they are converted."""
        plan, assembly = self.plan, self.assembly
        width = 4 if plan.dtype == "float32" else 2
        gathered = [b for b in self.buckets[rank] if b.num_shards > 1 and plan.zero_stage < 3]
        converted = [b for b in self.buckets[rank] if b.num_shards == 1 and width != 4]
        copied = sum(b.num_elements // b.num_shards for b in (*gathered, *converted))
        if copied:
            seconds = self.prices.pass_s("copy", rank, copied, width)
            assembly.then(rank, seconds, "convert weights", "optimizer")
        held = sum(b.num_elements // b.num_shards for b in gathered) * width
        works = []
        for bucket in gathered:
            num_bytes = bucket.num_elements * width
            seconds = self.prices.collective_s("all_gather", DATA, rank, num_bytes)
            task = assembly.add_one(rank, "communication", seconds, f"{bucket.name} all_gather", "all_gather")
            assembly.builder.add_dependencies(assembly.tail[rank], task)
            assembly.sent.append((rank, "all_gather", num_bytes, plan.data))
            works.append(task)
        if works:
            assembly.memory.add(assembly.tail[rank], rank, Effect(0, "communication", held, 0))
            join = assembly.then(rank, 0.0, "weights are back", "other")
            assembly.builder.add_dependencies(works, join)
            assembly.memory.add(join, rank, Effect(0, "communication", 0, -held))
        parts = sum(
            b.num_elements * 4 // b.num_shards for b in self.buckets[rank] if self._reduces_to_part(b)
        )
        if parts:
            assembly.memory.add(assembly.tail[rank], rank, Effect(0, "communication", 0, -parts))


def _once(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


# What a rank sends of a collective's bytes by the usual ring algorithms.
_RING_SHARE = {"all_reduce": lambda n: 2 * _once(n), "send": lambda n: 1.0}


def _result(
    assembly: Assembly, timeline: Timeline, base: list[dict[str, int]], model_flops: float
) -> Simulation:
    plan, cluster = assembly.plan, assembly.cluster
    step_s = timeline.makespan_s
    peaks = [d.peak(plan.dtype) for d in cluster.devices[: plan.num_ranks]]
    breakdown, exposed = _breakdown(timeline)
    num_bytes: list[dict[str, int]] = [{} for _ in range(plan.pipeline)]
    sent_bytes = [0] * plan.pipeline
    for rank, kind, size, num_ranks in assembly.sent:
        num_bytes[rank][kind] = num_bytes[rank].get(kind, 0) + size
        sent_bytes[rank] += int(_RING_SHARE.get(kind, _once)(num_ranks) * size)
    per_rank = plan.data * plan.tensor
    limits = tuple(
        min(d.memory_bytes for d in cluster.devices[rank * per_rank : (rank + 1) * per_rank])
        for rank in range(plan.pipeline)
    )
    return Simulation(
        plan,
        step_s,
        timeline,
        tuple(_peak_by_kind(assembly, timeline, rank, kinds) for rank, kinds in enumerate(base)),
        limits,
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


def _peak_by_kind(
    assembly: Assembly, timeline: Timeline, rank: int, base: Mapping[str, int]
) -> dict[str, int]:
    """Bytes by kind when a rank uses most; the first such moment."""
    task, device, kind, start_bytes, end_bytes = assembly.memory.columns()
    here = device == rank
    tasks = task[here]
    step = np.concatenate((timeline.start_step[tasks], timeline.end_step[tasks]))
    change = np.concatenate((start_bytes[here], end_bytes[here]))
    kinds = np.concatenate((kind[here], kind[here]))
    steps, at = np.unique(step, return_inverse=True)
    table = np.zeros((len(steps) + 1, len(MEMORY_KINDS)), np.int64)
    np.add.at(table, (at + 1, kinds), change)
    levels = np.cumsum(table, axis=0) + np.array([base[name] for name in MEMORY_KINDS])
    peak = levels[int(levels.sum(axis=1).argmax())]
    return {name: int(value) for name, value in zip(MEMORY_KINDS, peak, strict=True)}

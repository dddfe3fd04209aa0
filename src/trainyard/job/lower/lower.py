"""Lowering: from a Program and a Plan to what every rank runs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import fx

from trainyard.job.lower.asynchronous import check_asynchronous
from trainyard.job.lower.axes import shard_axes
from trainyard.job.lower.buckets import Bucket, Param, make_buckets, make_frozen_buckets
from trainyard.job.lower.calls import Call, StageUpdate, Transfer, make_calls
from trainyard.job.lower.cut import Cut, ancestors, cut
from trainyard.job.lower.in_place import write_in_place
from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.segment import Segment, SegmentWriter, Slot
from trainyard.job.lower.update import Update, write_stage_update, write_update
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, PlanError
from trainyard.job.schedule import Kind
from trainyard.program import spmd
from trainyard.program.placement import Placement
from trainyard.program.program import Program, output_args


@dataclass(frozen=True, eq=False)
class StageProgram:
    """What the ranks of one stage run: one segment per kind of action.

    ``buckets`` are trained; ``frozen`` are those of whose values each rank keeps a part.
    """

    stage: int
    segments: Mapping[Kind, Segment]
    buckets: tuple[Bucket, ...]
    frozen: tuple[Bucket, ...]

    @cached_property
    def freed(self) -> Mapping[Kind, frozenset[str]]:
        """The values that no segment takes after this one."""
        last = {slot.name: kind for kind, seg in self.segments.items() for slot in _values_taken(seg)}
        return {kind: frozenset(n for n, k in last.items() if k == kind) for kind in self.segments}

    @cached_property
    def kept(self) -> Mapping[Kind, frozenset[str]]:
        """The outputs of a segment that a later one takes; not those that are made again before."""
        found: dict[Kind, set[str]] = {kind: set() for kind in self.segments}
        maker: dict[str, Kind] = {}
        for kind, segment in self.segments.items():
            for slot in _values_taken(segment):
                if slot.name in maker:
                    found[maker[slot.name]].add(slot.name)
            maker |= dict.fromkeys(segment.outputs, kind)
        return {kind: frozenset(names) for kind, names in found.items()}


def _values_taken(segment: Segment) -> tuple[Slot, ...]:
    return tuple(slot for slot in segment.inputs if slot.kind == "value")


@dataclass(frozen=True, eq=False)
class Lowered:
    """A plan applied to a program.

    Attributes
    ----------
    stages : what each stage runs; the same graph on all its ranks.
    transfers : values between stages.
    params : every parameter by path.
    inputs : placements of batch and buffer inputs, by path and axis.
    totals : computes of the whole batch, before the first microbatch, what all microbatches need; if anything.
    results : placements of the losses and metrics, by ``loss:loss`` and the like and axis.
    optimizer : how parameters are updated.
    """

    plan: Plan
    program: Program
    stages: tuple[StageProgram, ...]
    transfers: tuple[Transfer, ...]
    params: Mapping[str, Param]
    inputs: Mapping[str, Mapping[str, Placement]]
    results: Mapping[str, Mapping[str, Placement]]
    totals: Segment | None
    optimizer: OptimizerConfig

    @cached_property
    def calls(self) -> tuple[tuple[Call, ...], ...]:
        """What each pipeline rank runs, in order, before the end of the step."""
        return make_calls(self.plan.schedule, self.transfers)

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """What each pipeline rank runs at the end of a step."""
        losses = sorted(name for name in self.results if not name.startswith("buffer:"))
        of_rank = (self.stages_of(rank) for rank in range(self.plan.pipeline))
        return tuple(write_update(self.plan, [b for s in own for b in s.buckets], losses) for own in of_rank)

    @cached_property
    def stage_updates(self) -> Mapping[StageUpdate, fx.Graph]:
        """What calls that are updates run."""
        found = {call.update for calls in self.calls for call in calls if call.action.kind == "U"}
        return {u: write_stage_update(self.plan, u, self.stages[u.stage].buckets) for u in sorted(found)}

    def update_nodes(self, rank: int) -> Iterator[fx.Node]:
        """The ops of the updates of a pipeline rank in order: those among its calls, and the end of the step."""
        for call in self.calls[rank]:
            if call.action.kind == "U":
                yield from (n for n in self.stage_updates[call.update].nodes if n.op == "call_function")
        yield from self.updates[rank].nodes

    def stages_of(self, rank: int) -> list[StageProgram]:
        """The stages of a pipeline rank."""
        return [s for s in self.stages if rank in self.plan.schedule.ranks_of(s.stage)]


def lower(program: Program, plan: Plan, optimizer: OptimizerConfig | None = None) -> Lowered:
    """Apply a plan.

    Parameters
    ----------
    program : captured on ``plan.rows_per_microbatch`` rows.
    optimizer : how parameters are updated; by default AdamW.

    Raises
    ------
    PlanError
        If the plan was made for another program, names what the program does not have, or cuts apart what
        belongs in one stage.
    """
    if program.fingerprint != plan.fingerprint:
        raise PlanError(
            f"the plan was made for {plan.model} with fingerprint {plan.fingerprint}; this is {program.name} with "
            f"{program.fingerprint}. Plan again: the model, its batch or the version of PyTorch changed"
        )
    named = resolve(program, plan)
    local, inputs, outputs = shard_axes(program, named)
    parts = cut(local, named.stage_starts)
    params = _params(program, local, inputs, parts)
    results = _results_by_stage(local, parts, params)
    stages = tuple(
        _stage(local, parts, named, s, params, results.get(s, [])) for s in range(plan.schedule.num_stages)
    )
    _check_accumulated(stages)
    optimizer = optimizer or OptimizerConfig()
    if plan.schedule.has_updates:
        check_asynchronous(plan, program, params, results, optimizer)
    return Lowered(
        plan,
        local,
        stages,
        _transfers(local, parts, stages),
        params,
        {i.path: inputs[i.path] for i in program.inputs},
        {f"{o.kind}:{o.path}": p for o, p in zip(program.outputs, outputs, strict=True) if o.kind != "grad"},
        None if program.totals is None else _totals(program.totals, named),
        optimizer,
    )


def _totals(program: Program, plan: Plan) -> Segment:
    """What a rank computes before the first microbatch, on its part of the whole batch."""
    paths = {i.path for i in program.inputs}
    own = {name: wanted for name, wanted in plan.placements.items() if name in paths}
    local, _, _ = shard_axes(program, replace(plan, placements=own, choices={}))
    parts = cut(local, ())
    writer = SegmentWriter(local, parts, 0, "F", frozenset(), ())
    for node in local.graph.nodes:
        if node in parts.live:
            writer.emit(node)
    results = list(zip(output_args(local.graph), (o.path for o in local.outputs), strict=True))
    found = [(n, path) for n, path in results if n is not None]
    for node, _ in found:
        writer.argument(node)
    return writer.finish([n for n, _ in found], found)


def _params(
    program: Program, local: Program, inputs: Mapping[str, Mapping[str, Placement]], parts: Cut
) -> dict[str, Param]:
    found = {}
    for entry in program.params:
        used = _stages_using(local.nodes[entry.node], parts) | set(parts.contributions.get(entry.path, ()))
        found[entry.path] = Param(
            entry.path,
            tuple(local.nodes[entry.node].meta["val"].shape),
            tuple(program.nodes[entry.node].meta["val"].shape),
            inputs[entry.path],
            tuple(sorted(used)),
            entry.trainable,
            str(local.nodes[entry.node].meta["val"].dtype).removeprefix("torch."),
        )
    return found


def _users_through(node: fx.Node, parts: Cut) -> set[fx.Node]:
    """Ops that use a tensor, directly or through views that every stage makes for itself."""
    users: set[fx.Node] = set()
    for user in node.users:
        if user in parts.free:
            users |= _users_through(user, parts)
        elif user.op == "call_function":
            users.add(user)
    return users


def _stages_using(node: fx.Node, parts: Cut) -> set[int]:
    return {parts.stage_of[u] for u in _users_through(node, parts) if u in parts.live}


def _results_by_stage(
    program: Program, parts: Cut, params: Mapping[str, Param]
) -> dict[int, list[tuple[fx.Node, str]]]:
    """Which stage reports which outputs: the one that computes them.

    An output that is an input, or a view of one, is reported where the parameter is kept or the buffer used.

    Raises
    ------
    PlanError
        If a buffer is written in one stage and used in another.
    """
    found: dict[int, list[tuple[fx.Node, str]]] = {}
    entries = {program.nodes[i.node]: i for i in program.inputs}
    for output, node in zip(program.outputs, output_args(program.graph), strict=True):
        if output.kind == "grad" or node is None:
            continue
        using: set[int] = set()
        if output.kind == "buffer":
            using = _stages_using(program.nodes[program.input_of(output.path).node], parts)
        if node in parts.live:
            home = parts.stage_of[node]
        else:
            roots = [entries[n] for n in ancestors([node]) if n in entries]
            kept = [params[r.path].stages[0] for r in roots if r.kind == "param" and params[r.path].stages]
            home = min(kept or using or {0})
        if len(using | {home}) > 1:
            raise PlanError(
                f"buffer {output.path!r} is written in stage {home} and used in stages {sorted(using)}, which would "
                "see different values; start stages so that one of them has all uses of it"
            )
        found.setdefault(home, []).append((node, f"{output.kind}:{output.path}"))
    return found


def _check_accumulated(stages: Sequence[StageProgram]) -> None:
    """Every gradient is added exactly once per microbatch."""
    for stage in stages:
        nodes = [n for segment in stage.segments.values() for n in segment.graph.nodes]
        added = sorted(str(n.args[0]) for n in nodes if n.target is spmd.accumulate_grads)
        if added != sorted(b.name for b in stage.buckets):
            raise RuntimeError(
                f"gradients of stage {stage.stage} would be accumulated in {added}, not once each"
            )


def _stage(
    program: Program,
    parts: Cut,
    plan: Plan,
    stage: int,
    params: Mapping[str, Param],
    results: Sequence[tuple[fx.Node, str]],
) -> StageProgram:
    ops = [n for n in program.graph.nodes if parts.stage_of.get(n) == stage and n in parts.live]
    used = _params_in_order(program, ops, parts, stage, params)
    buckets, frozen = make_buckets(plan, stage, used), make_frozen_buckets(plan, stage, used)
    gathered = [b for b in (*buckets, *frozen) if b.parameters_shared]
    split = any(a.kind == "I" and a.stage == stage for actions in plan.schedule.actions for a in actions)
    grads = {path: terms[stage] for path, terms in parts.contributions.items() if stage in terms}

    backward = [n for n in ops if n.meta["phase"] == "backward"]
    # A gradient that costs nothing (of a sum, say) is no op of the stage: nobody waits for it.
    waiting = {b: {grads[p] for p in b.paths if p in grads} & set(backward) for b in buckets}
    ready = [b for b, nodes in waiting.items() if not nodes]

    def write(kind: Kind, nodes: list[fx.Node], known: SegmentWriter | None = None) -> SegmentWriter:
        writer = SegmentWriter(program, parts, stage, kind, plan.recomputed, gathered, known)
        for node in nodes:
            writer.emit(node)
            for bucket in [b for b in buckets if node in waiting[b]]:
                waiting[bucket].discard(node)
                if not waiting[bucket]:
                    writer.accumulate(bucket, grads)
        return writer

    writers = [write("F", [n for n in ops if n.meta["phase"] == "forward"])]
    if split:
        first = _input_half(backward, parts, stage)
        writers.append(write("I", [n for n in backward if n in first]))
        writers.append(write("W", [n for n in backward if n not in first], writers[-1]))
    else:
        writers.append(write("B", backward))
    for bucket in ready:
        writers[-1].accumulate(bucket, grads)
    segments = _close(parts, stage, writers, results)
    for segment in segments.values():
        write_in_place(segment.graph, plan, buckets)
    return StageProgram(stage, segments, buckets, frozen)


def _input_half(backward: list[fx.Node], parts: Cut, stage: int) -> set[fx.Node]:
    """The backward ops of a stage on which what it sends depends."""
    within = set(backward)
    first = {n for n in ancestors([n for n in backward if parts.leaves(n, stage)]) if n in within}
    # A tuple is taken apart where it is made, so that the parts that are not needed later are let go.
    return first | {n for n in backward if n.target is operator.getitem and n.args[0] in first}


def _params_in_order(
    program: Program, ops: list[fx.Node], parts: Cut, stage: int, params: Mapping[str, Param]
) -> list[Param]:
    """Parameters of a stage, in the order of their first use."""
    position = {n: i for i, n in enumerate(ops)}
    first_use = {}
    for entry in program.params:
        if stage in params[entry.path].stages:
            users = [position[u] for u in _users_through(program.nodes[entry.node], parts) if u in position]
            first_use[entry.path] = min(users, default=len(ops))
    return [params[path] for path in sorted(first_use, key=first_use.__getitem__)]


def _close(
    parts: Cut, stage: int, writers: list[SegmentWriter], results: Sequence[tuple[fx.Node, str]]
) -> dict[Kind, Segment]:
    """Give every segment the outputs that later segments, other stages and the program's results take."""
    segments: dict[Kind, Segment] = {}
    for i, writer in enumerate(writers):
        later = {n: None for w in writers[i + 1 :] for n in w.taken}
        phase = "forward" if writer.kind == "F" else "backward"
        own = [(n, r) for n, r in results if n in writer.emitted and n.meta["phase"] == phase]
        leaving = [
            n
            for n in writer.emitted
            if n in later or (n.meta["phase"] == phase and n in parts.live and parts.leaves(n, stage))
        ]
        if writer.kind == "F":
            own = [(n, r) for n, r in results if n not in parts.live or n in writer.emitted]
            leaving += [n for n in later if n.op == "placeholder"]
        leaving += [n for n, _ in own]
        for node in leaving:
            writer.argument(node)
        segments[writer.kind] = writer.finish(leaving, own)
    return segments


def _transfers(program: Program, parts: Cut, stages: tuple[StageProgram, ...]) -> tuple[Transfer, ...]:
    order: tuple[Kind, ...] = ("F", "I", "B", "W")
    made: dict[tuple[int, str], Kind] = {}
    for stage in stages:
        for kind in (k for k in order if k in stage.segments):
            for name in stage.segments[kind].outputs:
                made.setdefault((stage.stage, name), kind)
    found: dict[tuple[str, int], Transfer] = {}
    for target in stages:
        for kind in order:
            segment = target.segments.get(kind)
            for slot in segment.inputs if segment else ():
                if slot.kind != "value":
                    continue
                node = program.nodes[slot.name]
                # What a buffer held is kept by the stage that writes it.
                source = parts.stage_of.get(node, target.stage)
                if source != target.stage and (slot.name, target.stage) not in found:
                    value = node.meta["val"]
                    # A value of an earlier stage arrives with the forward pass, even if only the backward uses it.
                    before = "F" if source < target.stage and node.meta["phase"] == "forward" else kind
                    found[slot.name, target.stage] = Transfer(
                        slot.name,
                        source,
                        target.stage,
                        made[source, slot.name],
                        before,
                        tuple(value.shape),
                        str(value.dtype).removeprefix("torch."),
                    )
    return tuple(found.values())

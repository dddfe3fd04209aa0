"""Lowering: from a Program and a Plan to what every rank runs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import fx

from trainyard.job.lower.asynchronous import check_asynchronous
from trainyard.job.lower.axes import (
    ShardedStage,
    StageMesh,
    check_choices,
    decided_choices,
    leaving,
    meshes_of,
    shard_stage,
)
from trainyard.job.lower.buckets import Bucket, Param, make_buckets, make_frozen_buckets
from trainyard.job.lower.calls import Call, StageUpdate, Transfer, make_calls
from trainyard.job.lower.cut import Cut, ancestors, cut, param_stages, stage_programs
from trainyard.job.lower.in_place import write_in_place
from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.segment import Segment, SegmentWriter
from trainyard.job.lower.stage_program import StageProgram
from trainyard.job.lower.stages import shard_stages
from trainyard.job.lower.transfers import make_transfers
from trainyard.job.lower.undivided import check_undivided
from trainyard.job.lower.update import Update, write_stage_update, write_update
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import PIPELINE, Mesh, Plan, PlanError
from trainyard.job.schedule import Kind, Schedule
from trainyard.program import spmd
from trainyard.program.placement import REPLICATE, OpChoice, Placement, local_shape
from trainyard.program.program import Input, Program, output_args, tensor_of
from trainyard.reading import listed

_ByShare = dict[tuple[Mesh, tuple[int, ...]], "Lowered"]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A plan applied to a program.

    Attributes
    ----------
    program : the whole, before it is cut and sharded.
    stages : what each stage runs; the same graph on all its ranks.
    transfers : values between stages.
    params : every parameter by path.
    inputs : by stage, placements of batch and buffer inputs, by path and axis. Stages may divide rows over other axes.
    totals : what each pipeline rank computes of the whole batch before the first microbatch, if anything.
    results : placements of the losses and metrics, by ``loss:loss`` and the like and axis.
    optimizer : how parameters are updated.
    ranks : of every mesh, for which is written: the others run the same, unless they have unequal shares.
    by_share : the plan applied for each share of a mesh, as far as it was asked for.
    """

    plan: Plan
    program: Program
    stages: tuple[StageProgram, ...]
    transfers: tuple[Transfer, ...]
    params: Mapping[str, Param]
    inputs: tuple[Mapping[str, Mapping[str, Placement]], ...]
    results: Mapping[str, Mapping[str, Placement]]
    totals: tuple[Segment | None, ...]
    optimizer: OptimizerConfig
    ranks: Mapping[Mesh, int]
    by_share: _ByShare = field(repr=False)

    def rank_of(self, stage: int) -> int:
        """Return the rank of a stage's mesh whose graph this is."""
        return self.ranks[self.plan.stages[stage].mesh]

    def for_rank(self, rank: int) -> Lowered:
        """The plan applied for the share that a rank holds."""
        pipeline = self.plan.coordinate(rank)[PIPELINE]
        mesh, place = self.plan.meshes[pipeline], rank - self.plan.ranks(pipeline).start
        if not mesh.unequal or (held := mesh.parts_held(place)) == mesh.parts_held(self.ranks[mesh]):
            return self
        if (mesh, held) not in self.by_share:
            _lower(self.program, self.plan, self.optimizer, {mesh: place}, self.by_share)
        return self.by_share[mesh, held]

    def share_text(self, pipeline: int) -> str:
        """Return the share of the rows that these ranks hold; empty if all ranks of the mesh hold the same."""
        mesh = self.plan.meshes[pipeline]
        shares = mesh.shares(self.ranks[mesh])
        return listed(
            f"{shares[axis].held} of {shares[axis].of} parts along {axis}" for axis, _ in mesh.unequal
        )

    @property
    def variants(self) -> tuple[Lowered, ...]:
        """The plan applied for all ranks: this, and others where ranks hold other shares."""
        unequal = (
            rank for p, mesh in enumerate(self.plan.meshes) if mesh.unequal for rank in self.plan.ranks(p)
        )
        return tuple(dict.fromkeys((self, *map(self.for_rank, unequal))))

    @cached_property
    def calls(self) -> tuple[tuple[Call, ...], ...]:
        """Calls of each pipeline rank, in order, before the end of the step."""
        return make_calls(self.plan.schedule, self.transfers)

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """Routine of each pipeline rank at the end of a step."""
        losses = sorted(name for name in self.results if not name.startswith("buffer:"))
        of_rank = (self.stages_of(rank) for rank in range(self.plan.pipeline))
        return tuple(write_update(self.plan, [b for s in own for b in s.buckets], losses) for own in of_rank)

    @cached_property
    def stage_updates(self) -> Mapping[StageUpdate, fx.Graph]:
        """Routines of the calls that are updates."""
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
            f"{program.fingerprint}. The model, the rows of a microbatch or the version of PyTorch changed. Plan again; "
            f"or, if you changed rows or microbatches of a plan on purpose, write fingerprint: {program.fingerprint}"
        )
    return _lower(program, plan, optimizer or OptimizerConfig(), {}, {})


def _lower(
    program: Program, plan: Plan, optimizer: OptimizerConfig, ranks: Mapping[Mesh, int], by_share: _ByShare
) -> Lowered:
    """Apply a plan for some ranks of meshes of unequal shares; of others for those that hold most."""
    named = resolve(program, plan)
    meshes = meshes_of(program, named, ranks)
    parts = cut(program, named.stage_starts)
    sharded = shard_stages(stage_programs(program, parts, len(plan.stages)), meshes)
    check_choices(plan, sharded)
    params = _params(program, meshes, param_stages(program, parts))
    _check_shared(plan, params)
    stages = tuple(_stage(s.program, named, i, params) for i, s in enumerate(sharded))
    _check_accumulated(stages)
    if plan.schedule.has_updates:
        check_asynchronous(plan, program, params, {s.stage: s.results for s in stages}, optimizer)
    check_undivided(plan, stages, params, optimizer)
    lowered = Lowered(
        plan,
        program,
        stages,
        make_transfers(sharded, [s.segments for s in stages]),
        params,
        _inputs(program, meshes),
        _results(program, sharded),
        _totals_of_ranks(program, plan, meshes),
        optimizer,
        {stage.mesh: stage.rank for stage in meshes},
        by_share,
    )
    for mesh, rank in lowered.ranks.items():
        by_share.setdefault((mesh, mesh.parts_held(rank)), lowered)
    return lowered


def all_choices(program: Program, plan: Plan) -> dict[str, dict[str, OpChoice]]:
    """Return the choice of every op, by address and axis, both planned and derived. A plan can contain all of them.

    Raises
    ------
    PlanError
        If the program cannot be cut so.
    """
    named = resolve(program, plan)
    meshes = [replace(mesh, choices=mesh.choices or {}) for mesh in meshes_of(program, named)]
    parts = cut(program, named.stage_starts)
    return decided_choices(shard_stages(stage_programs(program, parts, len(plan.stages)), meshes))


def _totals_of_ranks(program: Program, plan: Plan, meshes: Sequence[StageMesh]) -> tuple[Segment | None, ...]:
    """Return what each pipeline rank with a stage computes before the first microbatch, if anything."""
    own = [plan.schedule.stages_of(rank) for rank in range(plan.pipeline)]
    if program.totals is None:
        return (None,) * len(own)
    first = {meshes[stages[0]]: stages[0] for stages in reversed(own) if stages}
    known = {mesh: _totals(program.totals, mesh, stage) for mesh, stage in first.items()}
    return tuple(known[meshes[stages[0]]] if stages else None for stages in own)


def _totals(program: Program, mesh: StageMesh, stage: int) -> Segment:
    """Return what a rank of a stage computes before the first microbatch, on its part of the whole batch."""
    # Choices are of the ops of microbatches, of which these are copies.
    local = shard_stage(program, replace(mesh, choices=None)).program
    parts = cut(local, ())
    writer = SegmentWriter(local, parts, stage, "F", frozenset(), ())
    for node in local.graph.nodes:
        if node in parts.live:
            writer.emit(node)
    results = list(zip(output_args(local.graph), (o.path for o in local.outputs), strict=True))
    found = [(n, path) for n, path in results if n is not None]
    for node, _ in found:
        writer.argument(node)
    return writer.finish([n for n, _ in found], found)


def _inputs(program: Program, meshes: Sequence[StageMesh]) -> tuple[dict[str, dict[str, Placement]], ...]:
    """Return the placements of inputs in every stage."""
    known = {mesh: {i.path: _placements(i, mesh) for i in program.inputs} for mesh in dict.fromkeys(meshes)}
    return tuple(known[mesh] for mesh in meshes)


def _placements(entry: Input, mesh: StageMesh) -> dict[str, Placement]:
    """Return the placement of an input, by axis."""
    return {axis.name: mesh.wanted[axis.name].get(entry.path, REPLICATE) for axis in mesh.axes}


def _params(
    program: Program, meshes: Sequence[StageMesh], stages: Mapping[str, tuple[int, ...]]
) -> dict[str, Param]:
    found = {}
    for entry in program.params:
        mesh = meshes[next(iter(stages[entry.path]), 0)]
        value, placements = tensor_of(program.nodes[entry.node]), _placements(entry, mesh)
        shape = whole = tuple(value.shape)
        for axis in mesh.axes:
            try:
                shape = local_shape(shape, placements[axis.name], axis.size)
            except ValueError as error:
                raise PlanError(f"placements on axis {axis.name!r}: {entry.path}: {error}") from error
        dtype = str(value.dtype).removeprefix("torch.")
        found[entry.path] = Param(
            entry.path, shape, whole, placements, stages[entry.path], entry.trainable, dtype
        )
    return found


def _results(program: Program, stages: Sequence[ShardedStage]) -> dict[str, Mapping[str, Placement]]:
    """Placements of losses, metrics and buffers, where they are computed; none, and so whole, if they are not."""
    known = {o: p for stage in stages for o, p in zip(stage.program.outputs, stage.outputs, strict=True)}
    return {f"{o.kind}:{o.path}": known.get(o, {}) for o in program.outputs if o.kind != "grad"}


def _check_shared(plan: Plan, params: Mapping[str, Param]) -> None:
    """Refuse a parameter that stages on unlike meshes use."""
    for param in params.values():
        if len({plan.stages[stage].mesh.nontrivial for stage in param.stages}) > 1:
            found = " and ".join(f"{stage} on {plan.stages[stage].mesh}" for stage in param.stages)
            raise PlanError(
                f"{param.path} is used in stages {found}; give these stages one mesh, or start stages so that one of "
                "them has all its uses"
            )


def _check_accumulated(stages: Sequence[StageProgram]) -> None:
    """Every gradient is added exactly once per microbatch."""
    for stage in stages:
        nodes = [n for segment in stage.segments.values() for n in segment.graph.nodes]
        added = sorted(str(n.args[0]) for n in nodes if n.target is spmd.accumulate_grads)
        if added != sorted(b.name for b in stage.buckets):
            raise RuntimeError(
                f"gradients of stage {stage.stage} would be accumulated in {added}, not once each"
            )


def _stage(program: Program, plan: Plan, stage: int, params: Mapping[str, Param]) -> StageProgram:
    parts = cut(program, ())
    ops = [n for n in program.graph.nodes if n in parts.live]
    used = _params_in_order(program, ops, parts, [p for p in params.values() if stage in p.stages])
    buckets, frozen = make_buckets(plan, stage, used), make_frozen_buckets(plan, stage, used)
    gathered = [b for b in (*buckets, *frozen) if b.parameters_shared]
    split = _is_split(plan.schedule, stage)
    grads = {path: term for path, terms in parts.contributions.items() for term in terms.values()}

    backward = [n for n in ops if n.meta["phase"] == "backward"]
    # A gradient that costs nothing (of a sum, say) is no op of the stage: nobody waits for it.
    waiting = {b.name: {grads[p] for p in b.paths if p in grads} & set(backward) for b in buckets}
    ready = [b for b in buckets if not waiting[b.name]]
    waiters: dict[fx.Node, list[Bucket]] = {}
    for bucket in buckets:
        for node in waiting[bucket.name]:
            waiters.setdefault(node, []).append(bucket)

    def write(kind: Kind, nodes: list[fx.Node], known: SegmentWriter | None = None) -> SegmentWriter:
        writer = SegmentWriter(
            program, parts, stage, kind, plan.recomputed, gathered, known, plan.traffic.overlap
        )
        for node in nodes:
            writer.emit(node)
            for bucket in waiters.get(node, ()):
                waiting[bucket.name].discard(node)
                if not waiting[bucket.name]:
                    writer.accumulate(bucket, grads)
        return writer

    writers = [write("F", [n for n in ops if n.meta["phase"] == "forward"])]
    if split:
        first = _input_half(backward, program)
        writers.append(write("I", [n for n in backward if n in first]))
        writers.append(write("W", [n for n in backward if n not in first], writers[-1]))
    else:
        writers.append(write("B", backward))
    for bucket in ready:
        writers[-1].accumulate(bucket, grads)
    segments = _close(program, parts, writers)
    for segment in segments.values():
        write_in_place(segment.graph, plan, buckets)
    return StageProgram(stage, segments, buckets, frozen)


def _is_split(schedule: Schedule, stage: int) -> bool:
    """Return whether backward passes of a stage run in halves."""
    first = {
        a.kind: a for actions in reversed(schedule.actions) for a in reversed(actions) if a.stage == stage
    }
    if "I" in first and "B" in first:
        raise PlanError(
            f"schedule {schedule.name} runs a backward pass of stage {stage} whole, {first['B']}, and another in halves, "
            f"{first['I']}; run all of a stage alike"
        )
    return "I" in first


def _input_half(backward: list[fx.Node], program: Program) -> set[fx.Node]:
    """The backward ops of a stage on which what it sends depends."""
    within = set(backward)
    first = {n for n in ancestors([n for _, n in leaving(program) if n in within]) if n in within}
    # A tuple is taken apart where it is made, so that the parts that are not needed later are let go.
    return first | {n for n in backward if n.target is operator.getitem and n.args[0] in first}


def _params_in_order(program: Program, ops: list[fx.Node], parts: Cut, params: list[Param]) -> list[Param]:
    """Parameters of a stage, in the order of their first use."""
    position = {n: i for i, n in enumerate(ops)}
    nodes = {i.path: program.nodes[i.node] for i in program.inputs}

    def first_use(param: Param) -> int:
        users = parts.users(nodes[param.path]) if param.path in nodes else ()
        return min((position[u] for u in users), default=len(ops))

    return sorted(params, key=first_use)


def _close(program: Program, parts: Cut, writers: list[SegmentWriter]) -> dict[Kind, Segment]:
    """Give every segment the outputs that later segments, other stages and the program's results take."""
    segments: dict[Kind, Segment] = {}
    outputs = [
        (o, n) for o, n in zip(program.outputs, output_args(program.graph), strict=True) if n is not None
    ]
    results = [(n, f"{o.kind}:{o.path}") for o, n in outputs if o.kind not in ("grad", "value")]
    taken = {n for _, n in leaving(program)}
    for i, writer in enumerate(writers):
        later = {n: None for w in writers[i + 1 :] for n in w.taken}
        phase = "forward" if writer.kind == "F" else "backward"
        own = [(n, r) for n, r in results if n in writer.emitted and n.meta["phase"] == phase]
        left = [n for n in writer.emitted if n in later or (n in taken and n.meta["phase"] == phase)]
        if writer.kind == "F":
            own = [(n, r) for n, r in results if n not in parts.live or n in writer.emitted]
            left += [n for n in later if n.op == "placeholder"]
        left += [n for n, _ in own]
        for node in left:
            writer.argument(node)
        segments[writer.kind] = writer.finish(left, own)
    return segments

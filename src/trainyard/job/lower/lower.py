"""Lowering: from a Program and a Plan to what every rank runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from trainyard.job.lower.buckets import Bucket, Param, make_buckets
from trainyard.job.lower.cut import Cut, cut
from trainyard.job.lower.segment import Segment, SegmentWriter
from trainyard.job.lower.shard import shard
from trainyard.job.plan import DATA, TENSOR, Plan, PlanError
from trainyard.job.schedule import Kind
from trainyard.program.placement import PARTIAL, Placement, Replicate, Shard
from trainyard.program.program import Program, output_args
from trainyard.program.propagate import Axis


@dataclass(frozen=True)
class Transfer:
    """A value that one stage sends to another after an action, before an action of the other.

    Attributes
    ----------
    value : name of the value.
    source, target : stages.
    after, before : kinds of the actions.
    shape, dtype : of the part that one rank sends to its peer.
    """

    value: str
    source: int
    target: int
    after: Kind
    before: Kind
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class StageProgram:
    """What the ranks of one stage run: one segment per kind of action."""

    stage: int
    segments: Mapping[Kind, Segment]
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A plan applied to a program.

    Attributes
    ----------
    stages : what each stage runs; the same graph on all its ranks.
    transfers : values between stages.
    params : every parameter by path.
    inputs : placements of batch and buffer inputs, by path and axis.
    results : placements of the losses and metrics, by ``loss:loss`` and the like and axis.
    """

    plan: Plan
    program: Program
    stages: tuple[StageProgram, ...]
    transfers: tuple[Transfer, ...]
    params: Mapping[str, Param]
    inputs: Mapping[str, Mapping[str, Placement]]
    results: Mapping[str, Mapping[str, Placement]]


def lower(program: Program, plan: Plan) -> Lowered:
    """Apply a plan.

    Parameters
    ----------
    program : captured on ``plan.rows_per_microbatch`` rows.

    Raises
    ------
    PlanError
        If the plan was made for another program, or names what the program does not have.
    """
    if program.fingerprint != plan.fingerprint:
        raise PlanError(
            f"the plan was made for {plan.model} with fingerprint {plan.fingerprint}; this is {program.name} with "
            f"{program.fingerprint}. Plan again: the model, its batch or the version of PyTorch changed"
        )
    local, inputs, outputs = shard_axes(program, plan)
    parts = cut(local, plan.stage_starts)
    params = _params(program, local, inputs, parts)
    stages = tuple(_stage(local, parts, plan, s, params) for s in range(plan.schedule.num_stages))
    return Lowered(
        plan,
        local,
        stages,
        _transfers(local, parts, stages),
        params,
        {i.path: inputs[i.path] for i in program.inputs},
        {f"{o.kind}:{o.path}": p for o, p in zip(program.outputs, outputs, strict=True) if o.kind != "grad"},
    )


def shard_axes(
    program: Program, plan: Plan
) -> tuple[Program, dict[str, dict[str, Placement]], list[dict[str, Placement]]]:
    """Cut the program over the data axis, then over the tensor axis.

    Returns
    -------
    One rank's program; the placements of its inputs by path and axis; of its outputs, in order, by axis.
    """
    inputs: dict[str, dict[str, Placement]] = {i.path: {} for i in program.inputs}
    outputs: list[dict[str, Placement]] = [{} for _ in program.outputs]
    for axis in (Axis(DATA, plan.data), Axis(TENSOR, plan.tensor)):
        if axis.size == 1:
            continue
        try:
            sharded = shard(program, axis, _with_gradients(program, axis, plan.placements.get(axis.name, {})))
        except (KeyError, ValueError) as error:
            raise PlanError(f"placements on axis {axis.name!r}: {error.args[0]}") from error
        program = sharded.program
        for path, placement in sharded.inputs.items():
            inputs[path][axis.name] = placement
        for known, placement in zip(outputs, sharded.outputs, strict=True):
            known[axis.name] = placement
    return program, inputs, outputs


def _with_gradients(program: Program, axis: Axis, wanted: Mapping[str, Placement]) -> dict[str, Placement]:
    """A gradient lies as its parameter does; along the data axis replicas keep terms, which buckets sum."""
    whole = PARTIAL if axis.name == DATA else Replicate()
    grads: dict[str, Placement] = {}
    for output in program.outputs:
        if output.kind == "grad":
            placement = wanted.get(output.path, Replicate())
            grads[f"grad:{output.path}"] = placement if isinstance(placement, Shard) else whole
    return {**grads, **wanted}


def _params(
    program: Program, local: Program, inputs: Mapping[str, Mapping[str, Placement]], parts: Cut
) -> dict[str, Param]:
    found = {}
    for entry in program.params:
        used = {parts.stage_of[u] for u in _users_through(local.nodes[entry.node], parts)}
        found[entry.path] = Param(
            entry.path,
            tuple(local.nodes[entry.node].meta["val"].shape),
            tuple(program.nodes[entry.node].meta["val"].shape),
            inputs[entry.path],
            tuple(sorted(used)),
            entry.trainable,
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


def _stage(program: Program, parts: Cut, plan: Plan, stage: int, params: Mapping[str, Param]) -> StageProgram:
    ops = [n for n in program.graph.nodes if parts.stage_of.get(n) == stage and n in parts.live]
    used = _params_in_order(program, ops, parts, stage, params)
    buckets = make_buckets(plan, stage, used)
    gathered = [b for b in buckets if b.num_shards > 1 and plan.zero_stage == 3]
    split = any(a.kind == "I" and a.stage == stage for actions in plan.schedule.actions for a in actions)
    grads = {path: terms[stage] for path, terms in parts.contributions.items() if stage in terms}

    def write(kind: Kind, nodes: list[fx.Node], known: SegmentWriter | None = None) -> SegmentWriter:
        writer = SegmentWriter(program, parts, stage, kind, plan.recompute, gathered, known)
        waiting = {b: set(b.paths) for b in buckets}
        makes = {n: [p for p, g in grads.items() if g is n] for n in grads.values()}
        for node in nodes:
            writer.emit(node)
            for path in makes.get(node, ()):
                bucket = next(b for b in buckets if path in b.paths)
                waiting[bucket].discard(path)
                if not waiting[bucket]:
                    writer.accumulate(bucket, grads)
        return writer

    forward = write("F", [n for n in ops if n.meta["phase"] == "forward"])
    backward = [n for n in ops if n.meta["phase"] == "backward"]
    if split:
        sent = [n for n in backward if parts.leaves(n, stage)]
        first = _ancestors(sent, set(backward))
        halves = write("I", [n for n in backward if n in first])
        writers = [forward, halves, write("W", [n for n in backward if n not in first], halves)]
    else:
        writers = [forward, write("B", backward)]
    return StageProgram(stage, _close(program, parts, stage, writers), buckets)


def _params_in_order(
    program: Program, ops: list[fx.Node], parts: Cut, stage: int, params: Mapping[str, Param]
) -> list[Param]:
    """Trainable parameters of a stage, in the order of their first use."""
    position = {n: i for i, n in enumerate(ops)}
    first_use = {}
    for entry in program.params:
        users = [position[u] for u in _users_through(program.nodes[entry.node], parts) if u in position]
        if users and params[entry.path].trainable and stage in parts.contributions[entry.path]:
            first_use[entry.path] = min(users)
    return [params[path] for path in sorted(first_use, key=first_use.__getitem__)]


def _ancestors(nodes: list[fx.Node], within: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node in within and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _close(program: Program, parts: Cut, stage: int, writers: list[SegmentWriter]) -> dict[Kind, Segment]:
    """Give every segment the outputs that later segments, other stages and the program's results take."""
    results = {
        node
        for output, node in zip(program.outputs, output_args(program.graph), strict=True)
        if node is not None and output.kind != "grad"
    }
    segments: dict[Kind, Segment] = {}
    for i, writer in enumerate(writers):
        later = {n for w in writers[i + 1 :] for n in w.taken}
        phase = "forward" if writer.kind == "F" else "backward"
        leaving = [
            n
            for n in writer.emitted
            if n in later or (n.meta["phase"] == phase and (n in results or parts.leaves(n, stage)))
        ]
        segments[writer.kind] = writer.finish(leaving)
    return segments


def _transfers(program: Program, parts: Cut, stages: tuple[StageProgram, ...]) -> tuple[Transfer, ...]:
    order: tuple[Kind, ...] = ("F", "I", "B", "W")
    made = {(s.stage, name): kind for s in stages for kind, seg in s.segments.items() for name in seg.outputs}
    found: dict[tuple[str, int], Transfer] = {}
    for target in stages:
        for kind in order:
            segment = target.segments.get(kind)
            for slot in segment.inputs if segment else ():
                if slot.kind != "value":
                    continue
                node = program.nodes[slot.name]
                source = parts.stage_of[node]
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

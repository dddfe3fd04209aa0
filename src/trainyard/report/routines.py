"""Routines of the ranks of a plan as text: their calls in order, and the ops of each routine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import fx

from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import Lowered, all_choices, lower
from trainyard.job.lower.segment import Segment
from trainyard.job.lower.signatures import RankContext, rank_context, signature
from trainyard.job.plan import Plan, microbatches_text
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.nodes import op_name
from trainyard.program.placement import OpChoice
from trainyard.program.program import tensors_of

_CALLS_PER_LINE = 8


def choices_text(choices: Mapping[str, Mapping[str, OpChoice]]) -> str:
    """Write the choices of ops, by address and axis, as in the text form of a plan."""
    lines = [
        f"  {address}: {{{', '.join(f'{axis}: {choice}' for axis, choice in chosen.items())}}}"
        for address, chosen in choices.items()
    ]
    return "\n".join(("choices:", *lines)) if lines else "choices: {}"


def show(what: Literal["choices", "routines"], plan: Plan, task: Task) -> str:
    """Show the choices of every op of a plan, or the routines of its ranks."""
    program = task.program(plan.rows_per_microbatch)
    if what == "choices":
        return choices_text(all_choices(program, plan))
    return routines_text(lower(program, plan, task.optimizer))


def routines_text(lowered: Lowered) -> str:
    """All routines of a lowered plan; ranks of one mesh run the same, unless they hold unequal shares."""
    meshes = range(lowered.plan.pipeline)
    lines = [_lines(lowered, meshes)]
    for variant in lowered.variants[1:]:
        others = [p for p in meshes if variant.share_text(p) != lowered.share_text(p)]
        lines.append(_lines(variant, others))
    return "\n".join(chain(*lines))


def _lines(lowered: Lowered, pipeline_ranks: Iterable[int]) -> Iterator[str]:
    plan = lowered.plan
    for rank in pipeline_ranks:
        calls, context = lowered.calls[rank], rank_context(lowered, rank)
        share = lowered.share_text(rank)
        yield f"pipeline rank {rank}: {plan.meshes[rank]}{f', with {share}' if share else ''}"
        totals = lowered.totals[rank]
        if totals is not None:
            yield "before the first microbatch"
            yield from _graph(totals, context)
        end = "end of the step" if plan.schedule.has_updates else "update"
        yield from _calls(calls, end)
        for stage in lowered.stages_of(rank):
            for kind, segment in stage.segments.items():
                yield f"routine {stage.stage}{kind}"
                yield from _graph(segment, context)
                yield from _sends(lowered, stage.stage, kind)
            for update, graph in lowered.stage_updates.items():
                if update.stage == stage.stage:
                    how = "in place" if update.in_place else "in a copy"
                    yield f"routine {stage.stage}U of {microbatches_text(update.num_microbatches)}, {how}"
                    yield from _ops(graph, context)
        for name, graph in lowered.updates[rank].routines.items():
            yield f"{end}: {name}"
            yield from _ops(graph, context)


def _ops(graph: fx.Graph, context: RankContext) -> Iterator[str]:
    yield from (f"  {_call(n)}{_does(n, context)}" for n in graph.nodes if n.op == "call_function")


def _calls(calls: tuple[Call, ...], end: str) -> Iterator[str]:
    """The calls in order, wrapped."""
    words = [*(str(call.action) for call in calls), end]
    for i in range(0, len(words), _CALLS_PER_LINE):
        yield "  " + " ".join(words[i : i + _CALLS_PER_LINE])


def _sends(lowered: Lowered, stage: int, kind: str) -> Iterator[str]:
    for transfer in lowered.transfers:
        if (transfer.source, transfer.after) == (stage, kind):
            yield f"  send {transfer.value} to stage {transfer.target}"


def _graph(segment: Segment, context: RankContext) -> Iterator[str]:
    placeholders = [n for n in segment.graph.nodes if n.op == "placeholder"]
    for node, slot in zip(placeholders, segment.inputs, strict=True):
        yield f"  {node.name}: {slot.kind} {slot.name} {_shapes(node)}".rstrip()
    for node in segment.graph.nodes:
        if node.op == "call_function":
            made = f" -> {_shapes(node)}" if _shapes(node) else ""
            yield f"  {node.name} = {_call(node)}{made}{_does(node, context)}  # {address(node)}"


def _call(node: fx.Node) -> str:
    arguments = [_shown(a) for a in node.args] + [f"{k}={_shown(v)}" for k, v in node.kwargs.items()]
    return f"{op_name(node.target)}({', '.join(arguments)})"


def _shown(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


def _shapes(node: fx.Node) -> str:
    if not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
        return ""
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_of(node))


def _does(node: fx.Node, context: RankContext) -> str:
    """Describe the effects of an op beside its value, and the place where it writes."""
    does, said = signature(node, context), []
    if does != (last := signature(node, replace(context, is_last=True))):
        does, said = last, ["of the last microbatch"]
    if does.waits:
        said.append(f"waits for {does.waits}")
    if does.message is not None:
        axes, stages, _ = does.message.group
        over = ", ".join(axes) or (
            f"the ranks of stages {', '.join(map(str, stages))}" if stages else "all ranks"
        )
        said.append(f"{does.message.kind} of {does.message.num_bytes:,} bytes over {over}")
    if does.starts:
        said.append("runs beside what follows")
    if "over" in node.meta:
        said.append(f"in place of {_shown(node.args[node.meta['over']])}")
    if "into" in node.meta:
        said.append(f"into the gradients of {node.meta['into'][0]}")
    return f"  ({'; '.join(said)})" if said else ""

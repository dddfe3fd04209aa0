"""Proof, without running, that what the ranks of a plan run fits together.

Every value is made before it is used, and nothing is written that is still to be read. What is started is waited for
once. Ranks that send to each other do so in one order, and none of them waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from torch import fx

from trainyard.cost.ops import is_view
from trainyard.job.lower.calls import Call, Delivery, ends_of, is_handed_over
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.pieces import are_complete
from trainyard.job.lower.segment import Segment
from trainyard.job.lower.signatures import RankContext, rank_context, signature
from trainyard.job.lower.verify_stage_updates import check_stage_updates
from trainyard.job.lower.verify_update import LoweringError, check_update
from trainyard.job.plan import Plan
from trainyard.program import spmd
from trainyard.program.program import tensor_of

__all__ = ["LoweringError", "check_graph", "verify"]


def verify(lowered: Lowered) -> None:
    """Check what all ranks of a plan would run.

    Raises
    ------
    LoweringError
        Names the rank, the call and the op at fault.
    """
    for variant in lowered.variants:
        _verify(variant)
        _check_alike(lowered, variant)


def _verify(lowered: Lowered) -> None:
    for segment in _segments(lowered):
        check_graph(segment.graph, f"stage {segment.stage} {segment.kind}")
        _check_collectives(segment, lowered.plan)
    # What ops name is there: the checks that follow look it up.
    _check_gradients(lowered)
    for rank, calls in enumerate(lowered.calls):
        _check_values(lowered, rank, calls)
        for name, graph in lowered.updates[rank].routines.items():
            check_graph(graph, f"rank {rank}, update {name}")
        if lowered.plan.schedule.has_updates:
            check_stage_updates(lowered, rank)
        else:
            check_update(lowered, rank)
        _check_subjects(lowered, rank, calls)
    _check_deliveries(lowered)
    for rank, calls in enumerate(lowered.calls):
        _check_actions(lowered, rank, calls)
    _check_arrived(lowered)
    _check_transfers(lowered)
    _check_joint_messages(lowered)
    _check_progress(lowered)


def _segments(lowered: Lowered) -> Iterator[Segment]:
    for stage in lowered.stages:
        yield from stage.segments.values()
    yield from dict.fromkeys(segment for segment in lowered.totals if segment is not None)


def check_graph(graph: fx.Graph, where: str) -> None:
    """Check one graph: operands come first, nobody reads what was written over, and all that is started is waited for.

    Raises
    ------
    LoweringError
        Names the op at fault.
    """
    seen: set[fx.Node] = set()
    # Values that lie in one memory have one owner; each write makes a new version of it.
    owner: dict[fx.Node, fx.Node] = {}
    version: dict[fx.Node, int] = {}
    current: Counter[fx.Node] = Counter()
    starts: dict[fx.Node, int] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            if source not in seen:
                raise LoweringError(f"{where}: {node.name} uses {source.name}, which is not made before it")
            if version[source] != current[owner[source]]:
                raise LoweringError(
                    f"{where}: {node.name} reads {source.name}, which was written over before"
                )
            if source in starts and node.target is not spmd.wait:
                raise LoweringError(f"{where}: {node.name} uses {source.name}, which has not arrived")
        seen.add(node)
        source = _lies_in(node)
        owner[node] = node if source is None else owner[source]
        if "over" in node.meta:
            current[owner[node]] += 1
        version[node] = current[owner[node]]
        if node.target in spmd.STARTS.values():
            starts[node] = 0
        elif node.target is spmd.wait:
            start = node.all_input_nodes[0]
            if start not in starts:
                raise LoweringError(f"{where}: {node.name} waits for {start.name}, which starts nothing")
            starts[start] += 1
    wrong = [f"{start.name} ({count} times)" for start, count in starts.items() if count != 1]
    if wrong:
        raise LoweringError(f"{where}: not waited for exactly once: {', '.join(wrong)}")


def _lies_in(node: fx.Node) -> fx.Node | None:
    """The operand in whose memory a result lies; None where it has memory of its own."""
    if node.op != "call_function":
        return None
    if "over" in node.meta:
        operand = node.args[node.meta["over"]]
        assert isinstance(operand, fx.Node)
        return operand
    sources = node.all_input_nodes
    shares = is_view(node) or node.target.__name__ == "getitem"  # type: ignore[union-attr]
    return sources[0] if sources and shares else None


def _check_values(lowered: Lowered, rank: int, calls: tuple[Call, ...]) -> None:
    """Every call finds the values that it takes, and at the end none is left over."""
    stages = {s.stage: s for s in lowered.stages}
    held: set[tuple[int, str, int]] = set()
    for call in calls:
        stage, kind, microbatch = call.action.stage, call.action.kind, call.action.microbatch
        if kind == "U":
            continue
        for delivery in call.receives:
            held.add((stage, lowered.transfers[delivery.transfer].value, microbatch))
        segment = stages[stage].segments[kind]
        for slot in segment.inputs:
            if slot.kind == "value" and (stage, slot.name, microbatch) not in held:
                raise LoweringError(f"rank {rank}, {call.action}: {slot.name} is not there")
        held -= {(stage, name, microbatch) for name in stages[stage].freed[kind]}
        made = set(segment.outputs)
        for delivery in call.sends:
            transfer = lowered.transfers[delivery.transfer]
            if transfer.value not in made:
                raise LoweringError(f"rank {rank}, {call.action}: {transfer.value} is sent and not made")
            if is_handed_over(lowered.plan.schedule, transfer):
                held.add((transfer.target, transfer.value, microbatch))
        held |= {(stage, name, microbatch) for name in stages[stage].kept[kind]}
    if held:
        stage, name, microbatch = min(held)
        raise LoweringError(
            f"rank {rank}: {name} of stage {stage}, microbatch {microbatch}, is never let go of"
        )


def _check_actions(lowered: Lowered, rank: int, calls: tuple[Call, ...]) -> None:
    """The calls are the actions of the schedule, and each takes and gives each of its transfers once."""
    transfers, schedule = lowered.transfers, lowered.plan.schedule
    actions = schedule.actions[rank]
    if tuple(call.action for call in calls) != tuple(actions):
        raise LoweringError(f"rank {rank}: its calls are not the actions of the schedule, in their order")
    for call in calls:
        at = (call.action.stage, call.action.kind)
        given = [i for i, t in enumerate(transfers) if (t.source, t.after) == at]
        taken = [
            i
            for i, t in enumerate(transfers)
            if (t.target, t.before) == at and not is_handed_over(schedule, t)
        ]
        for wanted, found in ((given, call.sends), (taken, call.receives)):
            if sorted(found) != [Delivery(i, call.action.microbatch) for i in wanted]:
                raise LoweringError(
                    f"rank {rank}, {call.action}: does not send and receive each of its values once"
                )


def _check_collectives(segment: Segment, plan: Plan) -> None:
    """A collective has peers, and makes of its operand what so many of them make."""
    for node in segment.graph.nodes:
        if node.target not in spmd.STARTS.values():
            continue
        axis = str(node.args[1])
        size = plan.stages[segment.stage].mesh.size(axis)
        shape = list(tensor_of(node.all_input_nodes[0]).shape)
        if node.target is spmd.start_all_gather:
            shape[node.args[2]] *= size
        elif node.target is spmd.start_reduce_scatter:
            shape[node.args[2]] /= size
        elif node.target is spmd.start_all_to_all:
            shape[node.args[2]] *= size
            shape[node.args[4]] /= size
        if size == 1 or shape != list(tensor_of(node).shape):
            raise LoweringError(
                f"stage {segment.stage} {segment.kind}: {node.name} along {axis} ({size} ranks) does not make "
                f"{list(tensor_of(node).shape)}"
            )


def _check_gradients(lowered: Lowered) -> None:
    """Every bucket is given one gradient for each parameter, in its shape, by one routine; and is taken apart so."""
    for stage in lowered.stages:
        buckets = {b.name: b for b in (*stage.buckets, *stage.frozen)}
        given: Counter[str] = Counter()
        for segment in stage.segments.values():
            for node in segment.graph.nodes:
                where = f"stage {stage.stage} {segment.kind}: {node.name}"
                if node.target in (spmd.accumulate_grads, spmd.gather_params):
                    name = str(node.args[0])
                    if name not in buckets:
                        raise LoweringError(f"{where} is of {name}, which the stage has not")
                    shapes = list(buckets[name].shapes)
                if node.target is spmd.accumulate_grads:
                    given[name] += 1
                    if [tuple(tensor_of(grad).shape) for grad in node.args[1]] != shapes:
                        raise LoweringError(f"{where}: gradients are not those of {name}")
                elif node.target is spmd.gather_params:
                    for part in node.users:
                        index = part.args[1]
                        if index >= len(shapes) or tuple(tensor_of(part).shape) != shapes[index]:
                            raise LoweringError(f"{where}: {part.name} is no parameter of {name}")
        if given != Counter(b.name for b in stage.buckets):
            raise LoweringError(f"stage {stage.stage}: not every bucket is given its gradients once")


def _check_arrived(lowered: Lowered) -> None:
    """Check that memory a rank frees was sent before, and taken by its receiver before that sent what the rank
    receives."""
    sent = {d: i for calls in lowered.calls for i, call in enumerate(calls) for d in call.sends}
    taken = {d: i for calls in lowered.calls for i, call in enumerate(calls) for d in call.receives}
    ends = partial(ends_of, lowered.plan.schedule, lowered.transfers)
    for rank, calls in enumerate(lowered.calls):
        let_go: set[Delivery] = set()
        for i, call in enumerate(calls):
            answers = [(ends(d)[0], sent[d]) for d in call.receives]
            for delivery in call.arrived:
                source, target = ends(delivery)
                answered = [at for peer, at in answers if peer == target]
                is_own = source == rank and delivery not in let_go and sent[delivery] < i
                if not is_own or taken.get(delivery, len(sent)) > max(answered, default=-1):
                    value = lowered.transfers[delivery.transfer].value
                    raise LoweringError(f"rank {rank}, {call.action}: {value} may not have arrived")
                let_go.add(delivery)


def _check_alike(lowered: Lowered, other: Lowered) -> None:
    """Ranks of unequal shares run the same ops, each on its own share."""
    for segment, counterpart in zip(_segments(lowered), _segments(other), strict=True):
        ops, others = ([n.target for n in each.graph.nodes] for each in (segment, counterpart))
        if ops != others:
            raise LoweringError(
                f"stage {segment.stage} {segment.kind}: ranks of unequal shares run unlike ops, of which the first are "
                f"{next((a, b) for a, b in zip_longest(ops, others) if a != b)}"
            )


def _check_transfers(lowered: Lowered) -> None:
    """Check that the other stage receives every sent tensor with the same shape and type."""
    for transfer in lowered.transfers:
        source = lowered.stages[transfer.source].segments[transfer.after]
        (output,) = (n for n in source.graph.nodes if n.op == "output")
        made = dict(zip(source.outputs, output.args[0], strict=True))
        value = tensor_of(made[transfer.value])
        dtype = str(value.dtype).removeprefix("torch.")
        sent = transfer.have.shape_of_part(transfer.shape, lowered.rank_of(transfer.source))
        received = transfer.need.shape_of_part(transfer.shape, lowered.rank_of(transfer.target))
        if (tuple(value.shape), dtype) != (sent, transfer.dtype):
            raise LoweringError(
                f"{transfer.value} is sent by stage {transfer.source} as {dtype} {list(value.shape)} and received "
                f"by stage {transfer.target} as {transfer.dtype} {list(sent)}"
            )
        target = lowered.stages[transfer.target].segments[transfer.before]
        placeholders = zip(target.graph.find_nodes(op="placeholder"), target.inputs, strict=True)
        taken = [tuple(tensor_of(n).shape) for n, slot in placeholders if slot.name == transfer.value]
        if not all(shape == received for shape in taken):
            raise LoweringError(
                f"{transfer.value} arrives at stage {transfer.target} as {list(received)} and is taken as "
                f"{list(taken[0])}"
            )
        if not are_complete(transfer.pieces, transfer.shape, transfer.have, transfer.need):
            raise LoweringError(
                f"{transfer.value}: ranks of stage {transfer.target} do not get each element of their parts once"
            )


def _check_subjects(lowered: Lowered, rank: int, calls: tuple[Call, ...]) -> None:
    """Check that what actions and the update start is waited for at the end of the step."""
    context = rank_context(lowered, rank)
    stages = {s.stage: s for s in lowered.stages}
    passes = {(call.action.stage, call.action.kind) for call in calls if call.action.kind != "U"}
    last = replace(context, is_last=True)
    started = {
        subject for stage, kind in passes for subject in _started(stages[stage].segments[kind].graph, last)
    }
    if any(call.sends for call in calls):
        started.add("sends")
    for node in lowered.updates[rank].nodes:
        does = signature(node, context)
        if does.waits and does.waits in started:
            started.remove(does.waits)
        elif does.waits.startswith(("gradients", "weights", "losses")):
            raise LoweringError(
                f"rank {rank}, update: {node.name} waits for {does.waits}, which nothing started"
            )
        if does.starts:
            started.add(does.starts)
    if started:
        raise LoweringError(f"rank {rank}: the update does not wait for {', '.join(sorted(started))}")


def _started(graph: fx.Graph, context: RankContext) -> Iterator[str]:
    """Return what a graph starts and leaves to others to wait for."""
    for node in graph.nodes:
        does = signature(node, context)
        if does.starts and not does.is_waited_here:
            yield does.starts


def _check_deliveries(lowered: Lowered) -> None:
    """Check that one of two ranks posts what the other sends, in that order, before it needs it."""
    ends = partial(ends_of, lowered.plan.schedule, lowered.transfers)
    sent: dict[tuple[int, int], list[Delivery]] = {}
    posted: dict[tuple[int, int], list[Delivery]] = {}
    for rank, calls in enumerate(lowered.calls):
        ready: set[Delivery] = set()
        for call in calls:
            for delivery in call.posts:
                posted.setdefault((ends(delivery)[0], rank), []).append(delivery)
            ready.update(call.posts)
            if not ready.issuperset(call.receives):
                raise LoweringError(f"rank {rank}, {call.action}: receives what it is not ready to receive")
            for delivery in call.sends:
                _, target = ends(delivery)
                if target != rank:
                    sent.setdefault((rank, target), []).append(delivery)
    for pair in sent.keys() | posted.keys():
        if sent.get(pair, []) != posted.get(pair, []):
            raise LoweringError(
                f"rank {pair[1]} does not receive what rank {pair[0]} sends, in the same order"
            )


def _check_joint_messages(lowered: Lowered) -> None:
    """Pipeline ranks that send to each other in updates do it in one order."""
    found: dict[tuple[int, ...], dict[int, list[tuple[str, int, str]]]] = {}
    for rank in range(lowered.plan.pipeline):
        context = rank_context(lowered, rank)
        for node in lowered.update_nodes(rank):
            message = signature(node, context).message
            if message is None or message.group.axes:
                continue
            of_group = found.setdefault(message.group.pipelines(lowered.plan), {})
            of_group.setdefault(rank, []).append((message.kind, message.num_bytes, message.about))
    for group, by_rank in found.items():
        if set(by_rank) != set(group) or any(said != by_rank[group[0]] for said in by_rank.values()):
            raise LoweringError(f"ranks {group} do not send the same to each other in updates")


def _check_progress(lowered: Lowered) -> None:
    """Each rank runs its calls in order, and waits for what it receives, or for others to update: all come to the end."""
    arrived: set[Delivery] = set()
    met: dict[tuple[int, int], set[int]] = {}
    position = [0] * len(lowered.calls)

    def may_run(rank: int, call: Call) -> bool:
        if call.action.kind != "U":
            return arrived.issuperset(call.receives)
        ranks = met.setdefault((call.action.stage, call.weights.version), set())
        ranks.add(rank)
        return ranks.issuperset(lowered.plan.schedule.ranks_of(call.action.stage))

    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(lowered.calls):
            while position[rank] < len(calls) and may_run(rank, calls[position[rank]]):
                arrived.update(calls[position[rank]].sends)
                position[rank] += 1
                moved = True
    ranks = enumerate(zip(lowered.calls, position, strict=True))
    stuck = [f"{rank} at {calls[i].action}" for rank, (calls, i) in ranks if i < len(calls)]
    if stuck:
        raise LoweringError(f"ranks wait for each other for ever: {', '.join(stuck)}")

"""The tasks of updates: their ops, in order, in the middle of a step and at its end, on every pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from trainyard.job.lower.signatures import Message, RankContext, Signature, signature
from trainyard.job.simulation.build import Assembly
from trainyard.job.simulation.memory import OLDER_WEIGHTS, Effect
from trainyard.job.simulation.prices import Prices, Ranks, Seconds
from trainyard.job.simulation.template import Template

Together = dict[tuple[Ranks, str, int], list[tuple[int, int]]]
"""Messages of several pipeline ranks: the task before and its own, on each of them. By the ranks, what the message is
about, and the version of the weights that is updated, -1 at the end of the step."""


def stage_update_template(graph: fx.Graph, rank: int, context: RankContext, prices: Prices) -> Template:
    """The tasks of the update of a stage in the middle of a step."""
    template = Template()
    template.add(Seconds(0.0), "optimizer", "")
    for node in graph.nodes:
        does = signature(node, context)
        first = len(template.seconds)
        for what, num_elements, element_bytes in does.passes:
            seconds = Seconds(prices.buffer_op_s(what, rank, num_elements, element_bytes))
            template.add(seconds, "optimizer", _name(node))
        for held in does.held:
            template.effects.append(Effect(first, OLDER_WEIGHTS, held.num_bytes, 0))
        if does.message is not None:
            message, seconds = does.message, prices.message_s(does.message, rank)
            sent = (message.num_bytes, prices.group_size(message, rank))
            task = template.add(seconds, message.kind, f"{message.about}:{message.kind}", *sent)
            template.joint.append((message, task - 1, task))
    return template


def add_updates(
    assembly: Assembly, prices: Prices, contexts: Sequence[RankContext], together: Together
) -> None:
    """Add the end of a step after the last action of every pipeline rank; ``contexts`` are those of the ranks."""
    for rank, context in enumerate(contexts):
        for node in assembly.lowered.updates[rank].nodes:
            _add(assembly, prices, rank, node, signature(node, context), together)
    # Ranks that send to each other begin when the last of them is ready.
    for tasks in together.values():
        for ready, _ in tasks:
            assembly.builder.add_dependencies(ready, [task for _, task in tasks])


def _add(
    assembly: Assembly,
    prices: Prices,
    rank: int,
    node: fx.Node,
    does: Signature,
    together: Together,
) -> None:
    if does.waits:
        assembly.wait(rank, does.waits)
    label = _name(node)
    for what, num_elements, element_bytes in does.passes:
        seconds = prices.buffer_op_s(what, rank, num_elements, element_bytes)
        assembly.then(rank, Seconds(seconds), label, "optimizer")
    if does.frees:
        assembly.free(rank, does.frees)
    if does.message is not None:
        ready = assembly.tail[rank]
        task = _send(assembly, prices, rank, does, does.message)
        if pipelines := does.message.group.pipelines(prices.plan):
            together.setdefault((pipelines, does.message.about, -1), []).append((ready, task))


def _name(node: fx.Node) -> str:
    return str(node.target.__name__).replace("_", " ")  # type: ignore[union-attr]


def _send(assembly: Assembly, prices: Prices, rank: int, does: Signature, message: Message) -> int:
    """A message, and the memory that is held for it."""
    seconds, label = prices.message_s(message, rank), f"{message.about} {message.kind}"
    assembly.sent.append((rank, message.kind, message.num_bytes, prices.group_size(message, rank)))
    if not does.starts:
        return assembly.then(rank, seconds, label, message.kind)
    before = assembly.tail[rank]
    task = assembly.add_one(rank, "communication", seconds, label, message.kind)
    assembly.builder.add_dependencies(before, task)
    for held in does.held:
        assembly.memory.add(before, rank, Effect(0, "communication", 0, held.num_bytes))
        if held.until == "message":
            assembly.memory.add(task, rank, Effect(0, "communication", 0, -held.num_bytes))
        else:
            subject = does.starts if held.until == "wait" else held.until
            assembly.start(rank, subject, [], held.num_bytes)
    assembly.start(rank, does.starts, [task])
    return task

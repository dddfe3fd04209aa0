"""The tasks of the end of a step: the ops of the update, in order, on every pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from trainyard.job.lower.signatures import Message, RankContext, Signature, signature
from trainyard.job.simulation.build import Assembly
from trainyard.job.simulation.memory import Effect
from trainyard.job.simulation.prices import Prices, Ranks, Seconds


def add_updates(assembly: Assembly, prices: Prices, contexts: Sequence[RankContext]) -> None:
    """Add them after the last action of every pipeline rank; ``contexts`` are those of the ranks."""
    together: dict[tuple[Ranks, str], list[tuple[int, int]]] = {}
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
    together: dict[tuple[Ranks, str], list[tuple[int, int]]],
) -> None:
    if does.waits:
        assembly.wait(rank, does.waits)
    label = str(node.target.__name__).replace("_", " ")  # type: ignore[union-attr]
    for what, num_elements, element_bytes in does.passes:
        seconds = prices.buffer_op_s(what, rank, num_elements, element_bytes)
        assembly.then(rank, Seconds(seconds), label, "optimizer")
    if does.frees:
        assembly.free(rank, does.frees)
    if does.message is not None:
        ready = assembly.tail[rank]
        task = _send(assembly, prices, rank, does, does.message)
        if pipelines := does.message.group.pipelines(prices.plan):
            together.setdefault((pipelines, does.message.about), []).append((ready, task))


def _send(assembly: Assembly, prices: Prices, rank: int, does: Signature, message: Message) -> int:
    """A message, and the memory that is held for it."""
    seconds, label = prices.message_s(message, rank), f"{message.about} {message.kind}"
    assembly.sent.append((rank, message.kind, message.num_bytes, prices.group_size(message)))
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

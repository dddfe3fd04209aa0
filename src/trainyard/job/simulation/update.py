"""The tasks of updates: their ops in order, in the middle of a step or at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx

from trainyard.job.lower.signatures import Message, RankContext, Signature, signature
from trainyard.job.simulation.memory import OLDER_WEIGHTS, Effect
from trainyard.job.simulation.prices import Prices, Seconds
from trainyard.job.simulation.template import Template


def update_template(nodes: Iterable[fx.Node], rank: int, context: RankContext, prices: Prices) -> Template:
    """The tasks of an update of a pipeline rank: of one stage in the middle of a step, or at its end."""
    template = Template()
    template.add(Seconds(0.0), "optimizer", "")
    for node in nodes:
        does, label = signature(node, context), str(node.target.__name__).replace("_", " ")  # type: ignore[union-attr]
        if does.waits:
            template.waits.append((template.add(Seconds(0.0), "other", f"wait for {does.waits}"), does.waits))
        first = len(template.seconds)
        for what, num_elements, element_bytes in does.passes:
            seconds = Seconds(prices.buffer_op_s(what, rank, num_elements, element_bytes))
            template.add(seconds, "optimizer", label)
        if does.frees:
            template.waits.append((template.last_compute, does.frees))
        for held in does.held:
            if held.until == "backward":
                template.effects.append(Effect(first, OLDER_WEIGHTS, held.num_bytes, 0))
        if does.message is not None:
            _add_message(template, does, does.message, rank, prices)
    return template


def _add_message(template: Template, does: Signature, message: Message, rank: int, prices: Prices) -> None:
    seconds, before = prices.message_s(message, rank), template.last_compute
    size = prices.group_size(message, rank)
    sent: dict[str, Any] = {
        "label": f"{message.about} {message.kind}",
        "num_bytes": message.num_bytes,
        "num_ranks": size,
    }
    if does.starts:
        task = template.start(does, seconds, before, "communication", **sent)
    else:
        task = template.add(seconds, message.kind, **sent)
    if message.group.pipelines(prices.plan):
        template.joint.append((message, before, task))

"""The predicted seconds of one op by itself."""

from __future__ import annotations

from typing import NamedTuple

from torch import fx

from trainyard.job.lower.signatures import RankContext, signature
from trainyard.job.simulation.prices import Prices
from trainyard.program.addresses import address

__all__ = ["PredictedOp", "predicted_op"]


class PredictedOp(NamedTuple):
    """One op of a routine.

    Attributes
    ----------
    title : its address, or what it does.
    seconds : of one call, a message that it sends and waits for included.
    """

    title: str
    seconds: float


def predicted_op(
    node: fx.Node, computing_s: float, rank: int, context: RankContext, prices: Prices
) -> PredictedOp | None:
    """Return an op with its seconds; None for one that only waits for what others started.

    Parameters
    ----------
    computing_s : of its kernel; 0 for an op that has none, whose passes over memory and message count.
    rank : the pipeline rank.
    """
    does = signature(node, context)
    if does.waits and not does.passes and does.message is None:
        return None
    passes_s = sum(prices.buffer_op_s(what, rank, num, size) for what, num, size in does.passes)
    message_s = 0.0 if does.message is None or does.starts else prices.message_s(does.message, rank).whole
    title = address(node) if "address" in node.meta else str(node.name).replace("_", " ")
    return PredictedOp(title, computing_s + passes_s + message_s)

"""Marks of ops and tensors that depend on a sort which each part of the rows may do by itself.

`trainyard.program.tracing.orders` finds such sorts. A part may be a microbatch, or the rows of a data-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from trainyard.program.nodes import copy_node
from trainyard.program.placement import Placement, Shard

__all__ = ["OrderMark", "mark", "order_mark", "stays", "without_orders"]

_KEY = "order"


@dataclass(frozen=True)
class OrderMark:
    """Relation of a node to a sort that each part of the rows may do by itself.

    Attributes
    ----------
    part_divisor : of such a sort, and of an ``arange`` that counts its places: a number that must divide the length of
        each part; 0 for other nodes.
    looks_up : whether an op looks up by numbers that count within a part.
    ordered : dimension that is in the sorted order; None if none is.
    counts : whether the numbers count rows or places, within a part.
    """

    part_divisor: int = 0
    looks_up: bool = False
    ordered: int | None = None
    counts: bool = False

    @property
    def depends(self) -> bool:
        """Whether a tensor depends on the order."""
        return self.counts or self.ordered is not None


def order_mark(node: fx.Node) -> OrderMark:
    """Return the mark of a node."""
    found: OrderMark = node.meta.get(_KEY, _NO_MARK)
    return found


def mark(node: fx.Node, with_mark: OrderMark) -> None:
    """Mark a node."""
    node.meta[_KEY] = with_mark


def stays(node: fx.Node, have: Placement) -> bool:
    """Whether a tensor depends on an order of each part's own, so that it cannot be moved from where it is."""
    own = order_mark(node)
    return own.counts or (own.ordered is not None and isinstance(have, Shard) and have.dim == own.ordered)


def without_orders(graph: fx.Graph) -> fx.Graph:
    """Copy a graph without marks, so that all sorts are of the whole batch."""
    copies: dict[fx.Node, fx.Node] = {}
    new = fx.Graph()
    for node in graph.nodes:
        copies[node] = copy_node(new, node, copies.__getitem__)
        copies[node].meta.pop(_KEY, None)
    return new


_NO_MARK = OrderMark()

"""Values that a forward pass keeps for the backward pass, and their bytes.

These are counts over a graph, before anything is lowered; the simulator measures the memory of a lowered plan over time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from trainyard.cost.ops import is_view
from trainyard.job.lower.cut import Cut
from trainyard.job.lower.segment import is_made_again
from trainyard.program.program import Program, size_bytes, tensors_of


@dataclass(frozen=True)
class SavedValues:
    """The values that the backward pass of a program takes from its forward pass, as the lowering saves them.

    Attributes
    ----------
    kept : forward nodes that own the storages it finds in memory; parameters and inputs are not among them.
    again : forward ops that it runs again.
    """

    kept: frozenset[fx.Node]
    again: frozenset[fx.Node]


def saved_values(program: Program, parts: Cut, recompute: frozenset[str] = frozenset()) -> SavedValues:
    """Follow the needs of the backward pass into the forward pass.

    Parameters
    ----------
    program : of one microbatch, of a whole model or of one rank.
    parts : the program as one stage.
    recompute : names of forward nodes that are computed again; what they need is kept instead.
    """
    stack = [a for n in parts.live if n.meta["phase"] == "backward" for a in n.all_input_nodes]
    seen: set[fx.Node] = set()
    kept: set[fx.Node] = set()
    again: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if (
            node in seen
            or node in parts.free
            or node.op != "call_function"
            or node.meta["phase"] == "backward"
        ):
            continue
        seen.add(node)
        if is_made_again(node, program, parts, recompute):
            again.add(node)
            stack += node.all_input_nodes
        else:
            kept.add(storage_of(node))
    return SavedValues(frozenset(n for n in kept if n.op == "call_function"), frozenset(again))


def node_bytes(node: fx.Node) -> int:
    """Bytes of a node's results."""
    return sum(map(size_bytes, tensors_of(node)))


def storage_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's value lies in: itself, or the source of a chain of views."""
    while node.op == "call_function":
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        # A part of a tuple of views (split) is a view; a part of any other tuple owns its memory.
        viewed = source if source is not None and isinstance(source.meta.get("val"), tuple | list) else node
        if source is None or not is_view(viewed):
            return node
        node = viewed.all_input_nodes[0]
    return node

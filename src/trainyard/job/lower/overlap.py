"""Messages run beside what is computed: they start once their operand is there, and are waited for at their first use.

Or, if the plan says so, at once.
"""

from __future__ import annotations

from torch import fx

from trainyard.cost.ops import is_view
from trainyard.program import spmd


def start_and_wait(graph: fx.Graph, overlap: bool = True) -> None:
    """Make two ops of every collective of a graph, in place: the second before the first use of its result.

    Parameters
    ----------
    overlap : whether other ops come between the two.
    """
    for node in list(graph.nodes):
        if node.target not in spmd.STARTS:
            continue
        node.target = spmd.STARTS[node.target]
        if overlap:
            _start_early(node)
    position = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target not in spmd.STARTS.values():
            continue
        first = min(node.users, key=position.__getitem__) if overlap else node.next
        read = node.all_input_nodes[:1] if spmd.reads_operand(node) else []
        with graph.inserting_before(first):
            wait = graph.call_function(spmd.wait, (node, *read))
        wait.meta = dict(node.meta)
        position[wait] = position[first]
        node.replace_all_uses_with(wait, delete_user_cb=lambda user, wait=wait: user is not wait)


def _start_early(start: fx.Node) -> None:
    """Move a start, and the views that it is of, up to the op that makes the operand."""
    moved = [start]
    source = start.all_input_nodes[0]
    while source.op == "call_function" and is_view(source) and len(source.all_input_nodes) == 1:
        moved.append(source)
        source = source.all_input_nodes[0]
    if source.op == "call_function":
        for node in moved:
            source.append(node)

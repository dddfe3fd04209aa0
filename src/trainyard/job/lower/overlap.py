"""Messages run beside what is computed: a collective is started where it stood, and waited for where it is used."""

from __future__ import annotations

from torch import fx

from trainyard.program import spmd


def start_and_wait(graph: fx.Graph) -> None:
    """Make two ops of every collective of a graph, the second before the first use of its result."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target not in spmd.STARTS:
            continue
        node.target = spmd.STARTS[node.target]
        first = min(node.users, key=position.__getitem__)
        read = node.all_input_nodes[:1] if spmd.reads_operand(node) else []
        with graph.inserting_before(first):
            wait = graph.call_function(spmd.wait, (node, *read))
        wait.meta = dict(node.meta)
        position[wait] = position[first]
        node.replace_all_uses_with(wait, delete_user_cb=lambda user, wait=wait: user is not wait)

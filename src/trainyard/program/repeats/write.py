"""Writing the blocks' graphs into the graph of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from trainyard.program.nodes import add_placeholder, copy_node
from trainyard.program.program import output_args
from trainyard.program.random.positional import POSITIONAL, SALT
from trainyard.program.repeats.stand_in import Repeats
from trainyard.program.tracing.trace import is_backward


def write_out(graph: fx.Graph, repeats: Repeats, state: Mapping[str, Tensor]) -> dict[str, fx.Node]:
    """Replace the ops that stand for blocks by the blocks' graphs, and add inputs for their parameters; in place.

    Parameters
    ----------
    state : all parameters and buffers by name, in the order of the inputs, which those that were traced begin.

    Returns
    -------
    Gradients of the blocks' parameters, by name.
    """
    traced = repeats.traced
    if traced is None:
        return {}
    inputs = _add_inputs(graph, repeats.state, state)
    forward: dict[int, dict[fx.Node, Any]] = {}
    grads: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is torch.ops.trainyard.block_forward.default:
            path = repeats.placed[node.args[2]][0]
            own = (*(inputs[f"{path}.{name}"] for name in traced.names), *node.args[0])
            forward[node.args[2]] = values = dict(zip(traced.inputs, own, strict=False))
            _replace(node, _write(node, graph, repeats, values, "forward"))
        elif node.target is torch.ops.trainyard.block_backward.default:
            path, values = repeats.placed[node.args[2]][0], forward[node.args[2]]
            values |= zip(traced.inputs[-len(traced.outputs) :], node.args[0], strict=True)
            found = _write(node, graph, repeats, values, "backward")
            grads |= zip((f"{path}.{name}" for name in traced.trained), found, strict=False)
            _replace(node, found[len(traced.trained) :])
    return grads


def _add_inputs(graph: fx.Graph, missing: Collection[str], state: Mapping[str, Tensor]) -> dict[str, fx.Node]:
    """Add placeholders for those of the parameters and buffers that are missing; the new ones by name."""
    found: dict[str, fx.Node] = {}
    given = iter([n for n in graph.nodes if n.op == "placeholder"])
    following = next(given)
    for number, (name, value) in enumerate(state.items(), 1):
        if name in missing:
            with graph.inserting_before(following):
                found[name] = add_placeholder(graph, f"arg_{number}")
            found[name].meta["val"] = value.detach()
        else:
            following = next(given)
    return found


def _replace(op: fx.Node, results: Sequence[fx.Node]) -> None:
    """Let the users of an op's results use others, and remove it."""
    for user in list(op.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        op.graph.erase_node(user)
    op.graph.erase_node(op)


def _write(
    op: fx.Node, graph: fx.Graph, repeats: Repeats, values: dict[fx.Node, Any], phase: str
) -> list[fx.Node]:
    """Write a block's nodes of one phase before an op; the results: outputs, or gradients of all that has some."""
    traced, index = repeats.traced, op.args[2]
    assert traced is not None
    assert isinstance(index, int)
    path, first_draw = repeats.placed[index]
    with graph.inserting_before(op):
        for node in traced.graph.nodes:
            if node.op != "call_function" or is_backward(node) != (phase == "backward"):
                continue
            copied = copy_node(graph, node, values.__getitem__)
            copied.meta["seq_nr"] = (index, node.meta.get("seq_nr", -1))
            if phase == "forward":
                copied.meta["custom"] = _origin(node, op, path)
            if node.target in POSITIONAL:
                copied.update_arg(SALT, node.args[SALT] + first_draw)
            values[node] = copied
    results = output_args(traced.graph)
    count = len(traced.outputs)
    return [values[node] for node in (results[:count] if phase == "forward" else results[count:]) if node]


def _origin(node: fx.Node, op: fx.Node, path: str) -> dict[str, Any]:
    """What a forward node of the block at ``path`` came from, where ``op`` stands for that block."""
    inside = node.meta.get("custom") or {}
    around = op.meta.get("custom") or {}
    layer = inside.get("layer", "")
    found: dict[str, Any] = {"layer": f"{path}.{layer}" if layer else path}
    if "checkpoint" in around:
        found["checkpoint"] = around["checkpoint"]
    elif "checkpoint" in inside:
        found["checkpoint"] = (op.args[2], inside["checkpoint"])
    return found

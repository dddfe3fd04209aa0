"""Writing and removing nodes of graphs: as ``torch.fx`` does it, in a fifth of the time.

``Graph.create_node`` looks through all arguments in Python for symbolic numbers, of which these graphs have none;
arguments that are set afterwards are taken as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def add_op(
    graph: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None
) -> fx.Node:
    """A new call at the graph's insertion point, without meta."""
    node = graph.create_node("call_function", target, name=name)
    node.args, node.kwargs = args, kwargs
    return node


def add_placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """A new placeholder at the graph's insertion point, without meta; its argument is called as the node is.

    Where the name is taken the node gets another one. Code that took arguments by the old names, and then gave them
    the new ones, would overwrite one with another.
    """
    node = graph.placeholder(name)
    node.target = node.name
    return node


def copy_node(graph: fx.Graph, node: fx.Node, argument: Callable[[fx.Node], Any]) -> fx.Node:
    """A copy of a node of another graph, its meta included; ``argument`` gives what stands for each of its inputs."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
    new = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    new.args, new.kwargs = args, kwargs
    new.meta = copy.copy(node.meta)
    return new


def argument(node: fx.Node, name: str) -> Any:
    """An argument by its name in the op's schema; its default value where it is not given."""
    for position, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if declared.name == name:
            given = position < len(node.args)
            return node.args[position] if given else node.kwargs.get(name, declared.default_value)
    return None


def remove_dead(graph: fx.Graph) -> None:
    """Remove the calls whose results nobody takes; draws of random numbers among them, checks of values not."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and not node.is_impure(impure_random=False):
            graph.erase_node(node)


def op_name(target: Any) -> str:
    """The name of an op without its namespace and overload."""
    return (
        target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else target.__name__
    )

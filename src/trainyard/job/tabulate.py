"""Making the tables of a program: of its ops, its tensors and its layers.

The program may be that of a whole model, or of one rank, sharded: then communication is among its ops.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from trainyard.cost.ops import is_free, op_bytes
from trainyard.job.footprint import SavedValues, node_bytes, saved_values, storage_of
from trainyard.job.lower.cut import Cut, cut
from trainyard.job.tables import Floats, LayerTable, OpTable, TensorTable
from trainyard.program.addresses import address
from trainyard.program.blocks import block_path
from trainyard.program.flops import node_flops
from trainyard.program.program import Program

__all__ = ["NodeSeconds", "layer_table", "op_table", "tensor_table"]

NodeSeconds = Callable[[fx.Node], float]
"""Seconds of one node of a graph on one rank; a collective's include the wait for its peers."""


def op_table(program: Program, seconds: NodeSeconds) -> OpTable:
    """The ops of a program that compute, in program order."""
    parts = cut(program, ())
    layer_of = _layer_of(program, parts)
    number = {path: i for i, path in enumerate(dict.fromkeys(layer_of.values()))}
    ops = _computing(program, parts)
    return OpTable(
        tuple(map(address, ops)),
        np.array([n.meta["phase"] == "backward" for n in ops], np.bool_),
        np.array([number[layer_of[n]] for n in ops], np.int64),
        np.array([node_flops(n) for n in ops], np.int64),
        np.array([op_bytes(n) for n in ops], np.int64),
        np.array([seconds(n) for n in ops], np.float64),
    )


def tensor_table(program: Program) -> TensorTable:
    """The inputs of a program and what its ops make; ops are numbered as in its `op_table`."""
    parts = cut(program, ())
    number = {node: i for i, node in enumerate(_computing(program, parts))}
    inputs = {program.nodes[i.node]: i for i in program.inputs}
    readers: dict[fx.Node, dict[int, None]] = {node: {} for node in inputs}
    for node in program.graph.nodes:
        if _maker(node) in number and storage_of(node) is node and isinstance(node.meta["val"], torch.Tensor):
            readers.setdefault(node, {})
        for source in node.all_input_nodes if node in number else ():
            readers.setdefault(storage_of(source), {})[number[node]] = None
    tensors = list(readers)
    return TensorTable(
        tuple(inputs[n].path if n in inputs else address(n) for n in tensors),
        tuple(
            inputs[n].kind if n in inputs else "value" if _maker(n) in number else "constant" for n in tensors
        ),
        np.array([node_bytes(n) for n in tensors], np.int64),
        np.array([number.get(_maker(n), -1) for n in tensors], np.int64),
        np.cumsum([0, *(len(readers[n]) for n in tensors)], dtype=np.int64),
        np.array([op for n in tensors for op in readers[n]], np.int64),
    )


def _maker(node: fx.Node) -> fx.Node:
    """The op that computes a node: what makes a tuple makes the tensors that are taken out of it."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def _computing(program: Program, parts: Cut) -> list[fx.Node]:
    return [n for n in program.graph.nodes if n in parts.live and not is_free(n)]


def layer_table(
    program: Program, seconds: NodeSeconds, recompute: frozenset[str] = frozenset()
) -> LayerTable:
    """Return the cost of every layer of a program.

    Parameters
    ----------
    recompute : names of forward nodes that the backward pass computes again.
    """
    parts = cut(program, ())
    layer_of = _layer_of(program, parts)
    saved = saved_values(program, parts, recompute)
    params = _params_by_layer(program, layer_of)
    ops: dict[str, list[fx.Node]] = {}
    for node, path in layer_of.items():
        ops.setdefault(path, []).append(node)
    layers = [_layer(path, own, layer_of, saved, seconds) for path, own in ops.items()]
    elements = np.array([params.get(path, (0, 0)) for path in ops], np.float64).reshape(-1, 2)

    def column(name: str) -> Floats:
        return np.array([getattr(layer, name) for layer in layers], np.float64)

    return LayerTable(
        tuple(ops),
        tuple(layer.first for layer in layers),
        column("forward_s"),
        column("backward_s"),
        column("recompute_s"),
        column("kept_bytes"),
        column("output_bytes"),
        column("working_bytes"),
        elements[:, 0],
        elements[:, 1],
    )


@dataclass(frozen=True)
class _Layer:
    """A row of a `LayerTable`, as far as its ops say it."""

    first: str
    forward_s: float
    backward_s: float
    recompute_s: float
    kept_bytes: int
    output_bytes: int
    working_bytes: int


def _layer_of(program: Program, parts: Cut) -> dict[fx.Node, str]:
    """The layer of every op that runs, by its path; ops outside modules belong to the layer before them."""
    found: dict[fx.Node, str] = {}
    by_position: dict[int, str] = {}
    current = ""
    for node in program.graph.nodes:
        if node not in parts.live:
            continue
        if node.meta["phase"] == "forward":
            current = block_path(node.meta["layer"]) or current
            by_position.setdefault(node.meta["position"], current)
            found[node] = current
        else:
            found[node] = by_position.get(node.meta["position"], block_path(node.meta["layer"]) or current)
    return found


def _params_by_layer(program: Program, layer_of: dict[fx.Node, str]) -> dict[str, tuple[int, int]]:
    """Elements of each layer's parameters, and of those of them that are trained.

    A parameter that no layer holds is that of the first which uses it.
    """
    layers, found = set(layer_of.values()), dict[str, tuple[int, int]]()
    for entry in program.params:
        node = program.nodes[entry.node]
        path = block_path(entry.path)
        if path not in layers:
            path = next((layer_of[u] for u in _users(node, layer_of)), path)
        total, trained = found.get(path, (0, 0))
        size = node.meta["val"].numel()
        found[path] = (total + size, trained + size * entry.trainable)
    return found


def _users(node: fx.Node, layer_of: dict[fx.Node, str]) -> Iterator[fx.Node]:
    """The ops that read a node, or a view of it that any layer makes for itself."""
    for user in node.users:
        if user in layer_of:
            yield user
        else:
            yield from _users(user, layer_of)


def _layer(
    path: str,
    ops: list[fx.Node],
    layer_of: dict[fx.Node, str],
    saved: SavedValues,
    seconds: NodeSeconds,
) -> _Layer:
    forward = [n for n in ops if n.meta["phase"] == "forward"]
    backward = [n for n in ops if n.meta["phase"] == "backward"]
    repeated = [n for n in forward if n in saved.again]
    leaving = [
        n
        for n in forward
        if any(layer_of.get(u, path) != path and u.meta["phase"] == "forward" for u in n.users)
    ]
    recompute_s = sum(map(seconds, repeated))
    return _Layer(
        address((forward or ops)[0]),
        sum(map(seconds, forward)),
        sum(map(seconds, backward)) + recompute_s,
        recompute_s,
        sum(node_bytes(n) for n in saved.kept if layer_of.get(n) == path),
        sum(node_bytes(n) for n in {storage_of(n) for n in leaving}),
        _working_bytes(backward) + sum(node_bytes(n) for n in {storage_of(n) for n in repeated}),
    )


def _working_bytes(nodes: Iterable[fx.Node]) -> int:
    return max((sum(node_bytes(a) for a in n.all_input_nodes) + node_bytes(n) for n in nodes), default=0)

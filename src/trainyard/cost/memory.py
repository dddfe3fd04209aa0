"""Memory of a graph while it runs: which storages live when, counted as the generated code frees them.

A storage is what one allocation holds. Views and parts of a split share the storage of what they are made
of, so saving a small part keeps the whole alive.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from trainyard.cost.ops import is_view
from trainyard.program import spmd
from trainyard.program.program import size_bytes, tensors_of

__all__ = ["GraphMemory", "Storage", "WorkingBytes", "graph_memory", "last_uses", "total_bytes"]


@dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """One allocation.

    Attributes
    ----------
    num_bytes : its size.
    owned : whether it counts in the graph that is looked at; not what others hold anyway (parameters, inputs
        that the caller keeps).
    """

    num_bytes: int
    owned: bool = True


Storages = tuple[Storage, ...]


@dataclass(frozen=True)
class WorkingBytes:
    """Memory of an op beside its operands and results.

    Attributes
    ----------
    temporary : held while the op runs.
    result : size of the one storage that all its results share; None where each result has its own.
    """

    temporary: int = 0
    result: int | None = None


@dataclass(frozen=True, eq=False)
class GraphMemory:
    """Live bytes of owned storages over the nodes of a graph.

    Attributes
    ----------
    before_bytes : of the owned inputs.
    during_bytes : int64 [nodes], most while the node runs.
    after_bytes : int64 [nodes], once what the node used last is freed. The output node frees nothing.
    storages : those that a node's value lies in.
    """

    before_bytes: int
    during_bytes: NDArray[np.int64]
    after_bytes: NDArray[np.int64]
    storages: Mapping[fx.Node, Storages] = field(repr=False)

    @property
    def peak_bytes(self) -> int:
        """Most at any time."""
        return max(self.before_bytes, int(self.during_bytes.max(initial=0)))


def total_bytes(storages: Iterator[Storage] | list[Storage] | set[Storage]) -> int:
    """Bytes of different storages together; those that others own do not count."""
    return sum(s.num_bytes for s in set(storages) if s.owned)


def graph_memory(
    graph: fx.Graph,
    inputs: Mapping[fx.Node, Storage],
    known: Mapping[fx.Node, WorkingBytes] | None = None,
) -> GraphMemory:
    """Follow the storages of a graph in the order in which it runs.

    Parameters
    ----------
    graph : its nodes have ``meta["val"]``.
    inputs : storage of each placeholder; several may share one.
    known : memory of ops whose results do not say it.

    Returns
    -------
    GraphMemory
        The graph's last value is freed by nobody: ``after_bytes[-1]`` holds the outputs.
    """
    known = known or {}
    dead_after = last_uses(graph)
    holders: Counter[Storage] = Counter()
    storages: dict[fx.Node, Storages] = {}
    level = 0

    def hold(node: fx.Node) -> None:
        nonlocal level
        for storage in set(storages[node]):
            if holders[storage] == 0 and storage.owned:
                level += storage.num_bytes
            holders[storage] += 1

    def drop(node: fx.Node) -> None:
        nonlocal level
        for storage in set(storages[node]):
            holders[storage] -= 1
            if holders[storage] == 0 and storage.owned:
                level -= storage.num_bytes

    for node in graph.nodes:
        if node.op == "placeholder":
            storages[node] = (inputs[node],)
            hold(node)
    before = level
    during, after = [], []
    for node in graph.nodes:
        extra = known.get(node) or _working_bytes(node)
        if node.op == "call_function":
            storages[node] = _made_in(node, storages, extra)
            hold(node)
        during.append(level + extra.temporary)
        for dead in dead_after.get(node, ()):
            drop(dead)
        after.append(level)
    return GraphMemory(before, np.array(during, np.int64), np.array(after, np.int64), storages)


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Which values are let go after each node: as `torch.fx` generates it, never after a placeholder."""
    seen: set[fx.Node] = set()
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            seen.update(node.all_input_nodes)
            continue
        if node.op == "placeholder":
            continue
        dead = [n for n in dict.fromkeys(node.all_input_nodes) if n not in seen]
        seen.update(dead)
        if not node.users:
            dead.append(node)
        found[node] = dead
    return found


def _made_in(node: fx.Node, storages: Mapping[fx.Node, Storages], extra: WorkingBytes) -> Storages:
    if extra.result is not None:
        return (Storage(extra.result),)
    if "into" in node.meta:  # it is computed where it is kept
        return (Storage(0),)
    if "over" in node.meta:
        return storages[node.args[node.meta["over"]]]
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        whole = storages[source]
        # Every tensor of a tuple has its own storage, or they all share one.
        return whole if len(whole) <= 1 else (whole[_tensor_index(source, int(node.args[1]))],)  # type: ignore[arg-type]
    if is_view(node):
        return storages[node.all_input_nodes[0]]
    return tuple(Storage(size_bytes(t)) for t in tensors_of(node))


def _tensor_index(node: fx.Node, index: int) -> int:
    """Position among the tensors of a tuple that may hold None as well."""
    return sum(isinstance(v, torch.Tensor) for v in node.meta["val"][:index])


_NOTHING = WorkingBytes()


def _working_bytes(node: fx.Node) -> WorkingBytes:
    """Temporaries of Trainyard's own ops, as they are written."""
    if node.target not in _TEMPORARY:
        return _NOTHING
    return WorkingBytes(int(_TEMPORARY[node.target](node)))


def _of(node: fx.Node, position: int = 0) -> int:
    source = node.args[position]
    return sum(size_bytes(t) for t in tensors_of(source)) if isinstance(source, fx.Node) else 0


def _result(node: fx.Node) -> int:
    return sum(size_bytes(t) for t in tensors_of(node))


def _float32_ratio(node: fx.Node) -> int:
    """How many times as many bytes a result has in float32."""
    return max(1, 4 // next(iter(tensors_of(node))).element_size())


def _float32_copy_bytes(node: fx.Node) -> int:
    """Of what goes in or comes out, whichever is larger, in float32, if it is not that."""
    ratio = _float32_ratio(node)
    return ratio * max(_of(node), _result(node)) if ratio > 1 else 0


_TEMPORARY = {
    # Rows looked up, local indices and two masks; gradients are added in float32.
    spmd.embed_part: lambda n: _result(n) + _of(n, 1) * 3,
    spmd.embed_part_backward: lambda n: (
        _float32_ratio(n) * _of(n, 0) + _float32_copy_bytes(n) + _of(n, 1) * 3
    ),
}

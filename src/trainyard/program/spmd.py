"""Ops that exist only in lowered graphs: what the ranks of one mesh axis do together.

In a graph these functions are names: a graph is the same for every rank, and ``bind`` replaces them by the
methods of a rank (a process, or a rank of a test in one process), a ``Communicator``, before it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx

from trainyard.program.nodes import copy_node


class Communicator(Protocol):
    """One rank's view of its mesh. All ranks of an axis call the same methods in the same order.

    A message is started, and runs beside what is computed until its result is waited for.
    """

    def axis_offset(self, axis: str, scale: int) -> int:
        """The first of the axis's parts that this rank holds, times ``scale``; of one part each, its index."""

    def start_all_reduce(self, x: torch.Tensor, axis: str, reduction: str) -> Any:
        """Reduce over the ranks of the axis; every rank gets the result."""

    def start_all_gather(self, x: torch.Tensor, axis: str, dim: int, blocks: int) -> Any:
        """Put the parts of a ``Shard(dim, blocks)`` together."""

    def start_reduce_scatter(self, x: torch.Tensor, axis: str, dim: int, blocks: int) -> Any:
        """Sum over the ranks; each gets its part of a ``Shard(dim, blocks)``."""

    def start_all_to_all(
        self, x: torch.Tensor, axis: str, dim: int, blocks: int, to_dim: int, to_blocks: int
    ) -> Any:
        """From ``Shard(dim, blocks)`` to ``Shard(to_dim, to_blocks)``."""

    def wait(self, started: Any, *read: torch.Tensor) -> torch.Tensor:
        """The result of what was started; until then the message may read the tensors ``read``."""


UNBOUND: set[Any] = set()
"""All ops that a rank gives a meaning."""


def unbound(name: str) -> Callable[..., Any]:
    """An op that is only a name, until `bind` puts a rank's method of that name in its place."""

    def function(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} is part of a lowered graph; bind the graph to a rank first")

    function.__name__ = name
    function.__qualname__ = name
    function.__module__ = __name__
    UNBOUND.add(function)
    return function


axis_offset = unbound("axis_offset")

# In a program that is sharded, a collective is one op. In what a rank runs it is two, the second of which waits.
all_reduce = unbound("all_reduce")
all_gather = unbound("all_gather")
reduce_scatter = unbound("reduce_scatter")
all_to_all = unbound("all_to_all")
start_all_reduce = unbound("start_all_reduce")
start_all_gather = unbound("start_all_gather")
start_reduce_scatter = unbound("start_reduce_scatter")
start_all_to_all = unbound("start_all_to_all")
wait = unbound("wait")

# Of the state of a rank, by the name of a bucket: add gradients to it, and make its parameters whole.
accumulate_grads = unbound("accumulate_grads")
gather_params = unbound("gather_params")

STARTS: dict[Any, Any] = {
    all_reduce: start_all_reduce,
    all_gather: start_all_gather,
    reduce_scatter: start_reduce_scatter,
    all_to_all: start_all_to_all,
}
"""The op that starts a collective."""

COLLECTIVES: frozenset[Any] = frozenset(STARTS)


def take_part(
    x: torch.Tensor, first: int, dim: int, blocks: int, num_parts: int, count: int = 1
) -> torch.Tensor:
    """Of a replicated tensor ``count`` parts under ``Shard(dim, blocks)``, from the one with this index on."""
    size = x.shape[dim] // (blocks * num_parts)
    cut = x.unflatten(dim, (blocks, num_parts * size)).narrow(dim + 1, first * size, count * size)
    part: torch.Tensor = cut.flatten(dim, dim + 1).contiguous()
    return part


def keep_on_first(x: torch.Tensor, offset: int) -> torch.Tensor:
    """A replicated tensor as a term of a sum: itself on the first rank, zero on the others."""
    return x if offset == 0 else torch.zeros_like(x)


def embed_part(table: torch.Tensor, indices: torch.Tensor, first_row: int, num_rows: int) -> torch.Tensor:
    """Look up in rows ``first_row ..`` of a table of ``num_rows``; zero where another rank has the row."""
    torch._assert_async(
        ((indices >= 0) & (indices < num_rows)).all(), f"an index is not in 0..{num_rows - 1}"
    )
    local = indices - first_row
    mine = (local >= 0) & (local < table.shape[0])
    rows = torch.nn.functional.embedding(local.clamp(0, table.shape[0] - 1), table)
    return rows * mine.unsqueeze(-1)


def embed_part_backward(
    grad: torch.Tensor, indices: torch.Tensor, first_row: int, num_rows: int, padding_row: int
) -> torch.Tensor:
    """The gradient of ``embed_part`` for the table part, ``[num_rows, d]``; row ``padding_row`` has none.

    It is added in float32: of many look-ups of one row, a sum of half precision soon stands still.
    """
    local = indices - first_row
    mine = (local >= 0) & (local < num_rows) & (indices != padding_row)
    exact = torch.promote_types(grad.dtype, torch.float32)
    flat = (grad.to(exact) * mine.unsqueeze(-1)).reshape(-1, grad.shape[-1])
    found = grad.new_zeros(num_rows, grad.shape[-1], dtype=exact)
    return found.index_add_(0, local.clamp(0, num_rows - 1).reshape(-1), flat).to(grad.dtype)


def nll_part(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignored: int,
    first_class: int,
    num_classes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``nll_loss`` summed over the rows whose target is a class of this part; the sum and the weight in it.

    Parameters
    ----------
    scores : [n, c], of the classes ``first_class ..`` among ``num_classes``.
    """
    known = (target == ignored) | ((target >= 0) & (target < num_classes))
    torch._assert_async(known.all(), f"a target is not in 0..{num_classes - 1}")
    local, scale = _own_targets(scores, target, weight, ignored, first_class)
    picked = scores.gather(1, local.unsqueeze(1)).squeeze(1)
    return -(picked * scale).sum(), scale.sum()


def nll_part_backward(
    grad: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignored: int,
    count: torch.Tensor,
    first_class: int,
) -> torch.Tensor:
    """The gradient of ``nll_part`` for its scores, [n, c]."""
    local, scale = _own_targets(scores, target, weight, ignored, first_class)
    return torch.zeros_like(scores).scatter_(1, local.unsqueeze(1), (-grad * scale).unsqueeze(1))


def _own_targets(
    scores: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignored: int, first_class: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets counted from this part's first class, and their weights; zero where another part has the target."""
    local = target - first_class
    mine = (local >= 0) & (local < scores.shape[1]) & (target != ignored)
    local = local.clamp(0, scores.shape[1] - 1)
    scale = mine.to(scores.dtype)
    return local, scale if weight is None else scale * weight[local]


def bind(graph_module: fx.GraphModule, rank: object) -> fx.GraphModule:
    """A copy of a lowered graph in which the ops that are only names are a rank's methods."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        new = copy_node(graph, node, copied.__getitem__)
        if node.target in UNBOUND:
            new.target = getattr(rank, node.target.__name__)
        copied[node] = new
    graph.set_codegen(graph_module.graph._codegen)
    return fx.GraphModule(graph_module, graph)


def is_in_place(node: fx.Node) -> bool:
    """Whether the parts of a tensor that is cut or put together lie one after the other, so that nothing is copied."""
    source, dim, blocks = node.args[0], node.args[2], node.args[3]
    assert isinstance(source, fx.Node)
    assert isinstance(dim, int)
    before: tuple[int, ...] = tuple(source.meta["val"].shape[:dim])
    return bool(blocks == 1) and all(size == 1 for size in before)


def reads_operand(start: fx.Node) -> bool:
    """Whether a message reads its operand itself, and no copy of it, so that it must stay until the wait."""
    if start.target is start_all_to_all:
        return start.args[2] == start.args[4]  # a gather and a cut
    return start.target is start_all_gather or (start.target is start_reduce_scatter and is_in_place(start))


def stays_where_it_arrives(wait_node: fx.Node) -> bool:
    """Whether the result of a wait lies in the memory into which the message wrote."""
    start = wait_node.all_input_nodes[0]
    if start.target is start_all_reduce:
        return start.args[2] != "avg"
    return start.target is start_reduce_scatter or (start.target is start_all_gather and is_in_place(start))


def is_scalar(node: fx.Node) -> bool:
    """Whether a node computes a Python number (a rank's offset) and no tensor."""
    return node.target is axis_offset or (
        node.target is operator.add and not isinstance(node.meta.get("val"), torch.Tensor)
    )

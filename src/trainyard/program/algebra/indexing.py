"""Ops that look elements up or order them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.algebra.rules import (
    args_of,
    dim_in,
    named,
    replicated,
    resized,
    result_shapes,
    rule,
    same_dims,
    shapes,
    sizes_of,
)
from trainyard.program.nodes import argument
from trainyard.program.orders import order_mark

aten = torch.ops.aten


_FIRST = (frozenset({0}),)
COUNTERS = (aten.arange.default, aten.arange.start, aten.arange.start_step)


@rule(aten.embedding.default)
def embedding(node: fx.Node) -> OpAxes:
    """``v d, .. -> .. d``: a cut table answers for its own rows only, and the answers are summed."""
    table, indices = shapes(node)[:2]
    where = named("i", indices)
    sizes = {"v": table[0], "d": table[1], **sizes_of("i", indices)}
    return OpAxes(
        ((("v",), ("d",)), where), ((*where, ("d",)),), sizes, linear=_FIRST, contiguous=frozenset("v")
    )


@rule(aten.embedding_dense_backward.default)
def embedding_backward(node: fx.Node) -> OpAxes:
    """``.. d, .. -> v d``, summed over the look-ups; whole where each is divided by how many there are of its row."""
    if args_of(node)[4]:
        return replicated(node)
    grad, indices = shapes(node)
    where = named("i", indices)
    sizes = {"v": int(args_of(node)[2]), "d": grad[-1], **sizes_of("i", indices)}
    return OpAxes(
        ((*where, ("d",)), where), ((("v",), ("d",)),), sizes, linear=_FIRST, contiguous=frozenset("v")
    )


@rule(aten.gather.default)
def gather(node: fx.Node) -> OpAxes:
    """The dimension that is looked up is whole, in the table and in the result."""
    table, indices = shapes(node)
    if len(table) != len(indices):  # of a number, or for no element
        return replicated(node)
    dim = dim_in(table, args_of(node)[1])
    same = tuple(d != dim and table[d] == indices[d] for d in range(len(table)))
    dims: Dims = tuple((f"d{d}",) if same[d] and table[d] > 1 else () for d in range(len(table)))
    sizes = {f"d{d}": table[d] for d in range(len(table)) if dims[d]}
    return OpAxes((dims, dims), (dims,), sizes, linear=_FIRST)


@rule(aten.scatter_add.default, aten.scatter_reduce.two, aten.scatter.src, aten.scatter.value)
def scatter(node: fx.Node) -> OpAxes:
    """As ``gather``; where elements are added, those of parts of the indices add up."""
    given = shapes(node)
    table, indices = given[0], given[1]
    if any(len(s) != len(table) for s in given):
        return replicated(node)
    dim = dim_in(table, args_of(node)[1])
    same = tuple(d != dim and len({s[d] for s in given}) == 1 for d in range(len(table)))
    dims: Dims = tuple((f"d{d}",) if same[d] and table[d] > 1 else () for d in range(len(table)))
    sizes = {f"d{d}": table[d] for d in range(len(table)) if dims[d]}
    if node.target is not aten.scatter_add.default:
        return OpAxes((dims,) * len(given), (dims,), sizes)
    source = dims
    if table and indices == given[2] and indices[dim] > 1:
        source = (*dims[:dim], ("i",), *dims[dim + 1 :])
        sizes["i"] = indices[dim]
    added = (frozenset({0, 2}),)
    return OpAxes((dims, source, source), (dims,), sizes, addends=frozenset({0}), linear=added)


@rule(aten.topk.default, aten.sort.default, aten.sort.stable, aten.argsort.default)
def order(node: fx.Node) -> OpAxes:
    """The ordered dimension is whole, unless each part may have an order of its own."""
    divisor = order_mark(node).part_divisor
    if not divisor:
        return resized(node, [argument(node, "dim")])
    (length,) = shapes(node)[0]
    dims: Dims = (("i",),)
    return OpAxes(
        (dims,),
        (dims,) * len(result_shapes(node)),
        {"i": length // divisor},
        contiguous=frozenset("i"),
    )


@rule(*COUNTERS)
def counter(node: fx.Node) -> OpAxes:
    """Whole, unless it counts the places of an order, of which each part has its own."""
    divisor = order_mark(node).part_divisor
    if not divisor:
        return replicated(node)
    (length,) = result_shapes(node)[0]
    return OpAxes((), ((("i",),),), {"i": length // divisor}, contiguous=frozenset("i"))


@rule(aten.histc.default)
def histogram(node: fx.Node) -> OpAxes:
    """Counts of parts add up, if the bins do not depend on the numbers."""
    (numbers,) = shapes(node)
    if argument(node, "min") == argument(node, "max"):
        return replicated(node)
    return OpAxes((named("d", numbers),), (((),),), sizes_of("d", numbers))


@rule(aten.triu.default, aten.tril.default)
def triangle(node: fx.Node) -> OpAxes:
    """The last two dimensions are whole."""
    return same_dims(node, [-1, -2], (frozenset({0}),))


@dataclass(frozen=True)
class _Indexing:
    """``table[i, :, j]`` in factors: ``d2`` is dimension 2 of the table, ``i0`` dimension 0 of all indices together.

    Attributes
    ----------
    table, selected : of the table, where what is looked up is whole, and of what is found in it.
    indices : of every index tensor.
    sizes : elements of every factor.
    """

    table: Dims
    indices: tuple[Dims, ...]
    selected: Dims
    sizes: dict[str, int]


def _indexing(node: fx.Node) -> _Indexing | None:
    """None for masks, which say by their values how much is found."""
    table = shapes(node)[0]
    given: list[fx.Node | None] = [*args_of(node)[1]]
    looked_up = [d for d, i in enumerate(given) if i is not None]
    tensors = [i.meta["val"] for i in given if i is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in tensors):
        return None
    together = torch.broadcast_shapes(*(t.shape for t in tensors))
    found = named("i", together)
    indices = tuple(
        tuple(f if n != 1 else () for f, n in zip(found[len(found) - t.dim() :], t.shape, strict=True))
        for t in tensors
    )
    dims: Dims = tuple(() if d in looked_up else f for d, f in enumerate(named("d", table)))
    first, last = looked_up[0], looked_up[-1]
    # The dimensions of indices that are apart come first.
    at = first if last - first + 1 == len(looked_up) else 0
    free = tuple(f for d, f in enumerate(dims) if d not in looked_up)
    sizes = {f: table[d] for d, factors in enumerate(dims) for f in factors} | sizes_of("i", together)
    return _Indexing(dims, indices, (*free[:at], *found, *free[at:]), sizes)


@rule(aten.index.Tensor)
def index(node: fx.Node) -> OpAxes:
    """What is looked up is whole; all other dimensions, and those of the indices, are mapped."""
    parts = _indexing(node)
    if parts is None:
        return replicated(node)
    return OpAxes((parts.table, *parts.indices), (parts.selected,), parts.sizes, linear=_FIRST)


@rule(aten.index_put.default)
def index_put(node: fx.Node) -> OpAxes:
    """As ``index``, whose gradient it is; where values are added, those of parts of the indices add up."""
    parts = _indexing(node)
    if parts is None:
        return _masked_put(node)
    *_, values = shapes(node)
    # Values of fewer dimensions are spread over what is indexed, from the right.
    aligned = parts.selected[len(parts.selected) - len(values) :]
    value_dims: Dims = tuple(f if n != 1 else () for f, n in zip(aligned, values, strict=True))
    operands = (parts.table, *parts.indices, value_dims)
    if not argument(node, "accumulate"):
        whole = frozenset(f for f in parts.sizes if f.startswith("i"))
        return OpAxes(operands, (parts.table,), parts.sizes, whole)
    added = (frozenset({0, len(operands) - 1}),)
    return OpAxes(operands, (parts.table,), parts.sizes, addends=frozenset({0}), linear=added)


def _masked_put(node: fx.Node) -> OpAxes:
    """One value, or one for each of the last dimensions, wherever a mask of the first dimensions says so."""
    table, *masks, values = shapes(node)
    mask = args_of(node)[1][0]
    if len(masks) != 1 or mask is None or mask.meta["val"].dtype != torch.bool:
        return replicated(node)
    dims = named("d", table)
    if len(values) > len(table) - len(masks[0]):
        return replicated(node)
    tail = dims[len(table) - len(values) :]
    value_dims: Dims = tuple(f if n != 1 else () for f, n in zip(tail, values, strict=True))
    return OpAxes((dims, dims[: len(masks[0])], value_dims), (dims,), sizes_of("d", table))


@rule(aten.index_select.default)
def index_select(node: fx.Node) -> OpAxes:
    """What is looked up is whole; all other dimensions, and that of the indices, are mapped."""
    table, indices = shapes(node)
    table_dims, source = _selected(table, indices, args_of(node)[1])
    sizes = {f: table[d] for d, factors in enumerate(table_dims) for f in factors} | sizes_of("i", indices)
    return OpAxes((table_dims, named("i", indices)), (source,), sizes, linear=_FIRST)


@rule(aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_copy(node: fx.Node) -> OpAxes:
    """As ``index_add``; of several values for one place the last one counts, so that the indices are whole."""
    table, indices, *values = shapes(node)
    dims, source = _selected(table, indices, args_of(node)[1])
    sizes = {f: table[d] for d, factors in enumerate(dims) for f in factors} | sizes_of("i", indices)
    operands = (dims, named("i", indices), *(source if shape else () for shape in values))
    return OpAxes(operands, (dims,), sizes, frozenset(sizes_of("i", indices)))


@rule(aten.index_add.default)
def index_add(node: fx.Node) -> OpAxes:
    """The gradient of ``index_select``: parts of the indices add up."""
    table, indices, _ = shapes(node)
    dims, source = _selected(table, indices, args_of(node)[1])
    sizes = {f: table[d] for d, factors in enumerate(dims) for f in factors} | sizes_of("i", indices)
    added = (frozenset({0, 2}),)
    operands = (dims, named("i", indices), source)
    return OpAxes(operands, (dims,), sizes, addends=frozenset({0}), linear=added)


def _selected(table: tuple[int, ...], indices: tuple[int, ...], dim: int) -> tuple[Dims, Dims]:
    """Dimensions of a table, and of what is looked up in one of them by a row of indices."""
    at = dim % max(1, len(table))
    dims: Dims = tuple(() if d == at else f for d, f in enumerate(named("d", table)))
    found = named("i", indices)[0] if indices else ()
    return dims, tuple(found if d == at else f for d, f in enumerate(dims))

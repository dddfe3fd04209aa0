"""Ops that look elements up or order them."""

from __future__ import annotations

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.algebra.rules import (
    args_of,
    named,
    replicated,
    result_shapes,
    rule,
    same_dims,
    shapes,
    sizes_of,
)

aten = torch.ops.aten


_FIRST = (frozenset({0}),)


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
    dim = args_of(node)[1] % len(table)
    same = tuple(d != dim and table[d] == indices[d] for d in range(len(table)))
    dims: Dims = tuple((f"d{d}",) if same[d] and table[d] > 1 else () for d in range(len(table)))
    sizes = {f"d{d}": table[d] for d in range(len(table)) if dims[d]}
    return OpAxes((dims, dims), (dims,), sizes, linear=_FIRST)


@rule(aten.scatter_add.default, aten.scatter.src, aten.scatter.value)
def scatter(node: fx.Node) -> OpAxes:
    """As ``gather``."""
    given = shapes(node)
    table, indices = given[0], given[1]
    dim = args_of(node)[1] % len(table)
    same = tuple(d != dim and len({s[d] for s in given}) == 1 for d in range(len(table)))
    dims: Dims = tuple((f"d{d}",) if same[d] and table[d] > 1 else () for d in range(len(table)))
    sizes = {f"d{d}": table[d] for d in range(len(table)) if dims[d]}
    assert len(indices) == len(table)
    return OpAxes((dims,) * len(given), (dims,), sizes)


@rule(aten.topk.default, aten.sort.default, aten.sort.stable, aten.argmax.default, aten.argsort.default)
def order(node: fx.Node) -> OpAxes:
    """The ordered dimension is whole; ``argmax`` may drop it."""
    (shape,) = shapes(node)
    position = 2 if node.target is aten.topk.default else 1
    # Without a dimension, argmax looks at all elements and the others at the last one.
    default = None if node.target is aten.argmax.default else -1
    given = node.kwargs.get("dim", args_of(node)[position] if len(args_of(node)) > position else default)
    if given is None or not isinstance(given, int):
        return OpAxes(
            (tuple(() for _ in shape),), tuple(tuple(() for _ in s) for s in result_shapes(node)), {}
        )
    dim = given % len(shape)
    dims: Dims = tuple(() if d == dim else f for d, f in enumerate(named("d", shape)))
    dropped = tuple(f for d, f in enumerate(dims) if d != dim)
    results = tuple(dims if len(s) == len(shape) else dropped for s in result_shapes(node))
    return OpAxes((dims,), results, {f: shape[int(f[1:])] for factors in dims for f in factors})


@rule(aten.triu.default, aten.tril.default)
def triangle(node: fx.Node) -> OpAxes:
    """The last two dimensions are whole."""
    return same_dims(node, [-1, -2], (frozenset({0}),))


def _lead(node: fx.Node) -> int | None:
    """Dimensions before the first index; None if indices are apart, for then those that they make come first."""
    given: list[fx.Node | None] = args_of(node)[1]
    indexed = [d for d, i in enumerate(given) if i is not None]
    return indexed[0] if indexed[-1] - indexed[0] + 1 == len(indexed) else None


@rule(aten.index.Tensor)
def index(node: fx.Node) -> OpAxes:
    """Dimensions before the first index are mapped; all others are whole."""
    table, *indices = shapes(node)
    lead = _lead(node)
    if lead is None:
        return replicated(node)
    dims: Dims = (*named("d", table[:lead]), *(() for _ in table[lead:]))
    (target,) = result_shapes(node)
    result: Dims = (*named("d", target[:lead]), *(() for _ in target[lead:]))
    plain: list[Dims] = [tuple(() for _ in s) for s in indices]
    return OpAxes((dims, *plain), (result,), sizes_of("d", table[:lead]), linear=_FIRST)


@rule(aten.index_put.default)
def index_put(node: fx.Node) -> OpAxes:
    """Dimensions before the first index are mapped, as in ``index``, whose gradient it is."""
    table, *rest = shapes(node)
    lead = _lead(node)
    if lead is None:
        return replicated(node)
    dims: Dims = (*named("d", table[:lead]), *(() for _ in table[lead:]))
    values = rest[-1]
    # Values of fewer dimensions are spread over what is indexed, from the right.
    selected = len(torch.broadcast_shapes(*rest[:-1])) + len(table) - len(rest[:-1])
    mapped = len(values) == selected and values[:lead] == table[:lead]
    value_dims: Dims = (*named("d", values[:lead]), *(() for _ in values[lead:]))
    if not mapped:
        dims, value_dims = tuple(() for _ in table), tuple(() for _ in values)
    plain: list[Dims] = [tuple(() for _ in s) for s in rest[:-1]]
    sizes = sizes_of("d", table[:lead]) if mapped else {}
    return OpAxes((dims, *plain, value_dims), (dims,), sizes)

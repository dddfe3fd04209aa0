"""Arguments of ops that look elements up or order them."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from algebra_cases.drawing import Draw, case

aten = torch.ops.aten


@case(aten.embedding.default)
def _embedding(d: Draw) -> tuple[Any, ...]:
    rows = d.pick(2, 4, 8)
    return d.real(rows, d.size()), d.index(rows, *d.shape(1, 2))


@case(aten.embedding_dense_backward.default)
def _embedding_backward(d: Draw) -> tuple[Any, ...]:
    table, index = _embedding(d)
    grad = d.real(*index.shape, table.shape[1])
    return grad, index, table.shape[0], d.pick(-1, 0, table.shape[0] - 1), d.pick(False, True)


@case(aten.gather.default)
def _gather(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    shape = list(x.shape)
    shape[dim] = d.size()
    if d.pick(True, False):
        other = d.dim(len(shape)) % len(shape)
        shape[other] = d.data.draw(st.integers(1, shape[other]))
    return x, dim, d.index(x.shape[dim], *shape)


@case(aten.scatter_add.default, aten.scatter.src)
def _scatter(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    # Each place is written at most once, so that the order of writes does not matter.
    index = torch.argsort(d.real(*x.shape), dim)
    return x, dim, index, d.real(*x.shape)


@case(aten.scatter.value)
def _scatter_value(d: Draw) -> tuple[Any, ...]:
    return *_scatter(d)[:3], 4.0


@case(aten.topk.default)
def _topk(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, d.data.draw(st.integers(1, x.shape[dim])), dim


@case(aten.sort.default, aten.argsort.default)
def _sort(d: Draw) -> tuple[Any, ...]:
    return d.with_dim()


@case(aten.sort.stable)
def _sort_stable(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, {"stable": True, "dim": dim, "descending": d.pick(True, False)}


@case(aten.triu.default, aten.tril.default)
def _triangle(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(2)), d.pick(-1, 0, 1)


@case(aten.scatter_reduce.two)
def _scatter_reduce(d: Draw) -> tuple[Any, ...]:
    return *_scatter(d), d.pick("sum", "amax")


@case(aten.index.Tensor)
def _index(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2, 4)
    at = d.pick(0, 1)
    indices = d.index(shape[at], *d.shape(1, 2))
    given: list[Tensor | None] = [None] * at + [indices]
    # One more index, spread over the first: apart, so that what they make comes first, or next to it.
    for between in d.pick((), (0,), (1,)):
        other = at + 1 + between
        if other < len(shape):
            spread = indices.shape[d.pick(0, 1) :]
            given += [None] * between + [d.index(shape[other], *(d.pick(1, n) for n in spread))]
    return d.real(*shape), given


@case(aten.index_put.default)
def _index_put(d: Draw) -> tuple[Any, ...]:
    x, given = _index(d)
    shape = list(aten.index.Tensor(x, given).shape)
    # Values of fewer dimensions, or of size one, are spread over what is indexed.
    values = [n if d.pick(True, True, False) else 1 for n in shape][d.pick(0, 1) :]
    if d.pick(True, True, False):
        return x, given, d.real(*values), True
    mask = d.real(*x.shape[: d.pick(1, 2)]) > 0
    # Which of several values of one place remains is not said: here they are alike.
    return d.pick((x, given, torch.tensor(3.0, dtype=x.dtype)), (x, [mask], d.real(*x.shape[mask.dim() :])))


@case(aten.index_select.default)
def _index_select(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, dim, d.index(x.shape[dim], d.size())


@case(aten.index_add.default)
def _index_add(d: Draw) -> tuple[Any, ...]:
    x, dim, index = _index_select(d)
    return x, dim, index, d.real(*aten.index_select.default(x, dim, index).shape)


@case(aten.index_fill.int_Scalar)
def _index_fill(d: Draw) -> tuple[Any, ...]:
    return *_index_select(d), 2.0

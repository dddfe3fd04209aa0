"""Arguments of ops that only move elements."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from algebra_cases.drawing import Draw, case
from trainyard.program import spmd

aten = torch.ops.aten


@case(aten.view.default)
def _view(d: Draw) -> tuple[Any, ...]:
    a, b, c = d.size(), d.size(), d.size()
    shapes = [[a, b, c], [a * b, c], [a, b * c], [a * b * c], [b, a, c], [1, a, b, c], [c, b * a]]
    return d.real(*d.pick(*map(tuple, shapes))), list(d.pick(*map(tuple, shapes)))


@case(aten.t.default, aten.squeeze.default)
def _one(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape(1, 2)),)


@case(aten.permute.default)
def _permute(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return d.real(*shape), d.data.draw(st.permutations(range(len(shape))))


@case(aten.transpose.int)
def _transpose(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2)
    return d.real(*shape), d.dim(len(shape)), d.dim(len(shape))


@case(aten.unsqueeze.default, aten.squeeze.dim, aten.unbind.int)
def _with_dim(d: Draw) -> tuple[Any, ...]:
    return d.with_dim()


@case(aten.squeeze.dims, aten.flip.default)
def _with_dims(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, [dim]


@case(aten.expand.default)
def _expand(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1, 3)
    wide = [d.size() if n == 1 else n for n in shape]
    return d.real(*shape), [*d.shape(0, 1), *wide]


@case(aten.select.int)
def _select(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, dim, d.data.draw(st.integers(0, x.shape[dim] - 1))


@case(aten.select_backward.default)
def _select_backward(d: Draw) -> tuple[Any, ...]:
    x, dim, at = _select(d)
    return d.real(*x.select(dim, at).shape), list(x.shape), dim, at


@case(aten.slice.Tensor)
def _slice(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    size = x.shape[dim]
    start = d.data.draw(st.integers(0, size - 1))
    start = d.pick(start, start - size, size // 2 if size > 1 else 0)
    first = start % size
    end = d.pick(d.data.draw(st.integers(first + 1, size)), 2**63 - 1)
    return x, dim, start, end, d.pick(1, 1, 2)


@case(aten.slice_backward.default)
def _slice_backward(d: Draw) -> tuple[Any, ...]:
    x, dim, start, end, step = _slice(d)
    part = aten.slice.Tensor(x, dim, start, end, step)
    return d.real(*part.shape), list(x.shape), dim, start, end, step


@case(aten.split.Tensor, aten.unsafe_split.Tensor)
def _split(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, d.data.draw(st.integers(1, x.shape[dim])), dim


@case(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def _split_with_sizes(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    first = d.data.draw(st.integers(1, x.shape[dim]))
    return x, [n for n in (first, x.shape[dim] - first) if n], dim


@case(aten.cat.default)
def _cat(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    dim = d.dim(len(shape))
    other = list(shape)
    other[dim] = d.pick(shape[dim], d.size())
    return [d.real(*shape), d.real(*other)], dim


@case(aten.stack.default)
def _stack(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    return [d.real(*shape), d.real(*shape)], d.dim(len(shape) + 1)


@case(aten.constant_pad_nd.default)
def _pad(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(1, 3)), [d.pick(0, 1), d.pick(-1, 0, 2)], d.pick(0.0, 1.5)


@case(aten.roll.default)
def _roll(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return d.pick((x, [1], [dim]), (x, [1]))


@case(aten.repeat.default)
def _repeat(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(1, 3)
    return d.real(*shape), [d.pick(1, 2) for _ in range(len(shape) + d.pick(0, 1))]


@case(aten.select_scatter.default)
def _select_scatter(d: Draw) -> tuple[Any, ...]:
    x, dim, at = _select(d)
    return x, d.real(*x.select(dim, at).shape), dim, at


@case(aten.slice_scatter.default)
def _slice_scatter(d: Draw) -> tuple[Any, ...]:
    x, *where = _slice(d)
    return x, d.real(*aten.slice.Tensor(x, *where).shape), *where


@case(aten.diagonal.default)
def _diagonal(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2)
    first, second = d.data.draw(st.permutations(range(len(shape))))[:2]
    return d.real(*shape), d.pick(0, 1) if shape[second] > 1 else 0, first, second - len(shape)


@case(aten.diagonal_backward.default)
def _diagonal_backward(d: Draw) -> tuple[Any, ...]:
    x, *where = _diagonal(d)
    return d.real(*aten.diagonal.default(x, *where).shape), list(x.shape), *where


@case(aten.diag_embed.default)
def _diag_embed(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(1, 3)), d.pick(-1, 0, 1), *d.pick((-2, -1), (0, -1))


@case(aten.unfold.default)
def _unfold(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, dim, d.data.draw(st.integers(1, x.shape[dim])), d.pick(1, 2)


@case(aten.unfold_backward.default)
def _unfold_backward(d: Draw) -> tuple[Any, ...]:
    x, *windows = _unfold(d)
    return d.real(*aten.unfold.default(x, *windows).shape), list(x.shape), *windows


def _complex(d: Draw) -> torch.Tensor:
    return torch.view_as_complex(d.real(*d.shape(1, 3), 2))


@case(aten.view_as_complex.default)
def _pairs(d: Draw) -> tuple[Any, ...]:
    return (d.real(*d.shape(0, 3), 2),)


@case(aten.view_as_real.default, aten._conj.default)
def _complex_one(d: Draw) -> tuple[Any, ...]:
    return (_complex(d),)


@case(aten._fft_r2c.default)
def _fft_of_real(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return x, [dim % x.dim()], 0, d.pick(True, False)


@case(aten._fft_c2c.default)
def _fft(d: Draw) -> tuple[Any, ...]:
    x = _complex(d)
    return x, [d.dim(x.dim()) % x.dim()], 0, d.pick(True, False)


@case(aten._fft_c2r.default)
def _fft_to_real(d: Draw) -> tuple[Any, ...]:
    x = _complex(d)
    dim = d.dim(x.dim()) % x.dim()
    return x, [dim], 0, 2 * (x.shape[dim] - 1) or 1


@case(spmd.keep_on_first)
def _keep(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape()), d.pick(0, 1)


@case(spmd.take_part)
def _take_part(d: Draw) -> tuple[Any, ...]:
    shape = d.shape()
    dim = d.dim(len(shape)) % len(shape)
    shape[dim] *= 4
    return d.real(*shape), d.pick(0, 1), dim, d.pick(1, 2), 2


@case(aten.rot90.default)
def _rot90(d: Draw) -> tuple[Any, ...]:
    x = d.real(*d.shape(2))
    return x, d.pick(-1, 0, 1, 2), d.pick([0, 1], [-1, -2])


@case(aten.diagonal_scatter.default)
def _diagonal_scatter(d: Draw) -> tuple[Any, ...]:
    x = d.real(*d.shape(2))
    offset, dims = d.pick(-1, 0), d.pick((0, 1), (-2, -1))
    if offset and x.shape[dims[0]] < 2:
        offset = 0
    return x, d.real(*x.diagonal(offset, *dims).shape), offset, *dims

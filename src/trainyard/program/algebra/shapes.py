"""Ops that only move elements: views, transposes, slices, concatenations."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from trainyard.program import spmd
from trainyard.program.algebra.notation import Dims, OpAxes, split_and_merge
from trainyard.program.algebra.rules import (
    args_of,
    dim_in,
    first_index,
    leading,
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

aten = torch.ops.aten

_FIRST = (frozenset({0}),)
SPLITS: tuple[Any, ...] = (
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
)


@rule(aten.view.default)
def view(node: fx.Node) -> OpAxes:
    """``b (h d) -> b h d`` and the like: the common factors of both shapes."""
    before, after = shapes(node)[0], result_shapes(node)[0]
    if 0 in before:
        return replicated(node)
    source, target, sizes = split_and_merge(before, after)
    whole = frozenset(f for f in sizes if f.startswith("!"))
    return OpAxes((source,), (target,), sizes, whole, linear=_FIRST)


def _permuted(node: fx.Node, order: list[int]) -> OpAxes:
    (shape,) = shapes(node)
    dims = named("d", shape)
    return OpAxes((dims,), (tuple(dims[d] for d in order),), sizes_of("d", shape), linear=_FIRST)


@rule(aten.t.default)
def t(node: fx.Node) -> OpAxes:
    """``a b -> b a``."""
    return _permuted(node, list(range(len(shapes(node)[0])))[::-1])


@rule(aten.permute.default)
def permute(node: fx.Node) -> OpAxes:
    """Dimensions in another order."""
    (shape,) = shapes(node)
    return _permuted(node, [dim_in(shape, d) for d in args_of(node)[1]])


@rule(aten.transpose.int)
def transpose(node: fx.Node) -> OpAxes:
    """Two dimensions change places."""
    (shape,) = shapes(node)
    order = list(range(len(shape)))
    a, b = (dim_in(shape, d) for d in args_of(node)[1:3])
    if a != b:
        order[a], order[b] = b, a
    return _permuted(node, order)


@rule(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def unit_dims(node: fx.Node) -> OpAxes:
    """Dimensions of size one come or go: a view."""
    return view(node)


@rule(aten.expand.default)
def expand(node: fx.Node) -> OpAxes:
    """Broadcast to the right; a new dimension may be cut freely."""
    (shape,), (target,) = shapes(node), result_shapes(node)
    dims = named("d", target)
    tail = dims[len(target) - len(shape) :]
    source = tuple(f if n != 1 else () for f, n in zip(tail, shape, strict=True))
    return OpAxes((source,), (dims,), sizes_of("d", target), linear=_FIRST)


@rule(aten.select.int)
def select(node: fx.Node) -> OpAxes:
    """One index of a dimension, which must be whole."""
    (shape,) = shapes(node)
    gone = dim_in(shape, args_of(node)[1])
    dims = named("d", shape)
    kept = tuple(f for d, f in enumerate(dims) if d != gone)
    return OpAxes((dims,), (kept,), sizes_of("d", shape), frozenset(dims[gone]), linear=_FIRST)


@rule(aten.select_backward.default)
def select_backward(node: fx.Node) -> OpAxes:
    """The gradient of ``select``: zeros around one index."""
    (target,) = result_shapes(node)
    at = dim_in(target, args_of(node)[2])
    dims = named("d", target)
    source = tuple(f for d, f in enumerate(dims) if d != at)
    return OpAxes((source,), (dims,), sizes_of("d", target), frozenset(dims[at]), linear=_FIRST)


@rule(aten.select_scatter.default)
def select_scatter(node: fx.Node) -> OpAxes:
    """A tensor with another one at one index of a dimension, which is whole."""
    shape = shapes(node)[0]
    at = dim_in(shape, argument(node, "dim"))
    dims = named("d", shape)
    source = tuple(f for d, f in enumerate(dims) if d != at)
    sizes, whole = sizes_of("d", shape), frozenset(dims[at])
    return OpAxes((dims, source), (dims,), sizes, whole, linear=(frozenset({0, 1}),))


@rule(aten.slice_scatter.default)
def slice_scatter(node: fx.Node) -> OpAxes:
    """A tensor with another one in a range of a dimension, which is whole."""
    return resized(node, [argument(node, "dim")], (frozenset({0, 1}),))


@rule(aten.diagonal.default)
def diagonal(node: fx.Node) -> OpAxes:
    """Two dimensions, which are whole, become one at the end."""
    (shape,) = shapes(node)
    return _diagonal(node, shape, to_diagonal=True)


@rule(aten.diagonal_backward.default, aten.diag_embed.default)
def on_diagonal(node: fx.Node) -> OpAxes:
    """The reverse of ``diagonal``: zeros around it."""
    (shape,) = result_shapes(node)
    return _diagonal(node, shape, to_diagonal=False)


@rule(aten.diagonal_scatter.default)
def diagonal_scatter(node: fx.Node) -> OpAxes:
    """A tensor with another one on a diagonal."""
    shape = shapes(node)[0]
    axes = _diagonal(node, shape, to_diagonal=True)
    (dims,), (short,) = axes.operands, axes.results
    return OpAxes((dims, short), (dims,), axes.sizes, linear=(frozenset({0, 1}),))


def _diagonal(node: fx.Node, shape: tuple[int, ...], *, to_diagonal: bool) -> OpAxes:
    whole = {dim_in(shape, argument(node, name)) for name in ("dim1", "dim2")}
    dims = tuple(() if d in whole else f for d, f in enumerate(named("d", shape)))
    short = (*(f for d, f in enumerate(dims) if d not in whole), ())
    sizes = {f: shape[d] for d, factors in enumerate(dims) for f in factors}
    source, result = (dims, short) if to_diagonal else (short, dims)
    return OpAxes((source,), (result,), sizes, linear=_FIRST)


@rule(aten.unfold.default, aten.unfold_backward.default)
def unfold(node: fx.Node) -> OpAxes:
    """Windows of one dimension, which is whole; the elements of a window are a new last dimension."""
    shape = min(shapes(node)[0], result_shapes(node)[0], key=len)
    at = argument(node, "dimension" if node.target is aten.unfold.default else "dim") % max(1, len(shape))
    dims: Dims = tuple(() if d == at else f for d, f in enumerate(named("d", shape)))
    sizes = {f: shape[d] for d, factors in enumerate(dims) for f in factors}
    source, result = (dims, (*dims, ())) if node.target is aten.unfold.default else ((*dims, ()), dims)
    return OpAxes((source,), (result,), sizes, linear=_FIRST)


@rule(aten.view_as_complex.default, aten.view_as_real.default, aten._conj.default)
def complex_numbers(node: fx.Node) -> OpAxes:
    """Pairs of real numbers are complex ones; all dimensions before the pairs are mapped."""
    if not shapes(node):
        return replicated(node)  # of a number
    return leading(node, min(len(shapes(node)[0]), len(result_shapes(node)[0])))


@rule(aten._fft_r2c.default, aten._fft_c2r.default, aten._fft_c2c.default)
def fourier(node: fx.Node) -> OpAxes:
    """The dimensions that are transformed are whole."""
    return resized(node, argument(node, "dim"))


@rule(aten.slice.Tensor)
def slice_(node: fx.Node) -> OpAxes:
    """A range of one dimension: whole, unless it is one of several equal blocks."""
    (shape,), (target,) = shapes(node), result_shapes(node)
    dim = dim_in(shape, args_of(node)[1] if len(args_of(node)) > 1 else 0)
    start = first_index(args_of(node)[2] if len(args_of(node)) > 2 else 0, shape[dim])
    step = args_of(node)[4] if len(args_of(node)) > 4 else 1
    return _block(shape, target, dim, start, int(step), to_block=True)


@rule(aten.slice_backward.default)
def slice_backward(node: fx.Node) -> OpAxes:
    """The gradient of ``slice``."""
    (source,), (target,) = shapes(node), result_shapes(node)
    dim, start, _, step = args_of(node)[2:6]
    at = dim_in(target, dim)
    return _block(target, source, at, first_index(start, target[at]), int(step), to_block=False)


def _block(
    full: tuple[int, ...], part: tuple[int, ...], dim: int, start: int, step: int, *, to_block: bool
) -> OpAxes:
    dims, sizes = list(named("d", full)), sizes_of("d", full)
    small = list(dims)
    whole: frozenset[str] = frozenset()
    if full[dim] != part[dim]:
        small[dim] = dims[dim]
        if step == 1 and part[dim] > 1 and full[dim] % part[dim] == 0 and start % part[dim] == 0:
            sizes |= {"blocks": full[dim] // part[dim], "part": part[dim]}
            del sizes[f"d{dim}"]
            dims[dim], small[dim] = ("blocks", "part"), ("part",)
            whole = frozenset({"blocks"})
        else:
            whole = frozenset({f"d{dim}"})
            small[dim] = ()
    a, b = tuple(dims), tuple(small)
    return OpAxes((a if to_block else b,), (b if to_block else a,), sizes, whole, linear=_FIRST)


@rule(*SPLITS, aten.unbind.int)
def split(node: fx.Node) -> OpAxes:
    """Equal parts of a dimension: cut inside every part; unequal parts need it whole."""
    (shape,) = shapes(node)
    parts = result_shapes(node)
    position = 1 if node.target is aten.unbind.int else 2
    dim = dim_in(shape, args_of(node)[position] if len(args_of(node)) > position else 0)
    dims, sizes = list(named("d", shape)), sizes_of("d", shape)
    if node.target is aten.unbind.int:
        kept: Dims = tuple(f for d, f in enumerate(dims) if d != dim)
        return OpAxes((tuple(dims),), (kept,) * len(parts), sizes, frozenset(dims[dim]), linear=_FIRST)
    return _parts(dims, sizes, dim, [p[dim] for p in parts], split_up=True)


@rule(aten.cat.default)
def cat(node: fx.Node) -> OpAxes:
    """The reverse of ``split``."""
    (shape,) = result_shapes(node)
    dim = dim_in(shape, args_of(node)[1] if len(args_of(node)) > 1 else 0)
    full = [s for s in shapes(node) if len(s) == len(shape)]
    axes = _parts(list(named("d", shape)), sizes_of("d", shape), dim, [s[dim] for s in full], split_up=False)
    if len(full) == len(shapes(node)):
        return axes
    # Of tensors of shape [0] beside others nothing is taken.
    operands = iter(axes.operands)
    whole = tuple(next(operands) if len(s) == len(shape) else ((),) for s in shapes(node))
    return replace(axes, operands=whole, linear=(frozenset(range(len(whole))),))


def _parts(
    dims: list[tuple[str, ...]], sizes: dict[str, int], dim: int, lengths: list[int], *, split_up: bool
) -> OpAxes:
    small = list(dims)
    whole = frozenset(dims[dim])
    small[dim] = ()
    if len(set(lengths)) == 1 and lengths[0] > 1:
        sizes = {f: n for f, n in sizes.items() if f not in dims[dim]} | {
            "parts": len(lengths),
            "part": lengths[0],
        }
        dims[dim], small[dim], whole = ("parts", "part"), ("part",), frozenset({"parts"})
    one, many = (tuple(dims),), (tuple(small),) * len(lengths)
    linear = (frozenset(range(1 if split_up else len(lengths))),)
    return OpAxes(one if split_up else many, many if split_up else one, sizes, whole, linear=linear)


@rule(aten.stack.default)
def stack(node: fx.Node) -> OpAxes:
    """A new dimension, which is whole."""
    (target,) = result_shapes(node)
    dim = dim_in(target, args_of(node)[1] if len(args_of(node)) > 1 else 0)
    dims = named("d", target)
    source = tuple(f for d, f in enumerate(dims) if d != dim)
    count = len(shapes(node))
    return OpAxes(
        (source,) * count,
        (dims,),
        sizes_of("d", target),
        frozenset(dims[dim]),
        linear=(frozenset(range(count)),),
    )


@rule(aten.constant_pad_nd.default)
def pad(node: fx.Node) -> OpAxes:
    """Padded dimensions are whole."""
    (shape,), (target,) = shapes(node), result_shapes(node)
    amounts: list[int] = args_of(node)[1]
    # Pairs, from the last dimension on; a pad and a cut may leave the size as it is.
    padded = {len(shape) - 1 - i // 2 for i, n in enumerate(amounts) if n}
    dims = named("d", tuple(max(a, b) for a, b in zip(shape, target, strict=True)))
    whole = frozenset(f"d{d}" for d in padded)
    zero = len(args_of(node)) < 3 or not args_of(node)[2]
    return OpAxes((dims,), (dims,), sizes_of("d", shape), whole, linear=_FIRST if zero else ())


@rule(aten.rot90.default)
def rotate(node: fx.Node) -> OpAxes:
    """Two dimensions, which are whole, may change places."""
    return resized(node, argument(node, "dims"), _FIRST)


@rule(aten.flip.default, aten.roll.default)
def reorder(node: fx.Node) -> OpAxes:
    """Elements move along some dimensions, which are whole."""
    (shape,) = shapes(node)
    position = 1 if node.target is aten.flip.default else 2
    moved = args_of(node)[position] if len(args_of(node)) > position else range(len(shape))
    dims = named("d", shape)
    whole = frozenset(f"d{dim_in(shape, d)}" for d in moved)
    return OpAxes((dims,), (dims,), sizes_of("d", shape), whole, linear=_FIRST)


@rule(aten.repeat.default)
def repeat(node: fx.Node) -> OpAxes:
    """A repeated dimension is a row of blocks, each of which has all of its elements."""
    (shape,), (target,) = shapes(node), result_shapes(node)
    source = named("d", shape)
    padded: Dims = (*((),) * (len(target) - len(shape)), *source)
    times = [
        n // max(1, size) for n, size in zip(target, (1,) * (len(target) - len(shape)) + shape, strict=True)
    ]
    blocks = named("times", times)
    sizes = sizes_of("d", shape) | sizes_of("times", times)
    result = tuple((*outer, *inner) for outer, inner in zip(blocks, padded, strict=True))
    return OpAxes((source,), (result,), sizes, frozenset(sizes_of("times", times)), linear=_FIRST)


@rule(spmd.keep_on_first)
def keep_on_first(node: fx.Node) -> OpAxes:
    """The tensor itself on one rank of another axis, and zeros on the others."""
    return same_dims(node, (), linear=_FIRST)


@rule(spmd.take_part)
def take_part(node: fx.Node) -> OpAxes:
    """A part of one dimension, which is whole, on each rank of another axis."""
    return resized(node, [args_of(node)[2]], _FIRST)


@rule(operator.getitem)
def getitem(node: fx.Node) -> OpAxes:
    """One of several results; its placement is the result's own."""
    raise TypeError(f"{node.name} takes a result apart and has no axes of its own")

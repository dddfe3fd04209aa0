"""Products: matrix products, convolutions, attention."""

from __future__ import annotations

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes, axes_from
from trainyard.program.algebra.rules import (
    args_of,
    named,
    replicated,
    result_shapes,
    rule,
    shapes,
    sizes_of,
    text_rule,
)
from trainyard.program.grouped_product import GROUPED_GRADIENT, GROUPED_PRODUCT
from trainyard.program.nodes import argument

aten = torch.ops.aten

_EACH = (frozenset({0}), frozenset({1}))

text_rule(aten.mm.default, "m k, k n -> m n", linear=_EACH)
text_rule(aten.bmm.default, "b m k, b k n -> b m n", linear=_EACH)
text_rule(aten.dot.default, "k, k -> ", linear=_EACH)
text_rule(aten.mv.default, "m k, k -> m", linear=_EACH)
# Rows are in the order of their groups, so that a part of them must be one piece.
_PIECES = frozenset("m")
text_rule(
    GROUPED_PRODUCT,
    "m, m k, g k n -> m n",
    whole="g",
    linear=(frozenset({1}), frozenset({2})),
    contiguous=_PIECES,
)


@rule(GROUPED_GRADIENT)
def grouped_gradient(node: fx.Node) -> OpAxes:
    """``m, m k, m n -> g k n``, summed over rows."""
    text = "m, m k, m n -> 1 k n"
    return axes_from(text, shapes(node), linear=(frozenset({1}), frozenset({2})), contiguous=_PIECES)


@rule(aten.addmm.default)
def addmm(node: fx.Node) -> OpAxes:
    """``bias + m k, k n -> m n``; the bias is added once, so it is partial where ``k`` is cut."""
    bias, left, right = shapes(node)
    sizes = {"m": left[0], "k": left[1], "n": right[1]}
    aligned = (("m",), ("n",))[2 - len(bias) :]
    bias_dims = tuple(f if n != 1 else () for f, n in zip(aligned, bias, strict=True))
    operands: tuple[Dims, ...] = (bias_dims, (("m",), ("k",)), (("k",), ("n",)))
    linear = (frozenset({0, 1}), frozenset({0, 2}))
    return OpAxes(operands, ((("m",), ("n",)),), sizes, addends=frozenset({0}), linear=linear)


@rule(aten.baddbmm.default)
def baddbmm(node: fx.Node) -> OpAxes:
    """``bias + b m k, b k n -> b m n``."""
    bias, left, right = shapes(node)
    sizes = {"b": left[0], "m": left[1], "k": left[2], "n": right[2]}
    result: Dims = (("b",), ("m",), ("n",))
    bias_dims = tuple(f if n != 1 else () for f, n in zip(result[3 - len(bias) :], bias, strict=True))
    operands: tuple[Dims, ...] = (bias_dims, (("b",), ("m",), ("k",)), (("b",), ("k",), ("n",)))
    linear = (frozenset({0, 1}), frozenset({0, 2}))
    return OpAxes(operands, (result,), sizes, addends=frozenset({0}), linear=linear)


def _channels(
    transposed: bool, groups: int, num_in: int, num_out: int
) -> tuple[tuple[str, ...], tuple[str, ...], Dims, dict[str, int]]:
    """Channels of what goes in and comes out of a convolution, both of its weight's, and their sizes.

    In groups all are whole.
    """
    if groups != 1:
        return (), (), ((), ()), {}
    i, o = ("i",), ("o",)
    return i, o, (i, o) if transposed else (o, i), {"i": num_in, "o": num_out}


@rule(aten.convolution.default)
def convolution(node: fx.Node) -> OpAxes:
    """``n i *x, o i *k (, o) -> n o *y``, the weight ``i o *k`` if it is transposed; space is whole."""
    given, (result,) = shapes(node), result_shapes(node)
    space = tuple(() for _ in given[0][2:])
    i, o, weight, channels = _channels(args_of(node)[6], args_of(node)[8], given[0][1], result[1])
    sizes = {"n": given[0][0], **channels}
    operands: list[Dims] = [(("n",), i, *space), (*weight, *space)]
    bias = frozenset({2} if len(given) == 3 else ())
    if bias:
        operands.append((o,))
    linear = (bias | {0}, bias | {1})
    return OpAxes(tuple(operands), ((("n",), o, *space),), sizes, addends=bias, linear=linear)


@rule(aten.convolution_backward.default)
def convolution_backward(node: fx.Node) -> OpAxes:
    """Gradients of input, weight and bias; an output that is not asked for is no tensor."""
    grad, image, _ = shapes(node)
    space = tuple(() for _ in grad[2:])
    i, o, weight, channels = _channels(args_of(node)[7], args_of(node)[9], image[1], grad[1])
    sizes = {"n": grad[0], **channels}
    assert len(image) == len(grad)
    input_dims: Dims = (("n",), i, *space)
    weight_dims: Dims = (*weight, *space)
    results: tuple[Dims, ...] = (input_dims, weight_dims, (o,))
    asked: list[bool] = args_of(node)[10]
    kept = tuple(dims for dims, wanted in zip(results, asked, strict=True) if wanted)
    # The bias's gradient sums the result's, whatever the input channels.
    unaffected = frozenset({(len(kept) - 1, "i")} if asked[2] else ())
    operands: tuple[Dims, ...] = ((("n",), o, *space), input_dims, weight_dims)
    return OpAxes(operands, kept, sizes, linear=_EACH[:1], unaffected=unaffected)


_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _attention_sizes(query: tuple[int, ...], key: tuple[int, ...]) -> dict[str, int]:
    # Grouped queries have fewer key heads; heads can then be cut only if both divide, which the smaller decides.
    return {"b": query[0], "h": min(query[1], key[1])}


def _mask_dims(shape: tuple[int, ...]) -> Dims:
    aligned: Dims = (("b",), ("h",), (), ())[4 - len(shape) :]
    return tuple(f if n != 1 else () for f, n in zip(aligned, shape, strict=True))


@rule(_FLASH)
def attention(node: fx.Node) -> OpAxes:
    """``b h q d, b h k d, b h k d -> b h q d, b q h``: batch and heads are independent."""
    query, key, _, *mask = shapes(node)
    tensor: Dims = (("b",), ("h",), (), ())
    operands = (tensor, tensor, tensor, *(_mask_dims(m) for m in mask))
    lse: Dims = (("b",), (), ("h",))
    if result_shapes(node)[1][1] == query[1]:
        lse = (("b",), ("h",), ())
    return OpAxes(operands, (tensor, lse), _attention_sizes(query, key))


@rule(_FLASH_BACKWARD)
def attention_backward(node: fx.Node) -> OpAxes:
    """Gradients of query, key and value."""
    grad, query, key, _, _, lse, *mask = shapes(node)
    tensor: Dims = (("b",), ("h",), (), ())
    lse_dims: Dims = (("b",), ("h",), ()) if lse[1] == query[1] else (("b",), (), ("h",))
    assert grad[0] == query[0]
    operands = (tensor,) * 5 + (lse_dims, *(_mask_dims(m) for m in mask))
    return OpAxes(operands, (tensor,) * 3, _attention_sizes(query, key))


@rule(aten._cdist_forward.default)
def distances(node: fx.Node) -> OpAxes:
    """``.. p m, .. r m -> .. p r``: pairs are independent."""
    left, right = shapes(node)
    if left[:-2] != right[:-2]:
        return replicated(node)
    lead = named("d", left[:-2])
    sizes = {**sizes_of("d", left[:-2]), "p": left[-2], "r": right[-2]}
    return OpAxes(((*lead, ("p",), ()), (*lead, ("r",), ())), ((*lead, ("p",), ("r",)),), sizes)


@rule(aten._cdist_backward.default)
def distances_backward(node: fx.Node) -> OpAxes:
    """``.. p r, .. p m, .. r m, .. p r -> .. p m``."""
    _, left, right, _ = shapes(node)
    if left[:-2] != right[:-2]:
        return replicated(node)
    lead = named("d", left[:-2])
    sizes = {**sizes_of("d", left[:-2]), "p": left[-2], "r": right[-2]}
    pairs, first = (*lead, ("p",), ("r",)), (*lead, ("p",), ())
    return OpAxes((pairs, first, (*lead, ("r",), ()), pairs), (first,), sizes, linear=_EACH[:1])


@rule(aten._trilinear.default)
def trilinear(node: fx.Node) -> OpAxes:
    """The product of three operands, to each of which dimensions are added, summed over some."""
    given, (*added, summed) = shapes(node), args_of(node)[3:7]
    rank = len(given[0]) + len(added[0])
    kept = [[d for d in range(rank) if d not in new] for new in added]
    sizes = {
        f"t{d}": n for dims, s in zip(kept, given, strict=True) for d, n in zip(dims, s, strict=True) if n > 1
    }
    operands = tuple(
        tuple((f"t{d}",) if n > 1 else () for d, n in zip(dims, s, strict=True))
        for dims, s in zip(kept, given, strict=True)
    )
    result: Dims = tuple((f"t{d}",) if f"t{d}" in sizes else () for d in range(rank) if d not in summed)
    return OpAxes(operands, (result,), sizes, linear=(*_EACH, frozenset({2})))


@rule(aten.linalg_cross.default)
def cross(node: fx.Node) -> OpAxes:
    """Vectors of three numbers, which are whole, and independent of each other."""
    (shape,) = result_shapes(node)
    dims = named("d", shape)
    whole = frozenset(dims[argument(node, "dim")])
    operands = tuple(tuple(f if n != 1 else () for f, n in zip(dims, s, strict=True)) for s in shapes(node))
    return OpAxes(operands, (dims,), sizes_of("d", shape), whole, linear=(frozenset({0}), frozenset({1})))

"""Normalisation, softmax and losses: some dimensions need their whole extent."""

from __future__ import annotations

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.algebra.rules import (
    args_of,
    dim_in,
    named,
    replicated,
    result_shapes,
    rule,
    same_dims,
    shapes,
    sizes_of,
    tensor_args,
)
from trainyard.program.ctc_loss import CTC_LOSS, CTC_LOSS_BACKWARD
from trainyard.program.nodes import argument

aten = torch.ops.aten


@rule(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def softmax(node: fx.Node) -> OpAxes:
    """The normalised dimension is whole."""
    return same_dims(node, [args_of(node)[1]])


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(node: fx.Node) -> OpAxes:
    """As the forward op."""
    return same_dims(node, [args_of(node)[2]])


@rule(
    aten.cumsum.default,
    aten.cumprod.default,
    aten.cummax.default,
    aten.cummin.default,
    aten.logcumsumexp.default,
)
def cumulative(node: fx.Node) -> OpAxes:
    """The accumulated dimension is whole."""
    linear = (frozenset({0}),) if node.target is aten.cumsum.default else ()
    return same_dims(node, [args_of(node)[1]], linear)


def _norm_dims(node: fx.Node, shape: tuple[int, ...], normalised: int) -> tuple[Dims, Dims, frozenset[str]]:
    dims = named("d", shape)
    lead = len(shape) - normalised
    whole = frozenset(f for factors in dims[lead:] for f in factors)
    return dims, dims[:lead] + tuple(() for _ in range(normalised)), whole


@rule(aten.native_layer_norm.default)
def layer_norm(node: fx.Node) -> OpAxes:
    """``.. d, d, d -> .. d, .. 1, .. 1``: the normalised dimensions are whole."""
    given = shapes(node)
    normalised = len(args_of(node)[1])
    dims, stats, whole = _norm_dims(node, given[0], normalised)
    affine = dims[len(dims) - normalised :]
    operands = (dims, *([affine] * (len(given) - 1)))
    return OpAxes(operands, (dims, stats, stats), sizes_of("d", given[0]), whole)


@rule(aten.native_layer_norm_backward.default)
def layer_norm_backward(node: fx.Node) -> OpAxes:
    """Gradients of input, weight and bias; the last two sum over all leading dimensions."""
    given = shapes(node)
    normalised = len(args_of(node)[2])
    dims, stats, whole = _norm_dims(node, given[0], normalised)
    affine = dims[len(dims) - normalised :]
    operands = (dims, dims, stats, stats, *([affine] * (len(given) - 4)))
    asked: list[bool] = args_of(node)[7]
    results = tuple(d for d, wanted in zip((dims, affine, affine), asked, strict=True) if wanted)
    return OpAxes(operands, results, sizes_of("d", given[0]), whole)


@rule(aten._fused_rms_norm.default)
def rms_norm(node: fx.Node) -> OpAxes:
    """As layer norm, with one statistic."""
    given = shapes(node)
    normalised = len(args_of(node)[1])
    dims, stats, whole = _norm_dims(node, given[0], normalised)
    operands = (dims, *([dims[len(dims) - normalised :]] * (len(given) - 1)))
    return OpAxes(operands, (dims, stats), sizes_of("d", given[0]), whole)


@rule(aten.native_group_norm.default)
def group_norm(node: fx.Node) -> OpAxes:
    """``n c .., c, c -> n c .., n g, n g``: images are independent."""
    image, *affine = shapes(node)
    dims: Dims = (("n",), *(() for _ in image[1:]))
    stats: Dims = (("n",), ())
    return OpAxes((dims, *(((),) for _ in affine)), (dims, stats, stats), {"n": image[0]})


@rule(aten.native_group_norm_backward.default)
def group_norm_backward(node: fx.Node) -> OpAxes:
    """Gradients of input, weight and bias; the last two sum over images."""
    image, *given = shapes(node)
    dims: Dims = (("n",), *(() for _ in image[1:]))
    stats: Dims = (("n",), ())
    operands = (dims, dims, stats, stats, *(((),) for _ in given[3:]))
    asked: list[bool] = argument(node, "output_mask")
    results = tuple(d for d, wanted in zip((dims, ((),), ((),)), asked, strict=True) if wanted)
    return OpAxes(operands, results, {"n": image[0]}, linear=(frozenset({0}),))


def _weight_norm_dim(node: fx.Node, shape: tuple[int, ...]) -> tuple[Dims, dict[str, int]]:
    kept = dim_in(shape, argument(node, "dim"))
    return tuple(("k",) if d == kept else () for d in range(len(shape))), {"k": shape[kept]}


@rule(aten._weight_norm_interface.default, aten._weight_norm_interface_backward.default)
def weight_norm(node: fx.Node) -> OpAxes:
    """Direction and length of each slice of a weight: slices are independent."""
    dims, sizes = _weight_norm_dim(node, shapes(node)[0])
    backward = node.target is aten._weight_norm_interface_backward.default
    results = len(result_shapes(node))
    linear = (frozenset({0}),) if backward else ()
    return OpAxes((dims,) * len(shapes(node)), (dims,) * results, sizes, linear=linear)


def _all_but(dims: Dims, kept: int) -> frozenset[str]:
    return frozenset(f for d, factors in enumerate(dims) if d != kept for f in factors)


@rule(
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
)
def batch_norm(node: fx.Node) -> OpAxes:
    """``n c .., c, c, c, c -> n c .., c, ..``: channels are independent, the batch is whole.

    Where the batch is cut the op is first written as sums over it (``decompose.expand``). With given statistics
    every row is independent.
    """
    given = shapes(node)
    dims = named("d", given[0])
    given_statistics = node.target is aten._native_batch_norm_legit_no_training.default
    whole = frozenset() if given_statistics else _all_but(dims, 1)
    operands = (dims, *([(dims[1],)] * (len(given) - 1)))
    results = tuple(dims if len(s) > 1 else ((dims[1],) if s[0] else ((),)) for s in result_shapes(node))
    return OpAxes(operands, results, sizes_of("d", given[0]), whole)


@rule(aten.native_batch_norm_backward.default)
def batch_norm_backward(node: fx.Node) -> OpAxes:
    """As the forward op; without batch statistics, parts of the gradients of scale and offset add up."""
    given = shapes(node)
    dims = named("d", given[0])
    whole = _all_but(dims, 1) if args_of(node)[7] else frozenset()
    operands = (dims, dims, *((dims[1],) if s[0] else ((),) for s in given[2:]))
    results = tuple(dims if len(s) > 1 else (dims[1],) for s in result_shapes(node))
    return OpAxes(operands, results, sizes_of("d", given[0]), whole)


@rule(aten.nll_loss_forward.default)
def nll_loss(node: fx.Node) -> OpAxes:
    """``n c, n (, c) -> 1, 1`` summed over ``n``; a part of the classes answers for the targets among them.

    Capture writes a mean as a sum over a count (``decompose.loss_decompositions``), so that only sums are cut.
    """
    scores, _, *weight = shapes(node)
    if args_of(node)[3] != 2 or len(scores) != 2:
        return replicated(node)
    operands: tuple[Dims, ...] = ((("n",), ("c",)), (("n",),), *((("c",),) for _ in weight))
    sizes = {"n": scores[0], "c": scores[1]}
    return OpAxes(operands, ((), ()), sizes, contiguous=frozenset("c"))


@rule(aten.nll_loss_backward.default)
def nll_loss_backward(node: fx.Node) -> OpAxes:
    """``1, n c, n (, c), 1 -> n c``."""
    _, scores, _, *weight, _ = shapes(node)
    if args_of(node)[4] != 2 or len(scores) != 2:
        return replicated(node)
    weights: tuple[Dims, ...] = tuple((("c",),) for _ in weight)
    operands: tuple[Dims, ...] = ((), (("n",), ("c",)), (("n",),), *weights, ())
    sizes = {"n": scores[0], "c": scores[1]}
    return OpAxes(operands, ((("n",), ("c",)),), sizes, contiguous=frozenset("c"))


@rule(aten.renorm.default)
def renorm(node: fx.Node) -> OpAxes:
    """Slices along a dimension are independent; the others are whole."""
    shape = shapes(node)[0]
    return same_dims(node, [d for d in range(len(shape)) if d != dim_in(shape, argument(node, "dim"))])


@rule(
    aten.multi_margin_loss.default,
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_forward.default,
    aten.multilabel_margin_loss_backward.default,
)
def margin_loss(node: fx.Node) -> OpAxes:
    """Losses of rows, not summed; of each row the scores of all classes are whole, and so are their weights."""
    rows = result_shapes(node)[0][:1]
    if argument(node, "reduction") != 0 or not rows:
        return replicated(node)
    weight = argument(node, "weight")
    dims = named("n", rows)
    operands = tuple(
        ((),) if tensor is weight else (*dims, *(() for _ in s[1:]))
        for tensor, s in zip(tensor_args(node), shapes(node), strict=True)
    )
    results = tuple((*dims, *(() for _ in s[1:])) for s in result_shapes(node))
    return OpAxes(operands, results, sizes_of("n", rows))


@rule(CTC_LOSS)
def ctc_loss(node: fx.Node) -> OpAxes:
    """``t n c, n s, n, n -> n, n t a``: rows are independent."""
    log_probs = shapes(node)[0]
    return OpAxes(_CTC_OPERANDS, (_ROW, (("n",), (), ())), {"n": log_probs[1]})


@rule(CTC_LOSS_BACKWARD)
def ctc_loss_backward(node: fx.Node) -> OpAxes:
    """``n, t n c, n s, n, n, n, n t a -> t n c``."""
    log_probs = shapes(node)[1]
    operands = (_ROW, *_CTC_OPERANDS, _ROW, (("n",), (), ()))
    return OpAxes(operands, (((), ("n",), ()),), {"n": log_probs[1]}, linear=(frozenset({0}),))


_ROW: Dims = (("n",),)
_CTC_OPERANDS: tuple[Dims, ...] = (((), ("n",), ()), (("n",), ()), _ROW, _ROW)

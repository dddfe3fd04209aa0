"""Ops written as others, where the others can be cut and the original cannot.

Losses are decomposed when a model is captured (``loss_decompositions``). Ops that need a whole dimension, softmax and
batch normalisation, stay fused until a plan cuts that dimension; then ``expand`` writes them as reductions over it,
whose parts add up.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Sequence
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decompositions as torch_decompositions
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from trainyard.program.addresses import Numbering, address
from trainyard.program.nodes import add_op, copy_node, op_name
from trainyard.program.program import Program, output_args

aten = torch.ops.aten

_NONE, _MEAN, _SUM = 0, 1, 2


def _nll_loss_forward(scores: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """A mean is a sum over a count: sums over a cut batch add up, means over unequal counts do not.

    The count is written as what it is, a sum over targets: no score, and so no parameter, reaches it.
    """
    if reduction == _NONE:
        return torch_decompositions._nll_loss_forward(scores, target, weight, reduction, ignore_index)
    if reduction == _SUM:
        return NotImplemented
    total, _ = aten.nll_loss_forward.default(scores, target, weight, _SUM, ignore_index)
    count = _wide_count(scores, target, weight, ignore_index)
    return (total / count).to(scores.dtype), count


def _wide_count(scores: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The weight of the targets that are not ignored; in float32 at least, as half precision cannot count."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    known = target != ignore_index
    if weight is None:
        return known.sum().to(dtype)
    looked_up = aten.embedding.default(weight.to(dtype).unsqueeze(1), torch.where(known, target, 0))
    return torch.where(known, looked_up.squeeze(-1), 0).sum()


def _nll_loss_backward(
    grad: Any, scores: Any, target: Any, weight: Any, reduction: int, ignore_index: int, count: Any
) -> Any:
    if reduction == _NONE:
        return torch_decompositions._nll_loss_backward(
            grad, scores, target, weight, reduction, ignore_index, count
        )
    if reduction == _SUM:
        return NotImplemented
    share = (grad / count).to(grad.dtype)
    # The kernel does not read the count of a sum, and refuses one of another type than the scores.
    count = count.to(scores.dtype)
    return aten.nll_loss_backward.default(share, scores, target, weight, _SUM, ignore_index, count)


def _reduced(each: Tensor, reduction: int) -> Tensor:
    return each.mean() if reduction == _MEAN else each.sum()


def _share(grad: Tensor, like: Tensor, reduction: int) -> Tensor:
    """The gradient of each row's loss, given that of their mean or sum."""
    rows = like.shape[0]
    return (grad / rows if reduction == _MEAN else grad).expand(rows)


def _multi_margin_loss(
    scores: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = _MEAN
) -> Any:
    if reduction == _NONE or scores.dim() < 2:
        return NotImplemented
    return _reduced(aten.multi_margin_loss.default(scores, target, p, margin, weight, _NONE), reduction)


def _multi_margin_loss_backward(
    grad: Tensor,
    scores: Tensor,
    target: Tensor,
    p: Any,
    margin: Any,
    weight: Any = None,
    reduction: int = _MEAN,
) -> Any:
    if reduction == _NONE or scores.dim() < 2:
        return NotImplemented
    share = _share(grad, scores, reduction)
    return aten.multi_margin_loss_backward.default(share, scores, target, p, margin, weight, _NONE)


def _multilabel_margin_loss_forward(scores: Tensor, target: Tensor, reduction: int) -> Any:
    if reduction == _NONE or scores.dim() < 2:
        return NotImplemented
    each, is_target = aten.multilabel_margin_loss_forward.default(scores, target, _NONE)
    return _reduced(each, reduction), is_target


def _multilabel_margin_loss_backward(
    grad: Tensor, scores: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Any:
    if reduction == _NONE or scores.dim() < 2:
        return NotImplemented
    share = _share(grad, scores, reduction)
    return aten.multilabel_margin_loss_backward.default(share, scores, target, _NONE, is_target)


def loss_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of losses, which capture applies: their means become sums over counts."""
    found: dict[Any, Callable[..., Any]] = dict(
        get_decompositions(
            [
                aten.mse_loss,
                aten.mse_loss_backward,
                aten.l1_loss,
                aten.smooth_l1_loss,
                aten.smooth_l1_loss_backward,
                aten.huber_loss,
                aten.huber_loss_backward,
                aten.binary_cross_entropy,
                aten.binary_cross_entropy_backward,
                aten.binary_cross_entropy_with_logits,
                aten.nll_loss2d_forward,
                aten.nll_loss2d_backward,
                aten.soft_margin_loss,
                aten.soft_margin_loss_backward,
            ]
        )
    )
    found[aten.nll_loss_forward.default] = _nll_loss_forward
    found[aten.nll_loss_backward.default] = _nll_loss_backward
    found[aten.multi_margin_loss.default] = _multi_margin_loss
    found[aten.multi_margin_loss_backward.default] = _multi_margin_loss_backward
    found[aten.multilabel_margin_loss_forward.default] = _multilabel_margin_loss_forward
    found[aten.multilabel_margin_loss_backward.default] = _multilabel_margin_loss_backward
    return found


def _wide(x: Tensor) -> Tensor:
    """The type in which statistics are computed."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = _wide(x)
    powers = torch.exp(wide - wide.amax(dim, keepdim=True))
    return powers / powers.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = _wide(x)
    shifted = wide - wide.amax(dim, keepdim=True)
    return shifted - torch.exp(shifted).sum(dim, keepdim=True).log()


def _softmax_backward(grad: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    weighted = _wide(grad) * result
    return weighted - result * weighted.sum(dim, keepdim=True)


def _log_softmax_backward(grad: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    wide = _wide(grad)
    return wide - torch.exp(_wide(result)) * wide.sum(dim, keepdim=True)


def _all_but_channels(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    return value.view([1, -1] + [1] * (like.dim() - 2))


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Ioffe and Szegedy, arXiv 1502.03167, algorithm 1; the statistics are sums over the batch."""
    wide, dims = _wide(x), _all_but_channels(x)
    count = x.numel() // x.shape[1]
    mean = wide.sum(dims) / count
    centred = wide - _per_channel(mean, x)
    variance = (centred * centred).sum(dims) / count
    scale = torch.rsqrt(variance + eps)
    y = centred * _per_channel(scale, x)
    y = y if weight is None else y * _per_channel(weight, x)
    y = y if bias is None else y + _per_channel(bias, x)
    unbiased = variance * (count / max(1, count - 1))
    means = mean * momentum + running_mean * (1 - momentum)
    return y, mean, scale, means, unbiased * momentum + running_var * (1 - momentum)


def _batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    mean: Tensor,
    scale: Tensor,
    train: bool,
    eps: float,
    asked: list[bool],
) -> tuple[Tensor | None, ...]:
    wide, dims = _wide(grad), _all_but_channels(x)
    count = x.numel() // x.shape[1]
    normal = (_wide(x) - _per_channel(mean, x)) * _per_channel(scale, x)
    bias_grad = wide.sum(dims)
    weight_grad = (wide * normal).sum(dims)
    inner = wide - _per_channel(bias_grad / count, x) - normal * _per_channel(weight_grad / count, x)
    outer = scale if weight is None else scale * weight
    found = (inner * _per_channel(outer, x), weight_grad, bias_grad)
    return tuple(g if wanted else None for g, wanted in zip(found, asked, strict=True))


def _mean(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    wide = _wide(x) if dtype is None else x.to(dtype)
    total = wide.sum() if dim is None else wide.sum(list(dim), keepdim)
    return total / (x.numel() // max(1, total.numel()))


def _plus(x: Tensor, number: float, alpha: float = 1) -> Tensor:
    return x + torch.full((), number * alpha, dtype=x.dtype)


def _minus(x: Tensor, number: float, alpha: float = 1) -> Tensor:
    return x - torch.full((), number * alpha, dtype=x.dtype)


def _minus_from(x: Tensor, number: float, alpha: float = 1) -> Tensor:
    return torch.full((), number, dtype=x.dtype) - x * alpha


AS_SUMS: dict[Any, Callable[..., Any]] = {
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.add.Tensor: _plus,
    aten.add.Scalar: _plus,
    aten.sub.Tensor: _minus,
    aten.sub.Scalar: _minus,
    aten.rsub.Scalar: _minus_from,
}
"""Ops that ``expand`` can write as sums of tensors, whose terms may be added later: means, and numbers added."""

EXPANSIONS: dict[Any, Callable[..., Any]] = {
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
"""Ops that ``expand`` can write as reductions over the dimension that they need whole."""

_RESULT_OF_FORWARD: dict[Any, int] = {
    aten._softmax_backward_data.default: 1,
    aten._log_softmax_backward_data.default: 1,
    aten.native_batch_norm_backward.default: 5,
}
"""Which argument of a backward op is a result of the forward op."""


def forward_of(node: fx.Node) -> fx.Node | None:
    """The forward op that an expandable op is, or differentiates; None for all other ops."""
    if node.target not in EXPANSIONS:
        return None
    position = _RESULT_OF_FORWARD.get(node.target)
    if position is None:
        return node
    source: Any = node.args[position]
    return source.args[0] if source.target is operator.getitem else source  # type: ignore[no-any-return]


def expand(program: Program, nodes: Collection[fx.Node]) -> Program:
    """The program with some ops written as in ``EXPANSIONS`` or ``AS_SUMS``.

    The nodes that compute the results have the names and addresses of those that they replace, and all of an expansion
    have the phase, layer and position of the op; ``meta["part_of"]`` is its name.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node in nodes:
            copies[node] = _write_out(graph, node, copies)
        elif node.target is operator.getitem and isinstance(copies[node.args[0]], tuple):
            copies[node] = copies[node.args[0]][node.args[1]]
        else:
            copies[node] = copy_node(graph, node, copies.__getitem__)
    return dataclasses.replace(program, graph=graph)


def _write_out(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, Any]) -> Any:
    """Trace an op's expansion and copy the trace; returns the copies of its results."""
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    values = [torch.empty_like(n.meta["val"], device="meta") for n in given]
    dtypes = [v.dtype if isinstance(v, Tensor) else None for v in _as_tuple(node.meta["val"])]

    def run(*tensors: Tensor) -> list[Tensor | None]:
        rest = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, fx.Node) else leaf for leaf in leaves], structure
        )
        written = EXPANSIONS.get(node.target) or AS_SUMS[node.target]
        results = _as_tuple(written(*args, **kwargs))
        return [None if r is None else r.to(d) for r, d in zip(results, dtypes, strict=True)]

    trace = make_fx(run)(*values).graph
    results = output_args(trace)
    names = dict(zip(results, _result_names(node), strict=True))
    # A node with several results gives its name to the first part, so that a plan can still start a stage there.
    first = [node.name] if isinstance(node.meta["val"], tuple | list) else []
    others = chain(first, repeat(f"{node.name}_part"))
    placeholders = trace.find_nodes(op="placeholder")
    inner = {p: copies[n] for p, n in zip(placeholders, given, strict=True)}
    place = {key: node.meta[key] for key in ("phase", "layer", "position")}
    replaced = {n.name: address(n) for n in (node, *node.users) if n.op == "call_function"}
    numbering = Numbering()
    for part in trace.nodes:
        if part.op == "call_function":
            args, kwargs = fx.map_arg((part.args, part.kwargs), inner.__getitem__)
            name = names.get(part) or next(others)
            copy = add_op(graph, part.target, args, kwargs, name)
            own = replaced.get(name) or numbering.next(f"{address(node)}/{op_name(part.target)}")
            copy.meta = {**place, "address": own, "val": part.meta["val"], "part_of": node.name}
            inner[part] = copy
    found = tuple(None if r is None else inner[r] for r in results)
    return found if isinstance(node.meta["val"], tuple | list) else found[0]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _result_names(node: fx.Node) -> Sequence[str | None]:
    """Names for the results of an op: its own, or those of the nodes that take its results apart."""
    if not isinstance(node.meta["val"], tuple | list):
        return [node.name]
    takers = {user.args[1]: user.name for user in node.users if user.target is operator.getitem}
    return [takers.get(i) for i in range(len(node.meta["val"]))]

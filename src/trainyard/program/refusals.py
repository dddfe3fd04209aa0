"""What cannot be trained as PyTorch trains it, and what to write in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.program.model import CaptureError

aten = torch.ops.aten

_MAX_NORM = (
    "uses an embedding with max_norm, which rescales rows of its weight while the loss is computed. Leave max_norm out, "
    "and scale what is looked up: x = embedding(i); x = x * (max_norm / x.norm(dim=-1, keepdim=True)).clamp(max=1)"
)
_SPARSE_GRADIENT = (
    "uses an embedding with sparse=True; gradients are dense here. Write sparse=False: under plain SGD, without momentum "
    "and decay, the weights are then the same; momentum, Adam's moments and weight decay also move rows that are not "
    "looked up"
)
_NOT_PLAIN = (
    "works with a {kind} tensor. Only plain ones can be divided among devices: keep indices and values as tensors of "
    "their own (torch.index_add, torch.gather), or pad to one length and use a mask"
)

_TRAINED = (torch.float32, torch.bfloat16)

PACKED = (
    "packs sequences, whose lengths decide how much is computed at every position, so there is no one graph. Give the "
    "padded sequences to the layer. In one direction, what comes before the padding is the same: take each row's last "
    "state by out.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.shape[2])), and leave padding out of the loss "
    "by a mask (torch.arange(out.shape[1]) < lengths[:, None]). For a direction backwards, flip each row within its "
    "length by gather, run a layer of its own, and flip back"
)


def refuse_parameter(name: str, p: nn.Parameter) -> None:
    """Refuse a parameter that would be trained in another way than PyTorch trains it.

    Raises
    ------
    CaptureError
        That names it.
    """
    if isinstance(p, nn.UninitializedParameter):  # type: ignore[attr-defined]
        why = "has no shape yet; call the model once before"
    elif kind := _kind(p):
        why = f"is a {kind} tensor; use a plain one"
    elif p.dtype == torch.float64:
        why = "is of float64, and weights are kept in float32; call module.float() before"
    elif p.requires_grad and p.is_complex():
        why = "is complex; use a parameter of real numbers with a last dimension of 2, and torch.view_as_complex"
    elif p._backward_hooks or p._post_accumulate_grad_hooks:
        why = "has hooks on its gradient, which no graph holds; change the loss instead, or freeze a part by a mask"
    else:
        return
    raise CaptureError(f"the model cannot be captured: its parameter {name} {why}")


def refuse_gradient_types(module: nn.Module) -> None:
    """Refuse to train parameters in their own types where gradients of such a type need loss scaling.

    Raises
    ------
    CaptureError
        That names the first of them.
    """
    for name, p in module.named_parameters():
        if p.requires_grad and p.dtype not in _TRAINED:
            raise CaptureError(
                f"the model cannot be captured: its parameter {name} is of {str(p.dtype).removeprefix('torch.')}, and "
                "gradients of that type need loss scaling, which is not there. Call module.bfloat16() or module.float() "
                "before, freeze the parameter, or compute in bfloat16 (--dtype bfloat16)"
            )


def refuse_buffer(name: str, buffer: Tensor) -> None:
    """Refuse a buffer that is no plain tensor.

    Raises
    ------
    CaptureError
        That names it.
    """
    if kind := _kind(buffer):
        raise CaptureError(
            f"the model cannot be captured: its buffer {name} is a {kind} tensor. Register plain ones, such as its "
            "indices and values"
        )


def refused_op(op: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
    """Why an op on these arguments cannot be captured, as what follows the place where it is; "" if it can."""
    why = _REFUSED.get(op)
    if why is None:
        return ""
    given = {a.name: a.default_value for a in op._schema.arguments}
    return why(given | dict(zip(given, args, strict=False)) | dict(kwargs))


def refused_result(result: Any) -> str:
    """The same of a tensor that an op computes."""
    kind = _kind(result)
    return _NOT_PLAIN.format(kind=kind) if kind else ""


def _kind(tensor: Tensor) -> str:
    """What a tensor is if it is no plain one."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return "" if tensor.layout == torch.strided else "sparse"


def _if_sparse(given: Mapping[str, Any]) -> str:
    return _SPARSE_GRADIENT if given["sparse"] else ""


_REFUSED: dict[Any, Callable[[Mapping[str, Any]], str]] = {
    aten.embedding_renorm_.default: lambda given: _MAX_NORM,
    aten.embedding.default: _if_sparse,
    aten._embedding_bag.default: _if_sparse,
    aten._embedding_bag_forward_only.default: _if_sparse,
}

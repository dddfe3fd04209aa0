"""Refusals of models that cannot be trained as PyTorch trains them, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trainyard.program.capture_error import CaptureError

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
_PLAIN_INSTEAD = {
    "nested tensor": (
        "pad to one length and use a mask: torch.nested.to_padded_tensor(x, 0.0), and torch.arange(length) < "
        "lengths[:, None]"
    ),
    "sparse tensor": "keep indices and values as tensors of their own (torch.index_add, torch.gather)",
    "quantized tensor": "keep what x.dequantize() gives",
    "DTensor": "keep what x.full_tensor() gives; the plan divides it",
}
"""Advice for tensors that are no plain ones, by kind."""

_TRAINED = (torch.float32, torch.bfloat16)
_DIVIDES_ITSELF = {
    "DistributedDataParallel": "Give the module in it, wrapper.module",
    "FullyShardedDataParallel": "Give the module that was wrapped",
    "FSDPModule": "Leave fully_shard out",
}
"""Modules that exchange gradients or weights between processes by themselves, by class, and what to write instead."""

_PACKED = (
    "packs sequences, whose lengths decide how much is computed at every position, so there is no one graph. Give the "
    "padded sequences to the layer. In one direction, what comes before the padding is the same: take each row's last "
    "state by out.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.shape[2])), and leave padding out of the loss "
    "by a mask (torch.arange(out.shape[1]) < lengths[:, None]). For a direction backwards, flip each row within its "
    "length by gather, run a layer of its own, and flip back"
)


def refuse_module(module: nn.Module) -> None:
    """Refuse a module that would be trained in another way than PyTorch trains it.

    Raises
    ------
    CaptureError
        That names the module, parameter or buffer in it.
    """
    for path, child in module.named_modules():
        if why := _why_not_module(child):
            raise CaptureError(
                f"the model cannot be captured: {f'its module {path}' if path else 'it'} {why}"
            )
    for name, p in module.named_parameters():
        if why := _why_not_parameter(p):
            raise CaptureError(f"the model cannot be captured: its parameter {name} {why}")
    for name, buffer in module.named_buffers():
        if kind := kind_of(buffer):
            raise CaptureError(f"the model cannot be captured: its buffer {name} is {_not_plain(kind)}")


def _why_not_module(module: nn.Module) -> str:
    names = {base.__name__ for base in type(module).__mro__}
    for name, instead in _DIVIDES_ITSELF.items():
        if name in names:
            return f"is a {name}, which exchanges gradients between processes by itself. {instead}; the plan divides it"
    if isinstance(module, torch.jit.ScriptModule):
        return "is a script. Give the module that torch.jit.script or torch.jit.trace was called with"
    return ""


def _why_not_parameter(p: nn.Parameter) -> str:
    if isinstance(p, nn.UninitializedParameter):  # type: ignore[attr-defined]
        return "has no shape yet; call the model once before"
    if kind := kind_of(p):
        return f"is {_not_plain(kind)}"
    if p.dtype == torch.float64:
        return "is of float64, and weights are kept in float32; call module.float() before"
    if p.requires_grad and p.is_complex():
        return "is complex; use a parameter of real numbers with a last dimension of 2, and torch.view_as_complex"
    if p._backward_hooks or p._post_accumulate_grad_hooks:
        return "has hooks on its gradient, which no graph holds; change the loss instead, or freeze a part by a mask"
    return ""


def refuse_gradient_types(module: nn.Module) -> None:
    """Refuse to train parameters in their own types where gradients of such a type could not be unscaled.

    Raises
    ------
    CaptureError
        That names the first of them.
    """
    for name, p in module.named_parameters():
        if p.requires_grad and p.dtype not in _TRAINED:
            raise CaptureError(
                f"the model cannot be captured: its parameter {name} is of {str(p.dtype).removeprefix('torch.')}, and "
                "gradients of that type overflow, or are zero. Call module.float() or module.bfloat16() before, freeze "
                "the parameter, or compute in 16 bits with updates in float32 (--dtype float16 or bfloat16)"
            )


def refused_op(op: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
    """Why an op on these arguments cannot be captured, as what follows the place where it is; "" if it can."""
    why = _REFUSED.get(op)
    if why is None:
        return ""
    given = {a.name: a.default_value for a in op._schema.arguments}
    return why(given | dict(zip(given, args, strict=False)) | dict(kwargs))


def refused_within(filenames: Iterable[str]) -> str:
    """The same where PyTorch's own code stopped, by the files of the calls that were going on."""
    for filename in filenames:
        if filename.endswith("/nn/utils/rnn.py"):
            return _PACKED
        if "/torch/nested/" in filename:
            return f"works with {_not_plain('nested tensor')}"
    return ""


def refused_result(result: Tensor) -> str:
    """The same of a tensor that an op computes."""
    kind = kind_of(result)
    return f"works with {_not_plain(kind)}" if kind else ""


def kind_of(tensor: Tensor) -> str:
    """Name what a tensor is if it is no plain one, such as ``nested tensor``; "" if it is."""
    if tensor.is_quantized:
        return "quantized tensor"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout != torch.strided:
        return "sparse tensor"
    return type(tensor).__name__ if is_traceable_wrapper_subclass(tensor) else ""


def plain_instead(kind: str) -> str:
    """Say what to write in place of a tensor of a kind (see `kind_of`)."""
    return _PLAIN_INSTEAD.get(kind, "keep the tensors that it is made of")


def _not_plain(kind: str) -> str:
    return f"a {kind}. Only plain ones can be divided among devices: {plain_instead(kind)}"


def _if_sparse(given: Mapping[str, Any]) -> str:
    return _SPARSE_GRADIENT if given["sparse"] else ""


_REFUSED: dict[Any, Callable[[Mapping[str, Any]], str]] = {
    aten.embedding_renorm_.default: lambda given: _MAX_NORM,
    aten.embedding.default: _if_sparse,
    aten._embedding_bag.default: _if_sparse,
    aten._embedding_bag_forward_only.default: _if_sparse,
}

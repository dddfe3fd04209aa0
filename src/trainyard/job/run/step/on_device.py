"""Making a lowered graph run on its device: kernels and constants that the capture, made for the CPU, names otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
# The flash kernel runs from this generation on, for heads of whole units up to this width.
_AMPERE, _FLASH_UNIT, _FLASH_WIDTH = (8, 0), 8, 256


def on_device(graph_module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Rewrite a graph for its device, in place.

    Attention is captured as the CPU's fused kernel and runs as CUDA's; constants are made on the device. On the CPU the
    gradient of an embedding is added in float32, as it is on CUDA. Views are taken where they can be: what was sent,
    gathered or exchanged lies otherwise in memory than what it was captured as.
    """
    kernels = _EVERYWHERE | (_CPU_KERNELS if device.type == "cpu" else _KERNELS)
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        node.target = kernels.get(node.target, node.target)
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    graph_module.recompile()
    return graph_module


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fused attention of CUDA, with the results of ``_scaled_dot_product_flash_attention_for_cpu``."""
    assert dropout_p == 0.0  # capture writes attention with dropout out
    k, v = _all_heads(q, k), _all_heads(q, v)
    if _is_flash(q, k, attn_mask, is_causal):
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)[:2]  # type: ignore[no-any-return]
    mask = None if attn_mask is None else attn_mask.to(q.dtype).expand(*q.shape[:3], k.shape[2])
    result = aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, is_causal, scale=scale)
    return result[0], result[1]


def _attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = k.shape[1]
    k, v = _all_heads(q, k), _all_heads(q, v)
    none = torch.zeros(2, dtype=torch.uint64, device=q.device)
    if _is_flash(q, k, attn_mask, is_causal):
        gradients = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, logsumexp, None, None, q.shape[2], k.shape[2], 0.0, is_causal, none,
            none[:0], scale=scale,
        )  # fmt: skip
    else:
        mask = None if attn_mask is None else attn_mask.to(q.dtype).expand(*q.shape[:3], k.shape[2])
        zero = torch.zeros((), dtype=torch.int64, device=q.device)
        gradients = aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, mask, out, logsumexp, zero, zero, 0.0, [True, True, True, False], is_causal,
            scale=scale,
        )  # fmt: skip
    grad_q, grad_k, grad_v = gradients[:3]
    return grad_q, _sum_groups(grad_k, heads), _sum_groups(grad_v, heads)


def _is_flash(q: torch.Tensor, k: torch.Tensor, attn_mask: torch.Tensor | None, is_causal: bool) -> bool:
    """Return whether the flash kernel can compute this.

    Given fewer queries than keys, it masks other keys than the CPU's kernel.
    """
    if q.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(q.device) < _AMPERE:
        return False
    is_whole = q.shape[3] % _FLASH_UNIT == 0 and q.shape[3] <= _FLASH_WIDTH
    return (
        is_whole and q.dtype in _HALF and attn_mask is None and not (is_causal and q.shape[2] != k.shape[2])
    )


def _all_heads(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Keys of grouped queries, one per query head."""
    return k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], 1)


def _sum_groups(grad: torch.Tensor, heads: int) -> torch.Tensor:
    return grad if grad.shape[1] == heads else grad.unflatten(1, (heads, -1)).sum(2)


def _embedding_backward(grad: torch.Tensor, *rest: Any) -> torch.Tensor:
    """PyTorch's CPU kernel adds in the precision of the gradient: of many look-ups of one row, a sum stands still."""
    found = aten.embedding_dense_backward(grad.float() if grad.dtype in _HALF else grad, *rest)
    return found.to(grad.dtype)  # type: ignore[no-any-return]


def _layer_norm(x: torch.Tensor, shape: Any, *rest: Any) -> Any:
    """CUDA's kernel takes weights of 16 bits with such values, where the CPU's has float32; these were converted."""
    *weights, eps = rest
    return aten.native_layer_norm(x, shape, *_like(x, weights), eps)


def _layer_norm_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> list[Any]:
    shape, mean, rstd, weight, bias, asked = rest
    weights = _like(x, (weight, bias))
    found = aten.native_layer_norm_backward(grad, x, shape, mean, rstd, *weights, asked)
    return [found[0], *(g if g is None or weight is None else g.to(weight.dtype) for g in found[1:])]


def _group_norm(x: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    return aten.native_group_norm(x, *_like(x, (weight, bias)), *rest)


def _group_norm_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> list[Any]:
    mean, rstd, weight, *sizes = rest
    found = aten.native_group_norm_backward(grad, x, mean, rstd, *_like(x, (weight,)), *sizes)
    return [found[0], *(g if g is None or weight is None else g.to(weight.dtype) for g in found[1:])]


def _like(x: torch.Tensor, weights: Sequence[Any]) -> list[Any]:
    return [None if w is None else w.to(x.dtype) for w in weights]


def _layer_norm_backward_on_cpu(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> list[Any]:
    """PyTorch's CPU kernel adds the gradients of weights in the precision of ``x``; see `_embedding_backward`."""
    if x.dtype not in _HALF:
        return aten.native_layer_norm_backward(grad, x, *rest)  # type: ignore[no-any-return]
    shape, mean, rstd, weight, bias, asked = rest
    wide = [None if value is None else value.float() for value in (mean, rstd, weight, bias)]
    found = aten.native_layer_norm_backward(grad.float(), x.float(), shape, *wide, asked)
    kinds = (x.dtype, *(x.dtype if value is None else value.dtype for value in (weight, bias)))
    return [None if value is None else value.to(kind) for value, kind in zip(found, kinds, strict=True)]


_EVERYWHERE: dict[Any, Callable[..., Any]] = {aten.view.default: aten.reshape.default}

_CPU_KERNELS: dict[Any, Callable[..., Any]] = {
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward_on_cpu,
}

_KERNELS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}

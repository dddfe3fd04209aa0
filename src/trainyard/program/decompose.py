"""Ops written as others, where the others can be cut and the original cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

_MEAN, _SUM = 1, 2


def _nll_loss_forward(
    scores: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> tuple[Any, Any]:
    """A mean is a sum over a count: sums over a cut batch add up, means over unequal counts do not."""
    if reduction != _MEAN:
        return NotImplemented
    total, count = aten.nll_loss_forward.default(scores, target, weight, _SUM, ignore_index)
    return total / count, count


def _nll_loss_backward(
    grad: Any, scores: Any, target: Any, weight: Any, reduction: int, ignore_index: int, count: Any
) -> Any:
    if reduction != _MEAN:
        return NotImplemented
    return aten.nll_loss_backward.default(grad / count, scores, target, weight, _SUM, ignore_index, count)


def mean_losses() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the losses that capture applies."""
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
            ]
        )
    )
    found[aten.nll_loss_forward.default] = _nll_loss_forward
    found[aten.nll_loss_backward.default] = _nll_loss_backward
    return found

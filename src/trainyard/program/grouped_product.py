"""Rows times the matrix of their group: what the experts of a mixture compute, whatever expert each token has chosen.

The shapes do not depend on how many rows a group has, so there is one graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

__all__ = ["GROUPED_GRADIENT", "GROUPED_PRODUCT", "grouped_gradient", "grouped_product"]

_TAGS = (torch.Tag.pt2_compliant_tag,)
torch.library.define(
    "trainyard::grouped_product", "(Tensor groups, Tensor rows, Tensor weights) -> Tensor", tags=_TAGS
)
torch.library.define(
    "trainyard::grouped_gradient",
    "(Tensor groups, Tensor rows, Tensor grads, int num_groups) -> Tensor",
    tags=_TAGS,
)


def grouped_product(groups: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Multiply each row by the matrix of its group.

    Parameters
    ----------
    groups : whole numbers [rows], in ascending order: the group of each row. Rows of no group, which have the number of
        groups or more, give zeros.
    rows : [rows, width].
    weights : [groups, width, columns].

    Returns
    -------
    [rows, columns].
    """
    result: Tensor = torch.ops.trainyard.grouped_product(groups, rows, weights)
    return result


def grouped_gradient(groups: Tensor, rows: Tensor, grads: Tensor, num_groups: int) -> Tensor:
    """Sum over the rows of each group the products of a row with its gradient: the gradient of the weights.

    Parameters
    ----------
    groups : as in `grouped_product`.
    rows : [rows, width].
    grads : [rows, columns].

    Returns
    -------
    [groups, width, columns].
    """
    result: Tensor = torch.ops.trainyard.grouped_gradient(groups, rows, grads, num_groups)
    return result


def _parts(groups: Tensor, num_groups: int) -> list[tuple[int, slice]]:
    """Groups that have rows, each with the place of its rows."""
    counts = torch.bincount(groups, minlength=num_groups)[:num_groups].tolist()
    found, start = [], 0
    for group, count in enumerate(counts):
        if count:
            found.append((group, slice(start, start + count)))
        start += count
    return found


def _one_by_one(groups: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    result = rows.new_zeros(rows.shape[0], weights.shape[2])
    for group, part in _parts(groups, weights.shape[0]):
        torch.mm(rows[part], weights[group], out=result[part])
    return result


def _gradient_one_by_one(groups: Tensor, rows: Tensor, grads: Tensor, num_groups: int) -> Tensor:
    result = rows.new_zeros(num_groups, rows.shape[1], grads.shape[1])
    for group, part in _parts(groups, num_groups):
        torch.mm(rows[part].t(), grads[part], out=result[group])
    return result


def _has_kernel(rows: Tensor, *widths: int) -> bool:
    """Whether PyTorch has a kernel for all groups together: it takes rows of whole units of 16 bytes."""
    return rows.dtype == torch.bfloat16 and not any(width % 8 for width in widths)


def _ends(groups: Tensor, num_groups: int) -> Tensor:
    """Where the rows of each group end, and those of the next begin."""
    every = torch.arange(num_groups, device=groups.device, dtype=groups.dtype)
    return torch.searchsorted(groups, every, right=True).to(torch.int32)


def _on_gpu(groups: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    if not _has_kernel(rows, rows.shape[1], weights.shape[2]):
        return _one_by_one(groups, rows, weights)
    found = F.grouped_mm(rows, weights, offs=_ends(groups, weights.shape[0]))
    return found.masked_fill((groups >= weights.shape[0]).unsqueeze(1), 0.0)


def _gradient_on_gpu(groups: Tensor, rows: Tensor, grads: Tensor, num_groups: int) -> Tensor:
    if not _has_kernel(rows, rows.shape[1], grads.shape[1]):
        return _gradient_one_by_one(groups, rows, grads, num_groups)
    return F.grouped_mm(rows.t(), grads, offs=_ends(groups, num_groups))


@torch.library.register_fake("trainyard::grouped_product")
def _fake(groups: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


@torch.library.register_fake("trainyard::grouped_gradient")
def _fake_gradient(groups: Tensor, rows: Tensor, grads: Tensor, num_groups: int) -> Tensor:
    return rows.new_empty(num_groups, rows.shape[1], grads.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
    groups, rows, weights = ctx.saved_tensors
    return (
        None,
        grouped_product(groups, grad, weights.transpose(1, 2)),
        grouped_gradient(groups, rows, grad, weights.shape[0]),
    )


def _save_of_gradient(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _backward_of_gradient(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
    groups, rows, grads = ctx.saved_tensors
    return (
        None,
        grouped_product(groups, grads, grad.transpose(1, 2)),
        grouped_product(groups, rows, grad),
        None,
    )


torch.library.impl("trainyard::grouped_product", "cpu", _one_by_one)
torch.library.impl("trainyard::grouped_product", "cuda", _on_gpu)
torch.library.impl("trainyard::grouped_gradient", "cpu", _gradient_one_by_one)
torch.library.impl("trainyard::grouped_gradient", "cuda", _gradient_on_gpu)
torch.library.register_autograd("trainyard::grouped_product", _backward, setup_context=_save)
torch.library.register_autograd(
    "trainyard::grouped_gradient", _backward_of_gradient, setup_context=_save_of_gradient
)

GROUPED_PRODUCT = torch.ops.trainyard.grouped_product.default
"""The product, as it stands in graphs."""
GROUPED_GRADIENT = torch.ops.trainyard.grouped_gradient.default
"""The gradient of its weights."""


@register_flop_formula(torch.ops.trainyard.grouped_product)  # type: ignore[untyped-decorator]
def _flops(groups: Any, rows: Any, weights: Any, *, out_shape: Any = None, **more: Any) -> int:
    return int(2 * rows[0] * weights[1] * weights[2])


@register_flop_formula(torch.ops.trainyard.grouped_gradient)  # type: ignore[untyped-decorator]
def _gradient_flops(
    groups: Any, rows: Any, grads: Any, num_groups: int, *, out_shape: Any = None, **more: Any
) -> int:
    return int(2 * rows[0] * rows[1] * grads[1])

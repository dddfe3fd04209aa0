"""Rows times the matrix of their group: what the experts of a mixture compute, whatever expert each token has chosen.

The shapes do not depend on how many rows a group has, so there is one graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["GROUPED_PRODUCT", "grouped_product"]

torch.library.define(
    "trainyard::grouped_product",
    "(Tensor ends, Tensor rows, Tensor weights) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def grouped_product(ends: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Multiply rows, which are sorted by group, by a matrix for each group.

    Parameters
    ----------
    ends : int32 [groups]: where the rows of a group end, and those of the next begin.
    rows : [rows, width].
    weights : [groups, width, columns].

    Returns
    -------
    [rows, columns]. It has no gradient.
    """
    result: Tensor = torch.ops.trainyard.grouped_product(ends, rows, weights)
    return result


def _one_by_one(ends: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    result = rows.new_empty(rows.shape[0], weights.shape[2])
    start = 0
    for group, end in enumerate(ends.tolist()):
        result[start:end] = rows[start:end] @ weights[group]
        start = end
    return result


def _on_gpu(ends: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    if rows.dtype != torch.bfloat16 or rows.shape[1] % 8 or weights.shape[2] % 8:
        return _one_by_one(ends, rows, weights)  # PyTorch's kernel takes rows of whole units of 16 bytes
    return F.grouped_mm(rows, weights, offs=ends)


@torch.library.register_fake("trainyard::grouped_product")
def _fake(ends: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


def _backward(_ctx: Any, _grad: Tensor) -> None:
    raise RuntimeError(
        "a mixture of experts by grouped products is there to be served, and has no gradient; train one with fixed "
        "capacity, such as the model moe"
    )


torch.library.impl("trainyard::grouped_product", "cpu", _one_by_one)
torch.library.impl("trainyard::grouped_product", "cuda", _on_gpu)
torch.library.register_autograd("trainyard::grouped_product", _backward)

GROUPED_PRODUCT = torch.ops.trainyard.grouped_product.default
"""The op, as it stands in graphs."""

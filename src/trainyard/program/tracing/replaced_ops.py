"""Ops that a graph has in another form than PyTorch, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainyard.program.ctc_loss import ctc_loss, ctc_loss_backward

aten = torch.ops.aten


class ReplacedOps(TorchDispatchMode):
    """Within it, no op computes shapes from values, and what only looks is left out."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # measures a range of ops
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func.namespace == "flex_lib":  # known by its name, as its module takes long to import
            return _scatter(*args, **kwargs)
        return _REPLACED.get(func, func)(*args, **kwargs)


def _no_check(*_: Any, **__: Any) -> None:
    """Do not ask whether a matrix could be inverted."""


def _scatter(shape: Sequence[int], indices: Sequence[Tensor], values: Tensor) -> Tensor:
    """Add values at indices: the gradient of what a function of FlexAttention looks up."""
    zeros = torch.zeros(shape, dtype=values.dtype, device=values.device)
    return zeros.index_put(tuple(indices), values, accumulate=True)


_REPLACED: dict[Any, Callable[..., Any]] = {
    aten._linalg_check_errors.default: _no_check,
    aten._ctc_loss.default: ctc_loss,
    aten._ctc_loss.Tensor: ctc_loss,
    aten._ctc_loss_backward.default: ctc_loss_backward,
    aten._ctc_loss_backward.Tensor: ctc_loss_backward,
}

"""Functions that a graph computes by other ops than PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.overrides import TorchFunctionMode

from trainyard.program.tracing.by_rows import BY_ROWS
from trainyard.program.tracing.flex_attention import flex_attention


class ReplacedCalls(TorchFunctionMode):
    """Replaces calls: of FlexAttention and of functions that number elements through all rows, by ops that can be cut."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def _with_lengths_as_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Any,
        target_lengths: Any,
        *options: Any,
        **named: Any,
    ) -> Tensor:
        lengths = (torch.as_tensor(given) for given in (input_lengths, target_lengths))
        return function(log_probs, targets, *lengths, *options, **named)

    return call


_REPLACED: dict[Any, Callable[..., Any]] = {
    **BY_ROWS,
    flex_attention_operator: flex_attention,
    F.ctc_loss: _with_lengths_as_tensors(F.ctc_loss),
    torch.ctc_loss: _with_lengths_as_tensors(torch.ctc_loss),
}

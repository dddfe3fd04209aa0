"""Random numbers by position for any module: a mode within which PyTorch's dropout is ``trainyard::dropout``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainyard.program.capture_error import CaptureError
from trainyard.program.op_observer import frames_now, line_of_model
from trainyard.program.random.draw_op import Distribution, draw
from trainyard.program.random.draws import Draws
from trainyard.program.random.dropout_op import dropout

__all__ = ["POSITIONAL", "SALT", "PositionalDraws", "dropout"]

POSITIONAL = (torch.ops.trainyard.dropout.default, torch.ops.trainyard.draw.default)
"""The ops whose results depend on where an element lies. Their arguments stand in the same order."""

SALT = 3
"""Place among those arguments of the number of the draw, which tells a model's draws apart."""

# By these names, because the functions are replaced in their module for a while (see the end of this file).
_PLAIN_DROPOUT = F.dropout
_PLAIN_ATTENTION = F.scaled_dot_product_attention


class PositionalDraws(TorchFunctionMode):
    """Within it, dropout and all other random numbers are drawn by position.

    ``torch.nn.functional.dropout`` (and so ``nn.Dropout``) and ``scaled_dot_product_attention`` with dropout
    use ``trainyard::dropout``, every other op that draws (`trainyard.program.random.draws`) ``trainyard::draw``, with
    salts in order of the calls since the mode was entered. Attention with dropout is written out as matmul, softmax,
    dropout, matmul. Without dropout, and in evaluation, nothing changes.

    Parameters
    ----------
    rng : int64 [3]: seed, step, first row.
    rows : rows of the batch in this execution. A tensor's batch dimension is 0 if its size is a multiple of
        ``rows``, else 1 if that has exactly ``rows``; a tensor with neither has the same numbers for all rows. Where
        another dimension that comes first is a multiple of ``rows`` by chance, as time may be, it is taken for the
        batch's, and the numbers depend on how the batch is cut into microbatches.
    """

    def __init__(self, rng: Tensor, rows: int) -> None:
        super().__init__()
        self.rng = rng
        self.rows = rows
        self.calls = 0
        self._draws = Draws(self)

    def __enter__(self) -> PositionalDraws:
        self.calls = 0
        super().__enter__()
        self._draws.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._draws.__exit__(*error)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        return func(*args, **kwargs) if replacement is None else replacement(self, *args, **kwargs)

    def drop(self, x: Tensor, p: float) -> Tensor:
        """Apply the next dropout of the model to ``x``."""
        return dropout(x, self.rng, p, *self._next(x.shape))

    def numbers(
        self, shape: Sequence[int], distribution: Distribution, dtype: torch.dtype, device: Any
    ) -> Tensor:
        """The next random numbers of the model."""
        return draw(shape, self.rng, distribution, *self._next(shape), dtype=dtype, device=device)

    def _next(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Salt, batch dimension and elements per row of what is drawn next."""
        if torch._C._current_graph_task_id() != -1:
            raise CaptureError(
                f"{line_of_model(frames_now())} draws random numbers in the backward pass, so it cannot be told which "
                "draw of the forward pass it repeats. Draw in the forward pass, and save what was drawn; to save memory, "
                "torch.utils.checkpoint is understood"
            )
        batch_dim, row_elements = 0, 0
        if len(shape) and shape[0] % self.rows == 0:
            row_elements = math.prod(shape) // self.rows
        elif len(shape) > 1 and shape[1] == self.rows:
            batch_dim, row_elements = 1, math.prod(shape) // self.rows
        self.calls += 1
        return self.calls - 1, batch_dim, row_elements


def _function(
    mode: PositionalDraws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or not 0.0 < p <= 1.0:
        return _PLAIN_DROPOUT(input, p, training, inplace)
    result = mode.drop(input, p)
    return input.copy_(result) if inplace else result


def _torch_function(mode: PositionalDraws, input: Tensor, p: float, train: bool) -> Tensor:
    return _function(mode, input, p, train)


def _attention(
    mode: PositionalDraws,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p == 0.0:
        return _PLAIN_ATTENTION(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)
    dtype = scores.dtype  # of all products, as in PyTorch's kernel; the softmax itself may be wider
    if is_causal:
        queries, keys = (torch.arange(n, device=query.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(keys > queries[:, None], -math.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if masked else scores + attn_mask
    # As PyTorch has it, who may look at nobody sees nothing.
    blind = scores.amax(-1, keepdim=True) == -math.inf if attn_mask is not None else None
    weights = torch.softmax(scores if blind is None else scores.masked_fill(blind, 0.0), -1).to(dtype)
    return mode.drop(weights if blind is None else weights.masked_fill(blind, 0.0), dropout_p) @ value


def _with_hidden_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch hides the calls within a replaceable function from the mode; they are then replaced by name."""

    def replacement(mode: PositionalDraws, *args: Any, **kwargs: Any) -> Any:
        def inner_dropout(*a: Any, **k: Any) -> Tensor:
            return _function(mode, *a, **k)

        def inner_attention(*a: Any, **k: Any) -> Tensor:
            return _attention(mode, *a, **k)

        with patch.multiple(F, dropout=inner_dropout, scaled_dot_product_attention=inner_attention):
            return function(*args, **kwargs)

    return replacement


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    F.dropout: _function,
    torch.dropout: _torch_function,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _with_hidden_calls(F.multi_head_attention_forward),
}

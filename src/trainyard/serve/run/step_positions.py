"""Positions for models whose layers ask the cache for the number of tokens before the first one of a forward.

In a step, tokens of several sequences follow each other. The cache answers with one number for each token: its position
less its place in the step.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

__all__ = ["needs_step_positions", "step_positions"]


class _StepPositions(DynamicCache):
    """A cache that keeps nothing, and answers with a number of earlier tokens for each token of a step.

    Attributes
    ----------
    before : position less place of each token; shape ``(tokens,)``.
    was_asked : whether a layer has asked for ``before``.
    """

    def __init__(self, before: Tensor) -> None:
        super().__init__()
        self.before, self.was_asked = before, False

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """Return ``before``, and note that a layer asks."""
        self.was_asked |= layer_idx is not None
        return self.before

    def update(
        self, key_states: Tensor, value_states: Tensor, *place: object, **more: object
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values as they are."""
        return key_states, value_states


def step_positions(model: PreTrainedModel, positions: NDArray[Any]) -> dict[str, Any]:
    """Return the argument that tells a model the positions of a step.

    Parameters
    ----------
    positions : of the tokens of the step.
    """
    before = torch.from_numpy(positions) - torch.arange(len(positions))
    return {_argument(model): _StepPositions(before.to(model.device))}


@torch.inference_mode()
def needs_step_positions(model: PreTrainedModel, token: Tensor) -> bool:
    """Return whether a layer of a model asks its cache for the number of earlier tokens.

    False for a model that takes no such cache.

    Parameters
    ----------
    token : any one; shape ``(1, 1)``.
    """
    cache = _StepPositions(torch.zeros_like(token[0]))
    try:
        model(
            input_ids=token,
            position_ids=torch.zeros_like(token),
            use_cache=False,
            **{_argument(model): cache},
        )
    except Exception:  # of a model that needs more of a cache, any
        return False
    return cache.was_asked


def _argument(model: PreTrainedModel) -> str:
    """Return the name of the argument with a model's cache, which depends on the version of transformers."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"

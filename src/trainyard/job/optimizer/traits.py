"""Traits of an optimizer's update: what the runtime, the plan and the account of memory need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Scope", "UpdateTraits"]

Scope = Literal["element", "parameter", "model"]
"""On what the update of an element depends: its own gradient and state, all of its parameter, or all parameters."""


@dataclass(frozen=True)
class UpdateTraits:
    """Traits of an update.

    Attributes
    ----------
    name : of the optimizer.
    scope : see `Scope`.
    tensors : names and types of the tensors that it keeps. Those of an elementwise update have their parameter's shape.
    state_bytes : bytes that it keeps for an element of a parameter, on average over the model.
    """

    name: str
    scope: Scope
    tensors: tuple[tuple[str, str], ...]
    state_bytes: float

"""Step result: what one training step comes to on a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["StepResult"]


@dataclass(frozen=True)
class StepResult:
    """Results of one step.

    Attributes
    ----------
    losses : the loss and metrics, averaged over the batch.
    grad_norm : global norm of the gradient; of a step of several updates the root of the mean of its square.
    is_finite : whether the loss and that norm are; else there was no update, unless the step is one of several. The same
        on all ranks.
    forward_backward_s, wait_s, update_s : seconds of this process: computing, waiting for other ranks, updating.
    loss_scale : the factor of the loss in the step's backward pass; None where gradients are not scaled.
    """

    losses: Mapping[str, float]
    grad_norm: float
    is_finite: bool
    forward_backward_s: float = field(compare=False)
    wait_s: float = field(compare=False)
    update_s: float = field(compare=False)
    loss_scale: float | None = None

"""How parameters are updated: what a user chooses, before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes
    ----------
    name : ``adamw`` (arXiv 1711.05101) or ``sgd``.
    lr : learning rate after warm-up.
    warmup_steps : steps over which the rate grows linearly.
    betas, eps : of AdamW.
    momentum : of SGD.
    weight_decay : decoupled for AdamW.
    clip_norm : the gradient's global norm is cut to this; 0 leaves it.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "sgd"):
            raise ValueError(f"unknown optimizer {self.name!r}; the known ones are adamw and sgd")
        if self.lr < 0 or self.clip_norm < 0 or self.warmup_steps < 0:
            raise ValueError("lr, clip_norm and warmup_steps cannot be negative")
        if not 0.0 <= self.momentum <= 1.0:
            raise ValueError(f"momentum is from 0 to 1, got {self.momentum:g}")
        if self.momentum and self.name != "sgd":
            raise ValueError(
                f"momentum {self.momentum} is of sgd, not of {self.name}; leave it out, or take sgd"
            )

    @property
    def update(self) -> Literal["adamw", "sgd", "sgd_momentum"]:
        """The op on flat parameters, gradients and moments, as `trainyard.cost.ops.BUFFER_OPS` names it."""
        return "sgd_momentum" if self.name == "sgd" and self.momentum else self.name

    @property
    def moments(self) -> tuple[str, ...]:
        """What PyTorch's optimizer keeps of a parameter's shape, in float32."""
        if self.name == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()

"""Options of the optimizer, which a user chooses before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True)
class OptimizerConfig:
    """Options of the optimizer, by default those of PyTorch's AdamW without weight decay.

    The defaults are those of the command line and of the jobs of a fleet, too.

    Attributes
    ----------
    name : ``adamw`` (arXiv 1711.05101) or ``sgd``.
    lr : learning rate after warm-up.
    warmup_steps : steps over which the rate grows linearly; 0 begins with the whole rate.
    betas, eps : of AdamW.
    momentum : of SGD.
    weight_decay : decoupled for AdamW; 0 unless asked for, where PyTorch's AdamW has 0.01.
    clip_norm : the gradient's global norm is cut to this; 0 leaves it.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "sgd"):
            raise ValueError(f"unknown optimizer {self.name!r}; known: adamw, sgd")
        for name in ("lr", "warmup_steps", "eps", "weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} cannot be negative, got {getattr(self, name):g}")
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas are two numbers from 0 to below 1, got {_text(self.betas)}")
        if not 0.0 <= self.momentum <= 1.0:
            raise ValueError(f"momentum is from 0 to 1, got {self.momentum:g}")
        if self.momentum and "momentum" in self.unused_options():
            raise ValueError(
                f"momentum {self.momentum} is of sgd, not of {self.name}; leave it out, or take sgd"
            )

    def __str__(self) -> str:
        """The values that the updates use, in one line."""
        names = [f.name for f in fields(self) if f.name not in ("name", *self.unused_options())]
        return f"{self.name}: " + ", ".join(f"{n.replace('_', ' ')} {_text(getattr(self, n))}" for n in names)

    def unused_options(self) -> tuple[str, ...]:
        """Name the fields that only the other optimizer has."""
        return ("betas", "eps") if self.name == "sgd" else ("momentum",)

    @property
    def update(self) -> Literal["adamw", "sgd", "sgd_momentum"]:
        """The op on flat parameters, gradients and moments, as `trainyard.cost.ops.BUFFER_OPS` names it."""
        return "sgd_momentum" if self.name == "sgd" and self.momentum else self.name

    @property
    def moments(self) -> tuple[str, ...]:
        """Tensors of a parameter's shape that PyTorch's optimizer keeps, in float32."""
        if self.name == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()


def _text(value: float | tuple[float, ...]) -> str:
    return " ".join(f"{number:g}" for number in (value if isinstance(value, tuple) else (value,)))

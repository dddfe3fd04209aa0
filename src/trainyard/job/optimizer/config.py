"""Options of the optimizer, which a user chooses before anything is planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from trainyard.cost.ops import BufferOp

__all__ = ["LrSchedule", "OptimizerConfig"]

LrSchedule = Literal["constant", "linear", "cosine", "wsd"]
_FALLING = ("linear", "cosine", "wsd")


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
    clip_value : every element of the gradient is cut to between minus and plus this; 0 leaves it.
    no_decay : patterns of parameters without weight decay, such as ``**.bias``; ``1d`` stands for all of fewer than two
        dimensions, which are biases and the weights of norms.
    lr_scale : pairs of a pattern and a factor: the rate of these parameters is as many times ``lr``. Later pairs win.
    lr_schedule : how the rate goes on after warm-up; see `trainyard.job.optimizer.rates.rate_factor`. Or a function of
        the step, from 0, whose result times ``lr`` is the rate, as of PyTorch's ``LambdaLR``.
    lr_steps : steps after which a falling rate is at its least, warm-up included; 0 takes the steps of the run.
    decay_steps : of ``wsd``: the last steps, over which the rate falls; 0 takes a tenth of ``lr_steps``.
    min_lr_factor : the least rate of a falling one, as a share of ``lr``.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    clip_value: float = 0.0
    no_decay: tuple[str, ...] = ()
    lr_scale: tuple[tuple[str, float], ...] = ()
    lr_schedule: LrSchedule | Callable[[int], float] = "constant"
    lr_steps: int = 0
    decay_steps: int = 0
    min_lr_factor: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "sgd"):
            raise ValueError(f"unknown optimizer {self.name!r}; known: adamw, sgd")
        names = (
            "lr",
            "warmup_steps",
            "eps",
            "weight_decay",
            "clip_norm",
            "clip_value",
            "lr_steps",
            "decay_steps",
        )
        for name in names:
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
        if self.clip_norm and self.clip_value:
            raise ValueError(
                f"clip_norm {self.clip_norm:g} and clip_value {self.clip_value:g} both cut the gradient; give one of them"
            )
        self._check_groups()
        self._check_schedule()

    def _check_groups(self) -> None:
        if isinstance(self.no_decay, str):
            raise TypeError(
                f"no_decay is a tuple of patterns, got {self.no_decay!r}; give ({self.no_decay!r},)"
            )
        for pair in self.lr_scale:
            if isinstance(pair, str) or len(pair) != 2 or not pair[1] >= 0:
                raise ValueError(
                    f"lr_scale has pairs of a pattern and a factor from 0, such as ('head.**', 10.0); got {pair}"
                )

    def _check_schedule(self) -> None:
        known = get_args(LrSchedule)
        if not callable(self.lr_schedule) and self.lr_schedule not in known:
            raise ValueError(
                f"unknown lr_schedule {self.lr_schedule!r}; known: {', '.join(known)}, or a function of the step"
            )
        if not 0.0 <= self.min_lr_factor <= 1.0:
            raise ValueError(f"min_lr_factor is from 0 to 1, got {self.min_lr_factor:g}")
        if self.decay_steps and self.lr_schedule != "wsd":
            raise ValueError(
                f"decay_steps {self.decay_steps} are of wsd; leave them out, or take lr_schedule wsd"
            )
        for name in ("min_lr_factor", "lr_steps"):
            if getattr(self, name) and not self.has_falling_rate:
                raise ValueError(
                    f"{name} {getattr(self, name):g} is of a rate that falls ({', '.join(_FALLING)}); leave it out, or "
                    "take such an lr_schedule"
                )
        if self.lr_steps and self.lr_steps < self.warmup_steps + self.decay_steps:
            raise ValueError(
                f"the rate has {self.lr_steps} steps (lr_steps), and {self.warmup_steps} of warm-up and "
                f"{self.decay_steps} of decay are more; give fewer of these, or more steps"
            )

    def __str__(self) -> str:
        """The values that the updates use, in one line."""
        said = [
            f"{f.name.replace('_', ' ')} {_text(getattr(self, f.name))}"
            for f in fields(self)
            if f.name not in ("name", *self.unused_options())
            and (f.name in _ALWAYS_SAID or getattr(self, f.name) != f.default)
        ]
        return f"{self.name}: " + ", ".join(said)

    def unused_options(self) -> tuple[str, ...]:
        """Name the fields that only the other optimizer has."""
        return ("betas", "eps") if self.name == "sgd" else ("momentum",)

    def settings(self) -> dict[str, Any]:
        """The values of all fields, as JSON has them; a function by its name and its first values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if callable(self.lr_schedule):
            # Steps further and further apart, so that another function is seen soon.
            factors = [self.lr_schedule(2**n - 1) for n in range(_TRIED_STEPS)]
            values["lr_schedule"] = f"{_name_of(self.lr_schedule)}: {_text(tuple(map(float, factors)))}"
        return dict(json.loads(json.dumps(values)))

    @property
    def has_falling_rate(self) -> bool:
        """True if the rate depends on the number of steps."""
        return self.lr_schedule in _FALLING

    @property
    def passes(self) -> tuple[BufferOp, ...]:
        """The ops of an update on flat buffers, as `trainyard.cost.ops.BUFFER_OPS` names them."""
        update: BufferOp = "sgd_momentum" if self.name == "sgd" and self.momentum else self.name
        return (update, "copy") if self.clip_value else (update,)

    @property
    def moments(self) -> tuple[str, ...]:
        """Tensors of a parameter's shape that PyTorch's optimizer keeps, in float32."""
        if self.name == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()


_ALWAYS_SAID = ("lr", "warmup_steps", "betas", "eps", "momentum", "weight_decay", "clip_norm")
_TRIED_STEPS = 20


def _text(value: Any) -> str:
    if callable(value):
        return _name_of(value)
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else f"{value:g}"


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))

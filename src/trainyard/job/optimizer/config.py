"""Options of the optimizer, which a user chooses before anything is planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainyard.job.optimizer.traits import UpdateTraits
from trainyard.reading.arguments import (
    WrongTypeError,
    WrongValueError,
    name_list,
    require_field_types,
    require_type,
)

if TYPE_CHECKING:
    import torch

    from trainyard.cost.ops import BufferOp

__all__ = ["BUILT_IN", "BY_NAME", "LrSchedule", "OptimizerConfig", "OptimizerFactory", "name_of"]

LrSchedule = Literal["constant", "linear", "cosine", "wsd"]
OptimizerFactory = Callable[[list[tuple[str, Any]]], "torch.optim.Optimizer | list[torch.optim.Optimizer]"]
"""Makes an optimizer, or several, of the named parameters of a model, as ``torch.optim.AdamW`` does."""
_FALLING = ("linear", "cosine", "wsd")


@dataclass(frozen=True)
class OptimizerConfig:
    """Options of the optimizer, by default those of PyTorch's AdamW without weight decay.

    The defaults are those of the command line and of the jobs of a fleet, too.

    Attributes
    ----------
    name : ``adamw`` (arXiv 1711.05101) or ``sgd``; ``own`` where ``make`` is given.
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
    ema_decay : of an exponential moving average of the parameters, which checkpoints keep as ``ema``; 0 keeps none. As of
        PyTorch's ``get_ema_multi_avg_fn``: the average is the parameters after the first update, and then takes over
        ``1 - ema_decay`` of them after each.
    make : a class of optimizers, or a function that returns one, given pairs of a name and a parameter:
        ``lambda params: torch.optim.Muon(params, lr=0.02)``. It says rates, decay and groups itself; schedules and
        clipping are as without it.
    traits : of the optimizer that ``make`` returns, found by `trainyard.job.optimizer.probe.probe` for a task.
    """

    name: Literal["adamw", "sgd", "own"] = "adamw"
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
    ema_decay: float = 0.0
    make: OptimizerFactory | None = None
    traits: UpdateTraits | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_field_types(self)
        if self.make is not None:
            self._check_own()
        elif self.name not in BY_NAME:
            raise WrongValueError(
                f"unknown optimizer {self.name!r}; known: adamw, sgd; any other is given as a class or a function (make)"
            )
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
                raise WrongValueError(f"{name} cannot be negative, got {getattr(self, name):g}")
        require_type("betas", self.betas, (tuple, list), "two numbers from 0 to below 1")
        if len(self.betas) != 2 or not all(isinstance(b, Real) and 0.0 <= b < 1.0 for b in self.betas):
            raise WrongValueError(f"betas are two numbers from 0 to below 1, got {self.betas}")
        if not 0.0 <= self.momentum <= 1.0:
            raise WrongValueError(f"momentum is from 0 to 1, got {self.momentum:g}")
        if self.momentum and "momentum" in self.unused_options():
            raise WrongValueError(
                f"momentum {self.momentum} is of sgd, not of {self.name}; leave it out, or take sgd"
            )
        if self.clip_norm and self.clip_value:
            raise WrongValueError(
                f"clip_norm {self.clip_norm:g} and clip_value {self.clip_value:g} both cut the gradient; give one of them"
            )
        if not 0.0 <= self.ema_decay < 1.0:
            raise WrongValueError(f"ema_decay is from 0 to below 1, got {self.ema_decay:g}")
        self._check_groups()
        self._check_schedule()

    def _check_own(self) -> None:
        if not callable(self.make):
            raise WrongTypeError(
                f"make is a class of optimizers or a function that returns an optimizer of params, got a "
                f"{type(self.make).__name__}, which has its parameters already; give its class or such a function"
            )
        changed = [f.name for f in fields(self) if f.name in BUILT_IN and getattr(self, f.name) != f.default]
        if changed:
            raise WrongValueError(
                f"{changed[0]} is of adamw and sgd; the optimizer that {name_of(self.make)} makes has its own: say "
                "it there"
            )
        object.__setattr__(self, "name", "own")

    def _check_groups(self) -> None:
        if isinstance(self.no_decay, str):
            raise WrongTypeError(
                f"no_decay is a tuple of patterns, got {self.no_decay!r}; give ({self.no_decay!r},)"
            )
        name_list("no_decay", self.no_decay)
        require_type("lr_scale", self.lr_scale, (tuple, list), "pairs of a pattern and a factor")
        for pair in self.lr_scale:
            is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
            if not (is_pair and isinstance(pair[1], Real) and pair[1] >= 0):
                raise WrongValueError(
                    f"lr_scale has pairs of a pattern and a factor from 0, such as ('head.**', 10.0); got {pair}"
                )

    def _check_schedule(self) -> None:
        known = get_args(LrSchedule)
        if not callable(self.lr_schedule) and self.lr_schedule not in known:
            raise WrongValueError(
                f"unknown lr_schedule {self.lr_schedule!r}; known: {', '.join(known)}, or a function of the step"
            )
        if not 0.0 <= self.min_lr_factor <= 1.0:
            raise WrongValueError(f"min_lr_factor is from 0 to 1, got {self.min_lr_factor:g}")
        if self.decay_steps and self.lr_schedule != "wsd":
            raise WrongValueError(
                f"decay_steps {self.decay_steps} are of wsd; leave them out, or take lr_schedule wsd"
            )
        for name in ("min_lr_factor", "lr_steps"):
            if getattr(self, name) and not self.has_falling_rate:
                raise WrongValueError(
                    f"{name} {getattr(self, name):g} is of a rate that falls ({', '.join(_FALLING)}); leave it out, or "
                    "take such an lr_schedule"
                )
        if self.lr_steps and self.lr_steps < self.warmup_steps + self.decay_steps:
            raise WrongValueError(
                f"the rate has {self.lr_steps} steps (lr_steps), and {self.warmup_steps} of warm-up and "
                f"{self.decay_steps} of decay are more; give fewer of these, or more steps"
            )

    def __str__(self) -> str:
        """The values that the updates use, in one line."""
        said = [
            f"{f.name.replace('_', ' ')} {_text(getattr(self, f.name))}"
            for f in fields(self)
            if f.name not in ("name", "make", "traits", *self.unused_options())
            and (f.name in _ALWAYS_SAID or getattr(self, f.name) != f.default)
        ]
        name = self.name if self.make is None else name_of(self.make)
        return f"{name}: " + ", ".join(said)

    def unused_options(self) -> tuple[str, ...]:
        """Name the fields that only other optimizers have."""
        if self.make is not None:
            return BUILT_IN
        return ("betas", "eps") if self.name == "sgd" else ("momentum",)

    def settings(self) -> dict[str, Any]:
        """The values of all fields, as JSON has them; a function by its name and its first values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _OF_OWN}
        if self.make is not None:
            values["name"] = f"own: {name_of(self.make)}"
        if callable(self.lr_schedule):
            # Steps further and further apart, so that another function is seen soon.
            factors = [self.lr_schedule(2**n - 1) for n in range(_TRIED_STEPS)]
            values["lr_schedule"] = f"{name_of(self.lr_schedule)}: {_text(tuple(map(float, factors)))}"
        return dict(json.loads(json.dumps(values)))

    @property
    def has_falling_rate(self) -> bool:
        """True if the rate depends on the number of steps."""
        return self.lr_schedule in _FALLING

    @property
    def passes(self) -> tuple[BufferOp, ...]:
        """The ops of an update on flat buffers, as `trainyard.cost.ops.BUFFER_OPS` names them."""
        if self.make is not None:
            # As many passes as there are tensors: what it computes beside moving them is not known.
            moved = round(self.known_traits.state_bytes / 4)
            updates: list[BufferOp] = ["sgd", *moved * [_MOVE]]
        elif self.name == "sgd":
            updates = ["sgd_momentum" if self.momentum else "sgd"]
        else:
            updates = ["adamw"]
        updates += [_MOVE] if self.clip_value else []
        updates += ["accumulate"] if self.ema_decay else []
        return tuple(updates)

    @property
    def moments(self) -> tuple[str, ...]:
        """Tensors of a parameter's shape that are kept for each, and may be divided with it."""
        return (*self.optimizer_moments, *((EMA,) if self.ema_decay else ()))

    @property
    def optimizer_moments(self) -> tuple[str, ...]:
        """Names of the tensors in `moments` that PyTorch's optimizer keeps."""
        if self.make is not None:
            names = [name for name, _ in self.known_traits.tensors]
            return tuple(f"{OWN_STATE}{name}" for name in names) if self.divides else ()
        if self.name == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def moment_types(self) -> dict[str, str]:
        """The type of each of `moments`, as PyTorch names it."""
        own = {} if self.make is None else {f"{OWN_STATE}{n}": kind for n, kind in self.known_traits.tensors}
        return {name: own.get(name, "float32") for name in self.moments}

    @property
    def changes_rate(self) -> bool:
        """True if the rate is another in some step than the optimizer has it."""
        return bool(self.warmup_steps) or self.lr_schedule != "constant"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Tensors of any shape that an optimizer keeps for whole parameters."""
        if self.make is None or self.divides:
            return ()
        return tuple(f"{OWN_STATE}{name}" for name, _ in self.known_traits.tensors)

    @property
    def state_bytes(self) -> float:
        """Bytes that are kept for an element of a parameter."""
        if self.make is None:
            return 4.0 * len(self.moments)
        return self.known_traits.state_bytes + (4.0 if self.ema_decay else 0.0)

    @property
    def divides(self) -> bool:
        """True if the update is computed element by element, so that ranks may divide a parameter and its state."""
        return self.make is None or self.known_traits.scope == "element"

    @property
    def updates_parameters_alone(self) -> bool:
        """True if the update of a parameter needs no other parameter."""
        return self.make is None or self.known_traits.scope != "model"

    @property
    def known_traits(self) -> UpdateTraits:
        """The traits of a user's optimizer.

        Raises
        ------
        WrongValueError
            If nobody has probed it: a task does.
        """
        if self.traits is None:
            raise WrongValueError(
                "it is not known how this optimizer updates; take the optimizer of a Task, which probes it"
            )
        return self.traits


EMA = "ema"
"""Names the moving average of parameters in checkpoints."""
OWN_STATE = "state."
"""Begins the names of what a user's optimizer keeps, in checkpoints."""
BUILT_IN = ("lr", "betas", "eps", "momentum", "weight_decay", "no_decay", "lr_scale")
"""Options of the optimizers that are chosen by name; a user's own has its own."""
BY_NAME = ("adamw", "sgd")
_ALWAYS_SAID = ("lr", "warmup_steps", "betas", "eps", "momentum", "weight_decay", "clip_norm")
_TRIED_STEPS = 20
_OF_OWN = ("make", "traits")
_MOVE: BufferOp = "copy"


def _text(value: Any) -> str:
    if callable(value):
        return name_of(value)
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else f"{value:g}"


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, a class or what ``functools.partial`` made of one."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))

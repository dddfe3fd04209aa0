"""The options that `train` and `run` share, and their values where nobody gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import tyro

from trainyard.cli.bounds import COUNT, FRACTION, QUANTITY, RUN_STEPS, SEED, STALL, STEPS
from trainyard.cli.outputs import Output
from trainyard.cli.quantities import DurationOrNever, Size
from trainyard.cli.screen import Common
from trainyard.job.optimizer import OptimizerConfig

__all__ = ["DEFAULTS", "OPTIMIZER_OPTIONS", "CheckpointOptions", "TrainingOptions", "usual", "value_text"]

OPTIMIZER_OPTIONS = tuple(f.name for f in fields(OptimizerConfig) if f.name != "name")
"""Fields of `OptimizerConfig` that are options of the same name; ``--optimizer`` is its name."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "steps": 100,
        "optimizer": OptimizerConfig.name,
        **{name: getattr(OptimizerConfig, name) for name in OPTIMIZER_OPTIONS},
        "seed": 0,
        "on_nonfinite": "stop",
        "checkpoint_every": 0,
        "max_restarts": 0,
        "device": "cpu",
        "strategies": "auto",
        "dtype": "float32",
        "statistics": "batch",
    }
)
"""Values of options that nobody gave, where no checkpoint says otherwise."""


def value_text(value: object) -> str:
    """The value of an option as a command line has it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def usual(name: str, metavar: str, sentence: str | None = None) -> Any:
    """Return how help shows an option that is None until it is known whether a run is resumed.

    Parameters
    ----------
    sentence : describes the option; None where the docstring of the field does.
    """
    hint = f"(default: {value_text(DEFAULTS[name])})"
    return tyro.conf.arg(metavar=metavar, help=sentence, help_behavior_hint=hint)


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The folder of checkpoints, and when a run starts again from one."""

    heading = "checkpoints"
    checkpoint: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER"), Output.FOLDER] = None
    """Folder of checkpoints and logs; by default a new one in runs/."""
    checkpoint_every: Annotated[int | None, usual("checkpoint_every", "N"), STEPS] = None
    """Steps between checkpoints; 0 writes one at the end."""
    resume: bool = False
    """Continue the run of --checkpoint from its newest complete checkpoint. Options that are not given are as they were.
    --processes and --strategies may change; a change that would train something else is refused."""
    max_restarts: Annotated[int | None, usual("max_restarts", "N"), COUNT] = None
    """Number of times to start again from the newest checkpoint when a process dies."""
    stall: Annotated[DurationOrNever, STALL] = 1800.0
    """Time without a step after which a process counts as dead. Its first step may take 30 min in any case."""
    max_checkpoint_size: Size | None = None
    """Most disk space that all checkpoints together may take; a run that would need more is refused. By default there is
    no limit."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(CheckpointOptions, Common):
    """Options of a run. Those that are not given are as in the checkpoint that is resumed, else as usual."""

    heading = "training"
    steps: Annotated[int | None, usual("steps", "N"), RUN_STEPS] = None
    """Steps of the whole run, those before --resume included."""
    lr: Annotated[float | None, usual("lr", "RATE"), QUANTITY] = None
    """Learning rate after warm-up."""
    warmup_steps: Annotated[int | None, usual("warmup_steps", "N"), STEPS] = None
    """Steps over which the learning rate grows from 0 to --lr; 0 begins with --lr."""
    optimizer: Annotated[Literal["adamw", "sgd"] | None, usual("optimizer", "{adamw,sgd}")] = None
    """How parameters are updated."""
    betas: Annotated[tuple[float, float] | None, usual("betas", "X X"), FRACTION] = None
    """For adamw: decay rates of the means of gradients and of their squares."""
    eps: Annotated[float | None, usual("eps", "X"), QUANTITY] = None
    """For adamw: number added to the root of the mean square."""
    momentum: Annotated[float | None, usual("momentum", "X"), FRACTION] = None
    """For sgd: share of the last update that is added to the next; 0 is none."""
    weight_decay: Annotated[float | None, usual("weight_decay", "X"), QUANTITY] = None
    """Weight decay; for adamw decoupled from the gradient."""
    clip_norm: Annotated[float | None, usual("clip_norm", "X"), QUANTITY] = None
    """Largest global norm of the gradient; a larger gradient is scaled down. 0 is no limit."""
    evaluate_every: Annotated[int, tyro.conf.arg(metavar="N"), STEPS] = 0
    """Steps between evaluations on the held-out set that evaluation() of a Python file returns; 0 evaluates after the
    last step only. Give it again with --resume."""
    seed: Annotated[int | None, usual("seed", "N"), SEED] = None
    """Seed of initial values and dropout."""
    on_nonfinite: Annotated[Literal["stop", "skip"] | None, usual("on_nonfinite", "{stop,skip}")] = None
    """What a step whose loss or gradient is NaN or infinite does: stop the run before its update, or skip the update."""
    device: Annotated[Literal["cpu", "cuda"] | None, usual("device", "{cpu,cuda}")] = None
    """Device to compute on. With cuda each process has a GPU of its own, and the plan is for these GPUs."""

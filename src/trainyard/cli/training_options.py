"""The options that `train` and `run` share, and their values where nobody gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.bounds import COUNT, FRACTION, QUANTITY, RUN_STEPS, SEED, STALL, STEPS
from trainyard.cli.outputs import Output
from trainyard.cli.parameter_patterns import Patterns, Scales
from trainyard.cli.quantities import DurationOrNever, Size
from trainyard.cli.screen import Common
from trainyard.job.optimizer import OptimizerConfig

__all__ = ["DEFAULTS", "OPTIMIZER_OPTIONS", "CheckpointOptions", "TrainingOptions", "usual", "value_text"]

OPTIMIZER_OPTIONS = tuple(f.name for f in fields(OptimizerConfig) if f.name not in ("name", "make", "traits"))
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
    if not isinstance(value, tuple):
        return str(value)
    if all(isinstance(part, float) for part in value):
        return " ".join(map(str, value))
    return ",".join(f"{part[0]}={part[1]:g}" if isinstance(part, tuple) else str(part) for part in value)


def usual(name: str, metavar: str, sentence: str | None = None) -> Any:
    """Return how help shows an option that is None until it is known whether a run is resumed.

    Parameters
    ----------
    sentence : describes the option; None where the docstring of the field does.
    """
    hint = f"(default: {value_text(DEFAULTS[name])})" if DEFAULTS[name] != () else ""
    return tyro.conf.arg(metavar=metavar, help=sentence, help_behavior_hint=hint)


_LOGS = PrimitiveConstructorSpec(
    nargs=1,
    metavar="LOG,LOG",
    instance_from_str=lambda given: tuple(filter(None, given[0].split(","))),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda value: [",".join(value)],
)
"""The rule by which the command line reads names that are joined by commas."""


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
    clip_value: Annotated[float | None, usual("clip_value", "X"), QUANTITY] = None
    """Largest absolute value of an element of the gradient; larger ones are cut. 0 is no limit."""
    no_decay: Annotated[Patterns | None, usual("no_decay", "PATTERNS")] = None
    """Parameters without weight decay, between commas: 1d for biases and norms, or patterns such as '**.bias'."""
    lr_scale: Annotated[Scales | None, usual("lr_scale", "PATTERN=X")] = None
    """Parameters whose learning rate is so many times --lr, between commas, such as 'head.**=10'."""
    ema_decay: Annotated[float | None, usual("ema_decay", "X"), FRACTION] = None
    """Decay of a moving average of the parameters, which checkpoints keep as ema; 0 keeps none."""
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine", "wsd"] | None,
        usual("lr_schedule", "{constant,linear,cosine,wsd}"),
    ] = None
    """How the learning rate goes on after warm-up: linear and cosine fall until the last step, wsd only near the end."""
    lr_steps: Annotated[int | None, usual("lr_steps", "N"), STEPS] = None
    """Steps after which a falling learning rate is at its least; 0 is --steps."""
    decay_steps: Annotated[int | None, usual("decay_steps", "N"), STEPS] = None
    """For wsd: last steps, over which the learning rate falls; 0 is a tenth of all."""
    min_lr_factor: Annotated[float | None, usual("min_lr_factor", "X"), FRACTION] = None
    """Least learning rate of one that falls, as a share of --lr."""
    evaluate_every: Annotated[int, tyro.conf.arg(metavar="N"), STEPS] = 0
    """Steps between evaluations on the held-out set that evaluation() of a Python file returns; 0 evaluates after the
    last step only. Give it again with --resume."""
    seed: Annotated[int | None, usual("seed", "N"), SEED] = None
    """Seed of initial values and dropout."""
    on_nonfinite: Annotated[Literal["stop", "skip"] | None, usual("on_nonfinite", "{stop,skip}")] = None
    """What a step whose loss or gradient is NaN or infinite does: stop the run before its update, or skip the update."""
    log_to: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LOG,LOG"), _LOGS] = ()
    """Further logs beside metrics.jsonl in the run's folder: csv, tensorboard, wandb (offline), joined by commas."""
    profile: bool = False
    """Record when each op of the last steps ran, and compare it with the prediction: a table, and profile.html and
    profile-trace.json (for Perfetto) in the run's folder. Steps become slower, by a microsecond for each op on a CPU."""
    device: Annotated[Literal["cpu", "cuda"] | None, usual("device", "{cpu,cuda}")] = None
    """Device to compute on. With cuda each process has a GPU of its own, and the plan is for these GPUs."""

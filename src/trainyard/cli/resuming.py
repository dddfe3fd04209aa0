"""Find the run that `--resume` continues; its options hold where none are given, and changes are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainyard.cli.launcher import is_launched, is_silent, num_launched
from trainyard.cli.training_options import DEFAULTS, OPTIMIZER_OPTIONS, TrainingOptions, value_text
from trainyard.job.optimizer import OptimizerConfig

if TYPE_CHECKING:
    from trainyard.job.plan import Plan
    from trainyard.job.task import Task

__all__ = ["SavedRun", "saved_run", "settled"]

_Options = TypeVar("_Options", bound=TrainingOptions)

_PLANNING = ("processes", "strategies", "statistics")
_FIXED = ("optimizer", *OPTIMIZER_OPTIONS, "seed", "rows", "dtype")


@dataclass(frozen=True)
class SavedRun:
    """The run that a checkpoint is of.

    Attributes
    ----------
    checkpoint : its folder.
    step : steps done.
    values : of options, by name.
    plan : that it ran under.
    torch : the version of PyTorch that it ran with.
    """

    checkpoint: Path
    step: int
    values: Mapping[str, Any]
    plan: Plan
    torch: str

    def goes_on_under_its_plan(self, options: TrainingOptions) -> bool:
        """Return whether the options allow for the plan of the checkpoint."""
        import torch

        asked = {name: getattr(options, name, None) for name in _PLANNING}
        same = all(value in (None, self.values[name]) for name, value in asked.items())
        as_many = not is_launched() or num_launched() == self.plan.num_ranks
        return same and as_many and self.torch == torch.__version__

    def check(self, plan: Plan, task: Task) -> None:
        """Check that a model, and settings of a plan, are those of the run.

        Raises
        ------
        CheckpointError
            If they are not; the message names what differs.
        """
        from trainyard.job.run.checkpoint.folders import check_goes_on_as
        from trainyard.job.run.checkpoint.same_run import model_identity, settings_of
        from trainyard.job.run.config import TrainConfig

        # Options were compared before, so the rest is what the plan says.
        config = TrainConfig(0, task.optimizer, seed=self.values["seed"])
        settings = settings_of(plan, config)
        check_goes_on_as(self.checkpoint, settings, model_identity(task))


def saved_run(options: TrainingOptions) -> SavedRun | None:
    """The run to continue; None where one is to begin.

    Raises
    ------
    CheckpointError
        If the folder does not allow for what was asked, or another run uses it.
    """
    from trainyard.job.run.checkpoint.lock import check_free
    from trainyard.job.run.checkpoint.saved import check_unused, newest_complete, saved_steps, started_again

    folder = options.checkpoint
    if folder is None:
        if options.resume:
            raise ValueError(
                "--resume needs the folder of the run that is to go on: give --checkpoint FOLDER"
            )
        return None
    if not is_silent():
        check_free(folder)
    if started_again():
        # By a launcher, after a failure, which may have been before the first checkpoint.
        return _read(newest_complete(folder)) if options.resume and saved_steps(folder) else None
    if options.resume:
        return _read(newest_complete(folder))
    check_unused(folder)
    return None


def _read(checkpoint: Path) -> SavedRun:
    from trainyard.job.plan import parse_plan
    from trainyard.job.run.checkpoint.saved import read_about
    from trainyard.job.run.config import TrainConfig
    from trainyard.job.run.errors import CheckpointError
    from trainyard.user_file import is_file

    about = read_about(checkpoint)
    try:
        plan = parse_plan(about.plan)
        settings = dict(about.settings)
        values = {
            **{name: settings[name] for name in _FIXED},
            "betas": tuple(settings["betas"]),
            "no_decay": tuple(settings["no_decay"]),
            "lr_scale": tuple((str(pattern), float(factor)) for pattern, factor in settings["lr_scale"]),
            **about.options,
            # A file gives its own batch, and no rows are asked for.
            "rows": None if is_file(plan.model) else plan.num_rows,
            "processes": plan.num_ranks,
            "strategies": "+".join(plan.made_by) or "auto",
            "statistics": plan.statistics,
        }
        for name, usual_value in (*DEFAULTS.items(), ("keep", TrainConfig.keep)):
            kind = (int, float) if isinstance(usual_value, float) else type(usual_value)
            if not isinstance(values[name], kind):
                raise TypeError(f"{name} is {values[name]!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"what {checkpoint} says of its run cannot be read: {type(error).__name__}: {error}"
        ) from error
    return SavedRun(checkpoint, about.step, values, plan, about.torch)


def settled(options: _Options, run: SavedRun | None, say: Callable[[str], None]) -> _Options:
    """Options of which none is open any more: those given, else those of the run that goes on, else the usual ones.

    Raises
    ------
    CheckpointError
        If what was given is not that run.
    ValueError
        If what was given is of another optimizer.
    """
    known = DEFAULTS if run is None else {**DEFAULTS, **run.values}
    names = [f.name for f in fields(options) if f.name in known]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if run is not None:
        unlike = {name: value for name, value in given.items() if value != known[name]}
        refused = [name for name in unlike if name in _FIXED]
        if refused:
            _refuse(run, {name: unlike[name] for name in refused})
        changed = "".join(
            f"; {_flag(n, value)} instead of {value_text(known[n])}" for n, value in unlike.items()
        )
        say(f"goes on after step {run.step} of the run in {run.checkpoint.parent}{changed}")
    options = replace(options, **{name: known[name] for name in names if name not in given})
    built_in = options.optimizer if options.optimizer in ("adamw", "sgd") else None
    if built_in is not None and (
        unused := [n for n in OptimizerConfig(built_in).unused_options() if n in given]
    ):
        other = "adamw" if options.optimizer == "sgd" else "sgd"
        raise ValueError(
            f"{', '.join(_flag(n, given[n]) for n in unused)}: of {other}, not of {options.optimizer}; leave it out, or "
            f"take --optimizer {other}"
        )
    return options


def _refuse(run: SavedRun, unlike: Mapping[str, Any]) -> None:
    from trainyard.job.run.errors import CheckpointError

    asked = ", ".join(_flag(name, value) for name, value in unlike.items())
    was = ", ".join(_flag(name, run.values[name]) for name in unlike)
    raise CheckpointError(
        f"{run.checkpoint} is of a run with {was}, and {asked} is asked for: leave that out, which continues the run, or "
        "start a run of its own in another folder"
    )


def _flag(name: str, value: object) -> str:
    return f"--{name.replace('_', '-')} {value_text(value)}"

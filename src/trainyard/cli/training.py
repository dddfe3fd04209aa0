"""Train under a plan, show the losses, and report: the common part of `train` and `run`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainyard.cli.config_file import CONFIG_NAME
from trainyard.cli.interruption import reporting_resume_command, resume_command
from trainyard.cli.resuming import SavedRun
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.step_profiling import ProfiledRun, profiled
from trainyard.cli.training_options import OPTIMIZER_OPTIONS, TrainingOptions
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.config import BUILT_IN, BY_NAME
from trainyard.private import make_private, write_private
from trainyard.reading import count_text
from trainyard.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from trainyard.job.plan import Plan
    from trainyard.job.run.config import Restart, StepMetrics, TrainConfig, TrainResult
    from trainyard.job.run.step.data import Data
    from trainyard.job.simulation.result import Simulation

__all__ = ["train_and_report", "train_config"]

_WARM_UP_STEPS = 3  # slower: memory is touched for the first time
_LOGGED_LINES = 12
_PEAK_MEMORY = {
    "cpu": "* resident, with what Python and PyTorch themselves hold",
    "cuda": "* allocated by PyTorch on the GPU",
}


def train_and_report(
    command: str,
    spec: str,
    plan: Plan,
    simulation: Simulation | None,
    own_data: Data | None,
    options: TrainingOptions,
    screen: Screen,
    run: SavedRun | None,
    written: str = "",
) -> Outcome:
    """Train under a plan, show the loss falling, and put what was predicted beside what was measured.

    Parameters
    ----------
    command : what the user can repeat to go on.
    spec : the model, as ``load_model`` takes it.
    simulation : of the plan on this machine; None on a rank that does not speak.
    own_data : of a model that is a file, if that has any.
    run : that goes on, if one does.
    written : options that the run uses, for a file in its folder; none if empty.
    """
    from trainyard.job.run.processes.rendezvous import broadcast_text
    from trainyard.job.run.train import train
    from trainyard.job.sources import data_of, file_evaluation, model_source

    folder = options.checkpoint or Path(
        broadcast_text("folder", lambda: f"runs/{Path(spec).stem}-{datetime.now():%Y%m%d-%H%M%S}")
    )
    ideal_step_s = 0.0 if simulation is None else simulation.ideal_step_s
    config = replace(
        train_config(options, spec, folder, run, ideal_step_s),
        evaluate=file_evaluation(spec, options.evaluate_every),
    )
    data, said = data_of(spec, plan.num_rows, own_data)
    every = config.checkpoint_every
    when = f"every {every} steps" if every else "after the last step only (--checkpoint-every N writes more)"
    screen.say(f"trains on {said}; a checkpoint {when} and logs in {folder}")
    with (
        reporting_resume_command(command, folder, screen.say),
        _shown(screen, config.steps) as (on_step, on_restart),
    ):
        noted = _writing(folder / CONFIG_NAME, written, on_step) if written else on_step
        result = train(model_source(spec, plan.num_rows), plan, data, config, noted, on_restart, screen.say)
    if simulation is None:
        return Outcome({})
    document = {
        "plan": plan.to_text(),
        "optimizer": config.optimizer.settings(),
        **_document(simulation, result),
    }
    body = _body(simulation, result, command, config)
    if not config.profile or not result.metrics or config.log is None:
        return Outcome(document, body)
    ran = ProfiledRun(spec, plan, simulation, config.optimizer, config.device, config.log, folder)
    found, shown = profiled(ran, screen)
    return Outcome({**document, **found}, (*body, *shown))


def _writing(path: Path, text: str, on_step: Callable[[StepMetrics], None]) -> Callable[[StepMetrics], None]:
    """Write a file at the first step, when the folder is the run's own; then as ``on_step`` alone."""
    is_first = True

    def write(metrics: StepMetrics) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            make_private(path.parent)
            write_private(path, text)
        on_step(metrics)

    return write


def optimizer_config(options: TrainingOptions, spec: str) -> OptimizerConfig:
    """Return the optimizer that options ask for, which have their defaults filled in, or that of a Python file.

    Parameters
    ----------
    spec : the model, as ``load_model`` takes it.
    """
    from trainyard.job.own_optimizer import configured

    asked = {name: getattr(options, name) for name in OPTIMIZER_OPTIONS}
    return configured({"name": options.optimizer or OptimizerConfig.name, **asked}, spec)


def unused_options(optimizer: str | None) -> tuple[str, ...]:
    """Name the options that an optimizer by its name leaves without effect; of a Python file's own, also its name."""
    name: Any = optimizer or OptimizerConfig.name
    if name in BY_NAME:
        return OptimizerConfig(name).unused_options()
    return ("optimizer", *BUILT_IN)


def train_config(
    options: TrainingOptions, spec: str, folder: Path, run: SavedRun | None, ideal_step_s: float = 0.0
) -> TrainConfig:
    """Options with defaults filled in, as the runtime takes them.

    Parameters
    ----------
    spec : the model, as ``load_model`` takes it.
    folder : of checkpoints and logs.
    run : that goes on, if one does.
    ideal_step_s : of the simulation of the plan, for MFU.
    """
    from trainyard.job.run.config import TrainConfig

    how: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("checkpoint_every", "seed", "on_nonfinite", "max_restarts", "device")
    }
    keep: dict[str, Any] = {} if run is None else {"keep": run.values["keep"]}
    return TrainConfig(
        options.steps or 0,
        optimizer_config(options, spec),
        folder,
        resume=options.resume,
        log=folder / "log",
        log_to=options.log_to,
        profile=options.profile,
        ideal_step_s=ideal_step_s,
        stall_s=options.stall,
        max_checkpoint_bytes=options.max_checkpoint_size or float("inf"),
        **how,
        **keep,
    )


@contextmanager
def _shown(
    screen: Screen, steps: int
) -> Iterator[tuple[Callable[[StepMetrics], None], Callable[[Restart], None]]]:
    """Show a bar on a terminal, else lines now and then; yield functions that take steps and restarts."""

    def on_restart(restart: Restart) -> None:
        screen.say(f"restarted from step {restart.step} in {restart.seconds:.1f} s: {restart.reason}")

    if not screen.messages.is_terminal:
        with screen.waiting("starting the processes") as progress:
            every = max(1, -(-steps // _LOGGED_LINES))
            time_left = _time_left(steps)

            def on_step(metrics: StepMetrics) -> None:
                progress("training", f"step {metrics.step + 1} of {steps}")
                left = time_left(metrics)
                if metrics.step % every == 0 or metrics.step + 1 == steps or metrics.skipped:
                    screen.say(f"step {metrics.step + 1}/{steps}  {_said(metrics)}{left}")
                _say_evaluation(screen, metrics)

            yield on_step, on_restart
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen.messages) as bar:
        task = bar.add_task("", total=steps, said="starting the processes")

        def on_step_of_bar(metrics: StepMetrics) -> None:
            bar.update(task, completed=metrics.step + 1, said=_said(metrics))
            _say_evaluation(screen, metrics)

        yield on_step_of_bar, on_restart


def _say_evaluation(screen: Screen, metrics: StepMetrics) -> None:
    if metrics.evaluation:
        values = "  ".join(f"{name} {value:.3f}" for name, value in metrics.evaluation.items())
        screen.say(f"held out, after step {metrics.step + 1}: {values}")


def _time_left(steps: int) -> Callable[[StepMetrics], str]:
    """Return a function that takes every step of a run and tells the time that is left, by the mean of those done."""
    seconds: list[float] = []

    def tell(metrics: StepMetrics) -> str:
        seconds.append(metrics.seconds + metrics.checkpoint_s)
        left_s = math.ceil(statistics.fmean(seconds) * (steps - metrics.step - 1))
        return f"  {timedelta(seconds=left_s)} left" if metrics.step + 1 < steps else ""

    return tell


def _said(metrics: StepMetrics) -> str:
    losses = "  ".join(
        f"{name.partition(':')[2] or name} {value:.3f}" for name, value in metrics.losses.items()
    )
    rate = (
        f"{metrics.tokens_per_s:,.0f} tokens/s"
        if metrics.tokens_per_s
        else f"{metrics.rows_per_s:,.1f} rows/s"
    )
    return f"{losses}  {rate}{'  skipped' if metrics.skipped else ''}"


def _measured(metrics: Sequence[StepMetrics]) -> dict[str, Any]:
    """Medians of the steps after the first few, and the peaks."""
    steady = metrics[_WARM_UP_STEPS:] or metrics
    return {
        "step_s": statistics.median(m.seconds for m in steady),
        "peak_memory_bytes": max(max(m.peak_memory_bytes) for m in metrics),
        "sent_bytes": int(statistics.median(max(m.sent_bytes) for m in steady)),
        "rows_per_s": statistics.median(m.rows_per_s for m in steady),
        "tokens_per_s": statistics.median(m.tokens_per_s for m in steady),
    }


def _step_times(simulation: Simulation, metrics: Sequence[StepMetrics]) -> Iterator[tuple[str, str, str]]:
    """Predicted and measured step times: of each length that was trained on, where batches have several."""
    if not simulation.by_length:
        yield "step time", seconds_text(simulation.step_s), seconds_text(_measured(metrics)["step_s"])
    for length, predicted in simulation.by_length.items():
        if steps := [each for each in metrics if each.length == length]:
            name = f"step time at length {length}"
            yield name, seconds_text(predicted.step_s), seconds_text(_measured(steps)["step_s"])


def _document(simulation: Simulation, result: TrainResult) -> dict[str, Any]:
    from trainyard.report.prediction import simulation_document

    return {
        "prediction": simulation_document(simulation),
        "predicted_sent_bytes": max(simulation.sent_bytes),
        "measured": _measured(result.metrics) if result.metrics else None,
        "first_step": result.first_step,
        "skipped_steps": sum(metrics.skipped for metrics in result.metrics),
        "restarts": [vars(restart) for restart in result.restarts],
        "notes": result.notes,
        "checkpoint": None if result.checkpoint is None else str(result.checkpoint),
        "metrics": [metrics.as_dict() for metrics in result.metrics],
    }


def _body(simulation: Simulation, result: TrainResult, command: str, config: TrainConfig) -> tuple[Any, ...]:
    from trainyard.report.tables import make_table

    steps = config.steps
    if not result.metrics:
        return (f"nothing to do: {count_text(result.first_step, 'step')} of {steps:,} done",)
    measured = _measured(result.metrics)
    rows = [
        *_step_times(simulation, result.metrics),
        (
            "peak memory of a process",
            bytes_text(max(simulation.tensor_bytes)),  # what is measured on a GPU, too
            bytes_text(measured["peak_memory_bytes"]) + "*",
        ),
        (
            "sent by a process in a step",
            bytes_text(max(simulation.sent_bytes)),
            bytes_text(measured["sent_bytes"]),
        ),
    ]
    first, last = result.metrics[0], result.metrics[-1]
    name = next(iter(first.losses))
    body: list[Any] = [
        f"{name.partition(':')[2] or name} {first.losses[name]:.3f} at step {first.step + 1}, "
        f"{last.losses[name]:.3f} at step {last.step + 1}",
        make_table("", ("", "predicted", "measured"), rows),
        _PEAK_MEMORY[config.device],
    ]
    if skipped := sum(metrics.skipped for metrics in result.metrics):
        body.append(f"{skipped} of {len(result.metrics)} steps were not finite; their updates were skipped")
    if result.checkpoint is not None:
        folder = result.checkpoint.parent
        again = f"{resume_command(command, folder)} --steps {2 * steps}"
        body += ["", f"checkpoint {result.checkpoint}; go on with", f"  {again}"]
    return tuple(body)

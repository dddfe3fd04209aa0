"""`trainyard train`: plan for this machine, then train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from trainyard.cli.bounds import PROCESSES, ROWS
from trainyard.cli.config_file import ConfigOptions, config_text
from trainyard.cli.launcher import is_launched, is_silent, num_launched
from trainyard.cli.resuming import SavedRun, saved_run, settled
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.step_options import PRECISION
from trainyard.cli.training import optimizer_config, train_and_report, unused_options
from trainyard.cli.training_device import most_gpus, require_device, this_machine
from trainyard.cli.training_options import TrainingOptions, usual

if TYPE_CHECKING:
    from trainyard.hardware import Cluster
    from trainyard.job.planning import Planned
    from trainyard.program.model import Model

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(TrainingOptions, ConfigOptions):
    """Plan for this machine, say why, and train: a model by name, or a Python file with model() and its data."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Name of a model such as gpt-small-cpu, or a Python file that defines model(), and data(step), dataset() or
    loader()."""
    processes: Annotated[int | None, tyro.conf.arg(metavar="N"), PROCESSES] = None
    """Processes to train with; by default one, or one per core, whichever is predicted to be faster."""
    strategies: Annotated[str | None, usual("strategies", "auto|A+B")] = None
    """Strategies joined by + and applied left to right: published systems, or auto, which searches."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="N"), ROWS] = None
    """Rows of the batch of one step, for a model by name; a Python file gives its own batch."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        usual("dtype", "{float32,bfloat16,float16}", PRECISION),
    ] = None
    statistics: Annotated[
        Literal["batch", "microbatch"] | None, usual("statistics", "{batch,microbatch}")
    ] = None
    """batch: microbatches are made only where they train the same as the whole batch. microbatch: also where
    rows depend on each other; see `trainyard plan --help`."""


def act(options: Options, screen: Screen) -> Outcome:
    """Train."""
    if is_launched() and options.processes not in (None, num_launched()):
        raise ValueError(
            f"--processes {options.processes}: the launcher started {num_launched()} processes; leave the option out, or "
            "start as many"
        )
    run = saved_run(options)
    keeps_plan = run is not None and run.goes_on_under_its_plan(options)
    given, options = options, settled(options, run, screen.say)
    if options.print_config:
        config = config_text(options, unused_options(options.optimizer))
        return Outcome({"config": config}, (config.rstrip(),))
    with screen.waiting("loading PyTorch"):
        from trainyard.job.own_optimizer import check_given, options_of_file
        from trainyard.job.sources import file_data, file_model
    from trainyard.job.plan import DoesNotFitError, parse_plan
    from trainyard.job.run.processes.metric_logs import require_logs
    from trainyard.job.run.processes.rendezvous import broadcast_text
    from trainyard.program.batch import batch_rows
    from trainyard.report.prediction import does_not_fit, planned_document, simulation_facts
    from trainyard.report.tables import facts_table

    # What cannot be trained on is refused before anything is planned.
    require_device(options.device, options.processes or 1)
    require_logs(options.log_to)
    with screen.waiting(f"loading {options.model}"):
        model = file_model(options.model, options.seed or 0)
        rows = 0 if model is None else batch_rows(model.batch, model.whole)
        data = file_data(options.model, model, options.steps or 0, rows, options.seed or 0)
    check_given(given, options.model)
    screen.say(f"optimizer {optimizer_config(options, options.model)}")
    config = config_text(options, (*unused_options(options.optimizer), *options_of_file(options.model)))
    found = None
    if not is_silent():
        try:
            before = None if run is None else _as_before(run, options, model, screen, simulates=keeps_plan)
            found = before or _best_plan(options, model, screen)
        except DoesNotFitError as error:
            return Outcome({"model": options.model, "fits": False, "reason": str(error)}, failure=str(error))
        screen.say(found.plan.explain())
        screen.say(facts_table("", simulation_facts(found.simulation)))
        if not found.simulation.fits:
            return Outcome(planned_document(found), failure=does_not_fit(found.plan, found.simulation))
    plan = parse_plan(broadcast_text("plan", lambda: "" if found is None else found.plan.to_text()))
    simulation = None if found is None else found.simulation
    command = f"trainyard train {quote(options.model)}"
    return train_and_report(command, options.model, plan, simulation, data, options, screen, run, config)


def _as_before(
    run: SavedRun, options: Options, model: Model | None, screen: Screen, simulates: bool
) -> Planned | None:
    """See that the model is that of the run; if that goes on under its plan, say what it takes here."""
    from trainyard.job.planning import Planned, load_model, simulate_task
    from trainyard.job.task import Task

    plan = run.plan
    model = load_model(options.model, options.rows) if model is None else model
    optimizer = optimizer_config(options, options.model)
    task = Task(model, plan.dtype, plan.statistics, plan.num_rows, optimizer)
    run.check(plan, task)
    if not simulates:
        return None
    with screen.waiting("simulating the plan") as progress:
        place = this_machine(options.device, plan.num_ranks, screen.say)
        simulation = simulate_task(plan, task, place, progress)
    return Planned(plan, simulation, task, (), 0.0)


def _best_plan(options: Options, model: Model | None, screen: Screen) -> Planned:
    """Plan for every number of processes that is in question; the fastest plan wins."""
    from trainyard.hardware import cluster_of_profile, local_profile
    from trainyard.job.plan import DoesNotFitError
    from trainyard.job.planning import load_model, plan

    place: Callable[[int], Cluster]
    if options.device == "cuda":
        most, place = most_gpus(), partial(this_machine, options.device, say=screen.say)
    else:
        with screen.waiting("measuring this machine") as progress:
            profile = local_profile(progress)
        most, place = profile.num_cores, partial(cluster_of_profile, profile)
    counts = [options.processes] if options.processes is not None else sorted({1, most})
    counts = [num_launched()] if is_launched() else counts
    model = load_model(options.model, options.rows) if model is None or options.rows is not None else model
    found: list[Planned] = []
    for count in counts:
        with screen.waiting(f"planning for {_processes(count)}") as progress:
            try:
                planned = plan(
                    model,
                    place(count),
                    str(options.strategies),
                    str(options.dtype),
                    progress,
                    options.statistics or "batch",
                    all_devices=True,
                    optimizer=optimizer_config(options, options.model),
                )
            except DoesNotFitError:
                if count != counts[-1] or found:
                    continue
                raise
        found.append(planned)
    best = min(found, key=lambda each: (not each.simulation.fits, each.simulation.step_s))
    for other in found:
        if other is not best:
            slower = other.simulation.step_s / best.simulation.step_s
            screen.say(
                f"with {_processes(other.plan.num_ranks)} a step would take {slower:.2f} times as long as with "
                f"{_processes(best.plan.num_ranks)}"
            )
    return best


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"

"""`trainyard train`: plan for this machine, then train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from trainyard.cli.bounds import PROCESSES, ROWS
from trainyard.cli.launcher import agreed, is_launched, is_silent, num_launched
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.splitting import SplittingOptions
from trainyard.cli.training import TrainingOptions, train_and_report

if TYPE_CHECKING:
    from trainyard.job.planning import Planned
    from trainyard.program.model import Model

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(SplittingOptions, TrainingOptions):
    """Plan for this machine, say why, and train: a model by name, or a Python file with model() and data(step)."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Name of a model such as gpt-small-cpu, or a Python file that defines model() and data(step)."""
    processes: Annotated[int | None, tyro.conf.arg(metavar="N"), PROCESSES] = None
    """Processes to train with; by default one, or one per core, whichever is predicted to be faster."""
    strategies: Annotated[str, tyro.conf.arg(metavar="auto|A+B")] = "auto"
    """auto searches; otherwise published systems, applied left to right."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="N"), ROWS] = None
    """Rows of the batch of one step, for a model by name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision to compute in."""


def act(options: Options, screen: Screen) -> Outcome:
    """Train."""
    from trainyard.cli.sources import file_data, file_model
    from trainyard.job.plan import DoesNotFitError, parse_plan
    from trainyard.report.prediction import does_not_fit, planned_document, simulation_facts
    from trainyard.report.tables import facts_table

    model = file_model(options.model, options.seed)
    # What cannot be trained on is refused before anything is planned.
    data = file_data(options.model, options.steps)
    found = None
    if not is_silent():
        try:
            found = _best_plan(options, model, screen)
        except DoesNotFitError as error:
            return Outcome({"model": options.model, "fits": False, "reason": str(error)}, failure=str(error))
        screen.say(found.plan.explain())
        screen.say(facts_table("", simulation_facts(found.simulation)))
        # What is known of this machine is its processors and their memory.
        if options.device == "cpu" and not found.simulation.fits:
            return Outcome(planned_document(found), failure=does_not_fit(found.plan, found.simulation))
    plan = parse_plan(agreed("plan", lambda: "" if found is None else found.plan.to_text()))
    simulation = None if found is None else found.simulation
    return train_and_report(
        f"trainyard train {options.model}", options.model, plan, simulation, data, options, screen
    )


def _best_plan(options: Options, model: Model | None, screen: Screen) -> Planned:
    """Plan for every number of processes that is in question; the fastest plan wins."""
    from trainyard.hardware import cluster_of_profile, local_profile
    from trainyard.job.plan import DoesNotFitError
    from trainyard.job.planning import load_model, plan

    with screen.waiting("measuring this machine") as change:
        profile = local_profile(lambda what, done: change(f"measuring {what} ({done:.0%})"))
    counts = [options.processes] if options.processes is not None else sorted({1, profile.num_cores})
    counts = [num_launched()] if is_launched() else counts
    model = load_model(options.model, options.rows) if model is None or options.rows is not None else model
    found: list[Planned] = []
    for count in counts:
        with screen.waiting(f"planning for {_processes(count)}") as change:
            try:
                planned = plan(
                    model,
                    cluster_of_profile(profile, count),
                    options.strategies,
                    options.dtype,
                    lambda what, done: change(f"{what} ({done:.0%})"),
                    options.statistics,
                    all_devices=True,
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

"""`trainyard run`: train with a saved plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import tyro

from trainyard.cli.launcher import is_launched, is_silent, num_launched
from trainyard.cli.resuming import saved_run, settled
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.training import optimizer_config, train_and_report
from trainyard.cli.training_device import require_device, this_machine
from trainyard.cli.training_options import TrainingOptions

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(TrainingOptions):
    """Train with a saved plan; start it with torchrun to use several machines."""

    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """File that `trainyard plan --save` wrote."""
    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """The model, if it is not the one that the plan names, or is a Python file: a plan runs none by itself."""


def act(options: Options, screen: Screen) -> Outcome:
    """Run."""
    from trainyard.job.plan import load_plan, model_for

    plan = load_plan(options.plan)  # before PyTorch is loaded, which takes seconds
    if is_launched():
        plan.require_processes(num_launched())
    spec = model_for(plan, options.model)
    with screen.waiting("loading PyTorch"):
        from trainyard.job.own_optimizer import check_given
        from trainyard.job.planning import load_model, simulate_task
        from trainyard.job.sources import file_data, file_model
        from trainyard.job.task import Task
    from trainyard.job.run.processes.metric_logs import require_logs
    from trainyard.report.prediction import does_not_fit, simulation_document

    run = saved_run(options)
    given, options = options, settled(options, run, screen.say)
    # What cannot be trained on is refused before anything is simulated.
    require_device(options.device, plan.num_ranks)
    require_logs(options.log_to)
    with screen.waiting(f"loading {spec}"):
        model = file_model(spec, options.seed or 0)
        data = file_data(spec, model, options.steps or 0, plan.num_rows, options.seed or 0)
    check_given(given, spec)
    optimizer = optimizer_config(options, spec)
    screen.say(f"optimizer {optimizer}")
    simulation = None
    if not is_silent():
        with screen.waiting("simulating the plan") as progress:
            # A plan that was made for other machines runs here, too; this is what it takes here.
            model = load_model(spec, plan.num_rows) if model is None else model
            task = Task(model, plan.dtype, plan.statistics, plan.num_rows, optimizer)
            if run is not None:
                run.check(plan, task)
            place = this_machine(options.device, plan.num_ranks, screen.say)
            simulation = simulate_task(plan, task, place, progress)
        if not simulation.fits:
            return Outcome(simulation_document(simulation), failure=does_not_fit(plan, simulation))
    del model
    named = f" --model {quote(options.model)}" if options.model else ""
    command = f"trainyard run {quote(str(options.plan))}{named}"
    return train_and_report(command, spec, plan, simulation, data, options, screen, run)

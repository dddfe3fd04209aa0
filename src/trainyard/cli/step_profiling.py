"""`train --profile` and `run --profile`: the step that was trained beside the predicted one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.cli.screen import Screen
from trainyard.cli.training_device import this_machine

if TYPE_CHECKING:
    from trainyard.job.optimizer import OptimizerConfig
    from trainyard.job.plan import Plan
    from trainyard.job.simulation.result import Simulation

__all__ = ["ProfiledRun", "profiled"]

_MOST_OPS = 12


@dataclass(frozen=True)
class ProfiledRun:
    """A run whose last steps were recorded.

    Attributes
    ----------
    spec : the model, as ``load_model`` takes it.
    device : ``cpu`` or ``cuda``.
    log : folder of what the ranks recorded.
    folder : gets the page and the trace.
    """

    spec: str
    plan: Plan
    simulation: Simulation
    optimizer: OptimizerConfig
    device: str
    log: Path
    folder: Path


def profiled(run: ProfiledRun, screen: Screen) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Compare the recorded steps with the prediction; write a page and a trace.

    Returns
    -------
    tuple
        The part of the document, and of the body.
    """
    from trainyard.job.planning import load_model, make_setting
    from trainyard.job.run.processes.logs import profile_file
    from trainyard.job.run.step.recorder import read_recorded
    from trainyard.job.task import Task
    from trainyard.report.step_profile import (
        OP_COLUMNS,
        RANK_COLUMNS,
        profile_page,
        profile_trace,
        step_profile,
    )
    from trainyard.report.tables import make_table
    from trainyard.user_file import is_file

    plan = run.plan
    with screen.waiting("comparing ops") as progress:
        model = load_model(run.spec, None if is_file(run.spec) else plan.num_rows)
        task = Task(model, plan.dtype, plan.statistics, plan.num_rows, run.optimizer)
        place = this_machine(run.device, plan.num_ranks, screen.say)
        predicted = make_setting(task, place, progress).predicted_ops(plan)
        recorded = read_recorded(profile_file(run.log, rank) for rank in range(plan.num_ranks))
        found = step_profile(plan, run.simulation, predicted, recorded)
    screen.keep(profile_page(plan, run.simulation, found), run.folder / "profile.html")
    trace = json.dumps(profile_trace(run.simulation, found))
    screen.keep(trace, run.folder / "profile-trace.json", "timeline")
    body = (
        "",
        make_table("seconds of each pipeline rank", RANK_COLUMNS, found.rank_rows()),
        make_table("ops, the largest differences first", OP_COLUMNS, found.op_rows(_MOST_OPS), 3),
    )
    return {"profile": found.as_dict()}, body

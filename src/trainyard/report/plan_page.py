"""One self-contained HTML page about a plan: its predicted step as a timeline, and why it was chosen."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.job.plan import Plan
from trainyard.job.setting import RunnerUp
from trainyard.job.simulation.result import Simulation
from trainyard.report.page import Table
from trainyard.report.prediction import RUNNER_UP_COLUMNS, mesh_text, runner_up_rows, simulation_facts
from trainyard.report.timeline_page import timeline_page

__all__ = ["plan_page"]


def plan_page(plan: Plan, simulation: Simulation, runners_up: Sequence[RunnerUp] = ()) -> str:
    """Show the timeline of a step, its time and memory, and what the plan decides.

    Parameters
    ----------
    runners_up : plans that were considered and are not the best.
    """
    facts = simulation_facts(simulation)
    summary = {
        "plan": mesh_text(plan),
        **{name: text for name, text in facts if name in ("step time", "MFU")},
    }
    tables = [
        Table("Time and memory of a step", ("what", "predicted"), tuple(facts)),
        Table("Why this plan", ("reasons",), tuple((line,) for line in plan.explain().splitlines())),
    ]
    if runners_up:
        tables.append(Table("Also considered", RUNNER_UP_COLUMNS, runner_up_rows(runners_up, simulation)))
    return timeline_page(simulation.timeline, f"{plan.model} on {plan.cluster}", summary, tables)

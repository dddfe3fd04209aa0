"""`trainyard simulate`: predict what one step of a plan takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from trainyard.cli.outputs import Output
from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.cli.step_options import OptimizerOptions

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(OptimizerOptions, Common):
    """Predict what one step of a saved plan takes, on its cluster or on another of at least as many devices."""

    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """File that `trainyard plan --save` wrote, or one in its form."""
    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """The model, if it is not the one that the plan names, or is a Python file: a plan runs none by itself."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="C")] = None
    """Another cluster."""
    show: Literal["plan", "choices", "routines"] = "plan"
    """choices: also how every op is cut, as a plan can say it. routines: also every op that each rank runs, in order."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with the timeline, memory over time and where the time goes."""
    perfetto: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write the timeline in the form that Perfetto and chrome://tracing open."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate."""
    from trainyard.job.plan import load_plan, model_for

    plan = load_plan(options.plan)  # before PyTorch is loaded, which takes seconds
    model_for(plan, options.model)
    with screen.waiting("loading PyTorch"):
        from trainyard.job.planning import load_model, simulate_task, task_of
    from trainyard.report.prediction import simulation_document, simulation_facts
    from trainyard.report.tables import facts_table

    with screen.waiting("simulating") as progress:
        model = None if options.model is None else load_model(options.model)
        task = task_of(plan, model, options.optimizer_config(options.model))
        simulation = simulate_task(plan, task, options.cluster, progress)
    if options.html is not None:
        from trainyard.report.plan_page import plan_page

        screen.keep(plan_page(plan, simulation), options.html)
    if options.perfetto is not None:
        from trainyard.report.trace import chrome_trace

        screen.keep(json.dumps(chrome_trace(simulation.timeline)), options.perfetto, "timeline")
    where = (
        ()
        if options.cluster is None
        else (f"Simulated on {options.cluster}, not on the cluster of the plan.",)
    )
    body = (*where, plan.explain(), "", facts_table("predicted", simulation_facts(simulation)))
    document = {"plan": plan.to_text(), **simulation_document(simulation)}
    if options.show == "plan":
        return Outcome(document, body)
    from trainyard.report.routines import show

    text = show(options.show, plan, task)
    return Outcome(document | {options.show: text}, (*body, "", text))

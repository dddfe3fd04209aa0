"""`trainyard plan`: find a plan for a model on a cluster, and say why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import RenderableType

from trainyard.cli.bounds import ROWS
from trainyard.cli.outputs import Output, writing
from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.cli.step_options import Precision, StepOptions

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(StepOptions, Common):
    """Find a plan for a model on a cluster, and say why."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Name of a model such as gpt2, a Python file that defines model(), or a Hugging Face config.json."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """Cluster to plan for: NODESxDEVICESxNAME such as 4x8xA100-80G, local:2 (measured), or a YAML file."""
    strategies: Annotated[str, tyro.conf.arg(metavar="auto|A+B")] = "auto"
    """Joined by + and applied left to right: auto, which searches, and published systems."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="N"), ROWS] = None
    """Rows of the batch of one step, for a model by name."""
    dtype: Precision = "float32"
    show: Literal["plan", "choices", "routines"] = "plan"
    """plan: what was decided and what it takes. choices: also how every op is cut, as a plan can say it. routines: also
    every op that each rank runs, in order."""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write the plan to this file; simulate and run read it."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with the timeline of a step, memory over time, where the time goes, and why this plan."""


def act(options: Options, screen: Screen) -> Outcome:
    """Plan."""
    from trainyard.hardware import parse_cluster

    place = parse_cluster(options.cluster)  # before PyTorch is loaded, which takes seconds
    place.require_known()
    with screen.waiting("loading PyTorch"):
        from trainyard.job.plan import DoesNotFitError
        from trainyard.job.planning import load_model, plan
    from trainyard.report.prediction import (
        does_not_fit,
        planned_document,
        runners_up_table,
        simulation_facts,
    )
    from trainyard.report.tables import facts_table

    try:
        with screen.waiting("planning") as progress:
            found = plan(
                load_model(options.model, options.rows),
                place,
                options.strategies,
                options.dtype,
                progress,
                options.statistics,
                optimizer=options.optimizer_config(options.model),
            )
    except DoesNotFitError as error:
        document = {"model": options.model, "cluster": options.cluster, "fits": False, "reason": str(error)}
        return Outcome(document, failure=str(error))
    if options.save is not None:
        with writing("plan", options.save):
            found.plan.save(options.save)
        screen.say(f"saved to {options.save}")
    if options.html is not None:
        from trainyard.report.plan_page import plan_page

        screen.keep(plan_page(found.plan, found.simulation, found.runners_up), options.html)
    body: list[RenderableType] = [
        found.plan.explain(),
        "",
        facts_table("predicted", simulation_facts(found.simulation)),
    ]
    if found.runners_up:
        body += ["", runners_up_table(found.runners_up, found.simulation)]
    document = dict(planned_document(found))
    if options.show != "plan":
        from trainyard.report.routines import show

        text = show(options.show, found.plan, found.task)
        document |= {options.show: text}
        body += ["", text]
    return Outcome(document, body, does_not_fit(found.plan, found.simulation))

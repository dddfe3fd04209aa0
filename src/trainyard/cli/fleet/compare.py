"""`trainyard fleet compare`: policies over many drawn workloads, with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.screen import Common, Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Rank policies over workloads drawn from published distributions, and say how sure the ranking is."""

    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICES or NODESxDEVICESxTYPE, pools joined by +."""
    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "fifo,srtf,tiresias"
    """Policies, separated by commas; options in parentheses. FILE.py:NAME is one of your own."""
    workload: Annotated[str, tyro.conf.arg(metavar="NAME")] = "philly"
    """Whose jobs to draw: philly or helios."""
    jobs: Annotated[int, tyro.conf.arg(metavar="N")] = 300
    """Jobs of each workload."""
    load: Annotated[float, tyro.conf.arg(metavar="X")] = 0.8
    """Work that comes in, over what the cluster can do."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    """Workloads to draw."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write a page with a figure."""


def act(options: Options, screen: Screen) -> Outcome:
    """Compare."""
    from trainyard.fleet.site import FleetError, Site
    from trainyard.fleet.study import drawn_jobs, study
    from trainyard.report.fleet_study import standing_document, study_page, study_table

    if options.seeds < 2:
        raise FleetError(f"an interval needs at least 2 seeds, got {options.seeds}")
    site = Site.parse(options.cluster)
    drawn = partial(drawn_jobs, options.workload, options.jobs, options.load, site)
    drawn(0)  # what is wrong with it is said before anything starts
    with screen.waiting("simulating") as change:
        standings = study(
            options.policy,
            drawn,
            site,
            range(options.seeds),
            lambda done, count: change(f"simulating, {done} of {count} runs done"),
        )
    title = f"{options.jobs} jobs of {options.workload} at load {options.load:g} on {site.name}, {options.seeds} seeds"
    if options.html is not None:
        screen.keep(study_page(title, standings), options.html)
    document = {
        "workload": options.workload,
        "cluster": site.name,
        "load": options.load,
        "num_jobs": options.jobs,
        "num_seeds": options.seeds,
        "policies": [standing_document(standing) for standing in standings],
    }
    return Outcome(document, (study_table(title, standings),))

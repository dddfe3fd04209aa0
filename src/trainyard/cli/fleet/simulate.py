"""`trainyard fleet simulate`: run a trace of jobs under one or more policies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.bounds import SEED
from trainyard.cli.fleet.simulating import SimulatingOptions
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True, kw_only=True)
class Options(SimulatingOptions):
    """Run a trace of jobs on a cluster that you need not have, under one or more policies."""

    trace: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Jobs: your own CSV, or one of the public formats (see the guide)."""
    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "fifo"
    """Policies, separated by commas; options in parentheses. FILE.py:NAME is one of your own."""
    seed: Annotated[int, tyro.conf.arg(metavar="N"), SEED] = 0
    """Seed of failures and stragglers."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate."""
    from trainyard.fleet.catalog import split_policies
    from trainyard.fleet.setting import setting_of
    from trainyard.fleet.site import Site
    from trainyard.report.fleet_league import fleet_table, ranked_runs, refusals, run_document

    site = Site.parse(options.cluster)
    settings = [
        setting_of(name, options.placement, options.round_s) for name in split_policies(options.policy)
    ]
    conditions, runs = options.conditions(options.seed), []
    for setting in settings:
        jobs = options.read(options.trace, site)
        with screen.waiting(f"simulating {setting.text}"):
            runs.append(setting.simulate(jobs, site, keep_spans=options.html is not None, **conditions))
    title = f"{options.trace.name} on {site.name}: {runs[0].num_jobs} jobs, {site.num_devices} devices"
    if options.html is not None:
        from trainyard.report.fleet_page import fleet_page

        facts = {"trace": options.trace.name, "cluster": site.name, "best": ranked_runs(runs)[0].policy}
        screen.keep(fleet_page(title, runs, facts, jobs.left_out), options.html)
    document = {
        "trace": str(options.trace),
        "cluster": site.name,
        "num_devices": site.num_devices,
        "rows": jobs.left_out.document(),
        "runs": [run_document(run) for run in ranked_runs(runs)],
    }
    if jobs.left_out.warning:
        screen.say(jobs.left_out.warning)
    return Outcome(document, (fleet_table(title, runs), *refusals(runs), *jobs.left_out.lines()))

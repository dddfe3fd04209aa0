"""`trainyard fleet simulate`: run a trace of jobs under one or more policies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.fleet.costs import RestartS, StartS
from trainyard.cli.screen import Common, Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Run a trace of jobs on a cluster that you need not have, under one or more policies."""

    trace: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Jobs: your own CSV, or one of the public formats (see the guide)."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICES or NODESxDEVICESxTYPE, pools joined by +, such as 2x8xV100+4x4xK80; after an @, what else nodes have:
    16x4@24cpu,500GB,4/rack."""
    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "fifo"
    """Policies, separated by commas; options in parentheses. FILE.py:NAME is one of your own."""
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format of the trace; by default recognised by its contents."""
    profiles: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Measured speeds that the trace refers to: a file for those of Gavel, Shockwave and Synergy, a folder for those of
    Pollux and Sia, which need it, and for those of ElasticFlow. Sia's are by device type, as the cluster names them."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first jobs."""
    placement: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """How devices are chosen for jobs: anywhere, consolidated, packed, spread or emptiest; by default as the policy's
    paper does. Not for policies that choose them themselves."""
    round_s: Annotated[float | None, tyro.conf.arg(metavar="S")] = None
    """Decide every so many seconds, instead of as often as the policy does by its own options."""
    start_s: StartS = 0.0
    restart_s: RestartS = 0.0
    failure_every_s: Annotated[float, tyro.conf.arg(metavar="S")] = float("inf")
    """Mean time between failures of one device; its job goes back to its last checkpoint."""
    node_failure_every_s: Annotated[float, tyro.conf.arg(metavar="S")] = float("inf")
    """Mean time between failures of one node; its jobs go back to their last checkpoints, and wait for devices."""
    node_repair_s: Annotated[float, tyro.conf.arg(metavar="S")] = 3600.0
    """Mean time until such a node is back."""
    checkpoint_every_s: Annotated[float, tyro.conf.arg(metavar="S")] = 600.0
    """Time between checkpoints of a job."""
    stragglers: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.0
    """Share of all starts of jobs that are half as fast as they should be."""
    crowding: Annotated[float, tyro.conf.arg(metavar="N")] = float("inf")
    """Devices of a node that work at full speed beside each other; more of them share what the node has."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Of failures and stragglers."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write a page with figures."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate."""
    from trainyard.fleet.catalog import split_policies
    from trainyard.fleet.crowding import Crowding
    from trainyard.fleet.hazards import Hazards
    from trainyard.fleet.holdings import Costs
    from trainyard.fleet.setting import setting_of
    from trainyard.fleet.site import Site
    from trainyard.fleet.workload.read import read_workload
    from trainyard.report.fleet_league import fleet_table, ranked_runs, refusals, run_document

    site = Site.parse(options.cluster)
    settings = [
        setting_of(name, options.placement, options.round_s) for name in split_policies(options.policy)
    ]
    hazards = Hazards(
        failure_every_s=options.failure_every_s,
        checkpoint_every_s=options.checkpoint_every_s,
        node_failure_every_s=options.node_failure_every_s,
        node_repair_s=options.node_repair_s,
        straggler_share=options.stragglers,
        seed=options.seed,
    )
    costs = Costs(options.restart_s, options.start_s)
    runs = []
    for setting in settings:
        jobs = read_workload(
            options.trace, options.format, options.profiles, options.limit, site.device_types
        )
        with screen.waiting(f"simulating {setting.text}"):
            runs.append(
                setting.simulate(
                    jobs,
                    site,
                    costs=costs,
                    hazards=hazards,
                    crowding=Crowding(options.crowding),
                    keep_spans=options.html is not None,
                )
            )
    title = f"{options.trace.name} on {site.name}: {runs[0].num_jobs} jobs, {site.num_devices} devices"
    if options.html is not None:
        from trainyard.report.fleet_page import fleet_page

        facts = {"trace": options.trace.name, "cluster": site.name, "best": ranked_runs(runs)[0].policy}
        screen.keep(fleet_page(title, runs, facts), options.html)
    document = {
        "trace": str(options.trace),
        "cluster": site.name,
        "num_devices": site.num_devices,
        "runs": [run_document(run) for run in ranked_runs(runs)],
    }
    return Outcome(document, (fleet_table(title, runs), *refusals(runs)))

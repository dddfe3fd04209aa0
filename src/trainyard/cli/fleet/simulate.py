"""`trainyard fleet simulate`: run a trace of jobs under one or more policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.bounds import SEED
from trainyard.cli.fleet.simulating import SimulatingOptions
from trainyard.cli.fleet.what_if import Speeds, WhatIfs
from trainyard.cli.outputs import Output, writing
from trainyard.cli.screen import Outcome, Screen

if TYPE_CHECKING:
    from trainyard.fleet.api import FleetComparison
    from trainyard.fleet.records import FleetRun
    from trainyard.fleet.workload.job import Job
    from trainyard.hardware.cluster import Cluster

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
    what_if: WhatIfs = ()
    """Changes to compare with the cluster as it is; separated by ; or given as several options. Nodes: +4x8xH100,
    -2x8xV100+2x8xA100. A time after which jobs are killed: limit=24h. Priorities by size: priority=1:10,2-8:5. Most
    devices of an account: quota=NAME:8, with borrow=all also those that other accounts leave unused. Changes with spaces
    between them are made at once."""
    speed: Speeds = ()
    """Speeds of device types, as multiples of the speed of the devices for which the lengths of jobs are known, such as
    V100=0.5,H100=2; other types have 1. Jobs with speeds of their own keep these."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures."""
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a CSV with one line for every job under every policy. A second file, whose name ends in .series.csv, has the
    devices in use and the waiting jobs over time."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate."""
    from trainyard.compiling import compiling_is_said
    from trainyard.fleet.api import none_ran
    from trainyard.fleet.records import ranked_runs
    from trainyard.fleet.scheduler import baseline_of
    from trainyard.hardware.parse import parse_cluster
    from trainyard.report.fleet_groups import losers_table, parts_of, winners_table
    from trainyard.report.fleet_league import fleet_tables, refusals, remarks, run_document
    from trainyard.report.fleet_page import fleet_page

    cluster = parse_cluster(options.cluster)
    baseline_of(options.policy, options.baseline)
    others = _other_clusters(options, cluster)
    workload = options.read(options.trace, cluster)
    jobs = list(workload)
    with compiling_is_said(screen.say, "the simulator"):
        found = _simulated(options, screen, jobs, cluster)
    runs, cannot, ignored = found.runs, found.cannot_run, found.ignored
    for warning in filter(None, (workload.left_out.warning, *_doubts(options, jobs, cluster, others))):
        screen.say(warning)
    document = {
        "trace": str(options.trace),
        "cluster": cluster.name,
        "num_devices": cluster.num_devices,
        "zero_s": workload.zero_s,
        "rows": workload.left_out.document("jobs"),
        "cannot_run": [{"policy": each.text, "why": each.why} for each in cannot],
        "ignored": [each._asdict() for each in ignored],
    }
    if not runs:
        return Outcome(document | {"baseline": "", "runs": []}, refusals((), cannot), none_ran(cannot))
    by_name = {run.policy: run for run in runs if not run.what_if}
    base = by_name.get(baseline_of(options.policy, options.baseline, tuple(by_name)))
    parts = parts_of(runs, base)
    title = f"{options.trace.name} on {cluster.name}: {len(jobs)} jobs, {cluster.num_devices} devices"
    said = remarks(runs, cannot, jobs, ignored)
    if options.html is not None:
        facts = {"trace": options.trace.name, "cluster": cluster.name, "best": ranked_runs(runs)[0].policy}
        page = partial(fleet_page, baseline=base, cannot=cannot, parts=parts, zero=workload.zero)
        screen.keep(page(title, runs, facts, left_out=workload.left_out, remarks=said), options.html)
    if options.csv is not None:
        _write_csv(options.csv, screen, ranked_runs(runs))
    if base is None:
        screen.say(_without_baseline(options.baseline or ""))
    makers = (losers_table, winners_table) if options.what_if else (losers_table,)
    group_tables = () if base is None else filter(None, (make(parts, base) for make in makers))
    lines = (*said, *workload.left_out.lines())
    tables = fleet_tables(title, runs, base if options.baseline or options.what_if else None, cannot)
    return Outcome(
        document
        | {
            "baseline": base.policy if base is not None else "",
            "runs": [run_document(run, base, parts) for run in ranked_runs(runs)] if options.json else [],
        },
        (*tables, *group_tables, *lines),
        "" if any(run.names for run in runs) else f"no job of {options.trace} could run on {cluster.name}",
    )


def _doubts(
    options: Options, jobs: Sequence[Job], cluster: Cluster, others: Sequence[Cluster]
) -> tuple[str, ...]:
    """Return warnings of input that may be a mistake; a warning without a reason is empty."""
    from trainyard.fleet.place.auxiliary import memory_in_doubt, whole_nodes_in_doubt
    from trainyard.fleet.type_speeds import unknown_speeds_warning

    asked = memory_in_doubt(jobs, cluster), whole_nodes_in_doubt(jobs, cluster)
    return *asked, unknown_speeds_warning(jobs, cluster, others, dict(options.speed))


def _other_clusters(options: Options, cluster: Cluster) -> list[Cluster]:
    """Return the clusters of the what-ifs; wrong what-ifs and speeds are refused before the trace is read."""
    from trainyard.fleet.type_speeds import speeds_by_type
    from trainyard.fleet.what_if import parse_what_ifs

    others = [what_if.cluster(cluster) for what_if in parse_what_ifs(options.what_if)]
    speeds_by_type(dict(options.speed), [cluster, *others])
    return others


def _simulated(options: Options, screen: Screen, jobs: Sequence[Job], cluster: Cluster) -> FleetComparison:
    """The jobs under every policy, with progress on the screen."""
    from trainyard.fleet.api import simulate

    with screen.waiting("simulating") as progress:
        return simulate(
            jobs,
            cluster,
            options.policy,
            placement=options.placement,
            round_s=options.round,
            what_if=options.what_if,
            speeds=dict(options.speed),
            strict=options.strict,
            keep_spans=options.html is not None,
            tell=lambda policy: progress(f"simulating {policy}", ""),
            **options.conditions(options.seed),
        )


def _without_baseline(name: str) -> str:
    """Return the message that there is no run to compare the others with."""
    from trainyard.fleet.recorded import AS_RECORDED

    why = "the trace does not say when jobs started" if name == AS_RECORDED else "it was refused"
    return f"warning: nothing is compared with --baseline {name!r}: {why}"


def _write_csv(path: Path, screen: Screen, runs: Sequence[FleetRun]) -> None:
    """Write a table of all jobs, and one of what changes over time."""
    from trainyard.report.fleet_jobs import series_path, write_jobs, write_series

    with writing("table of jobs", path):
        write_jobs(path, runs)
        write_series(series_path(path), runs)
    screen.say(f"jobs written to {path}, and series over time to {series_path(path)}")

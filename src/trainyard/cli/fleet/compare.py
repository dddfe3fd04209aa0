"""`trainyard fleet compare`: policies over many drawn workloads, with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import JOBS, LOAD, SEEDS
from trainyard.cli.fleet.simulating import SimulatingOptions
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen

if TYPE_CHECKING:
    from trainyard.fleet.workload.drawn import Draw
    from trainyard.hardware.cluster import Cluster
    from trainyard.reading.left_out import LeftOut

__all__ = ["Options", "act"]


@dataclass(frozen=True, kw_only=True)
class Options(SimulatingOptions):
    """Rank policies over workloads drawn by chance, and say how sure the ranking is."""

    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "fifo,srtf,tiresias"
    """Policies, separated by commas; options in parentheses. FILE.py:NAME is one of your own."""
    trace: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw from the jobs of a trace: whenever one arrives there, any of them does, as likely as the others."""
    workload: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Without a trace, whose published distribution to draw from: philly (the default), helios, tiresias or gavel, which
    needs --profiles."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N"), JOBS] = None
    """Jobs of each such workload; 300 by default."""
    load: Annotated[float | None, tyro.conf.arg(metavar="X"), LOAD] = None
    """Work that comes in with them, over what the cluster can do; 0.8 by default."""
    deadlines: Annotated[str, tyro.conf.arg(metavar="LOW,HIGH")] = ""
    """Give jobs that have none a deadline: their time alone after they arrive, times a number drawn evenly between two;
    0.5,1.5 in ElasticFlow's paper."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N"), SEEDS] = 10
    """Workloads to draw, each with what goes wrong."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with a figure, and tables by virtual cluster."""


def act(options: Options, screen: Screen) -> Outcome:
    """Compare."""
    from trainyard.compiling import compiling_is_said
    from trainyard.fleet.api import none_ran
    from trainyard.fleet.study import study
    from trainyard.hardware.parse import parse_cluster
    from trainyard.report.fleet_league import refusals
    from trainyard.report.fleet_study import standing_document, study_page, study_tables

    cluster = parse_cluster(options.cluster)
    slack = _deadlines(options)
    drawn, facts, left_out = _workload(options, cluster, slack)
    drawn(0)  # what is wrong with it is said before anything starts
    with compiling_is_said(screen.say, "the simulator"), screen.waiting("simulating") as progress:
        found = study(
            options.policy,
            drawn,
            cluster,
            range(options.seeds),
            lambda done, count: progress("simulating", f"{done} of {count} runs done"),
            baseline=options.baseline,
            place=options.placement,
            round_s=options.round,
            strict=options.strict,
            **options.conditions(0),
        )
    title = _title(facts, slack, f"{cluster.name}, {options.seeds} seeds")
    if options.html is not None and found.standings:
        screen.keep(study_page(title, found), options.html)
    document = {
        **facts,
        "deadlines": slack,
        "cluster": cluster.name,
        "num_seeds": options.seeds,
        "baseline": found.baseline,
        "policies": [standing_document(standing) for standing in found.standings],
        "cannot_run": [{"policy": each.text, "why": each.why} for each in found.refused],
        "ignored": [each._asdict() for each in found.ignored],
    }
    body = study_tables(title, found) if found.standings else refusals((), found.refused)
    if left_out is not None:
        document, body = document | {"rows": left_out.document("jobs")}, (*body, *left_out.lines())
        if left_out.warning:
            screen.say(left_out.warning)
    return Outcome(document, body, "" if found.standings else none_ran(found.refused))


def _workload(
    options: Options, cluster: Cluster, slack: tuple[float, float] | None
) -> tuple[Draw, dict[str, Any], LeftOut | None]:
    """Jobs of a seed, what they are, and the rows of the trace that gave none, if there is one."""
    from trainyard.fleet.errors import FleetError
    from trainyard.fleet.workload.drawn import LOAD, NUM_JOBS, WORKLOAD, draw_of

    if options.trace is None:
        if (options.format, options.limit, options.timezone) != (None, None, None):
            raise FleetError(
                "--format, --limit and --timezone are about a trace; give --trace, or leave them out"
            )
        name = WORKLOAD if options.workload is None else options.workload
        count = NUM_JOBS if options.jobs is None else options.jobs
        load = LOAD if options.load is None else options.load
        draw = draw_of(
            cluster, None, slack, workload=name, num_jobs=count, load=load, profiles=options.profiles
        )
        return draw, {"workload": name, "num_jobs": count, "load": load}, None
    if (options.workload, options.jobs, options.load) != (None, None, None):
        raise FleetError("--trace brings its jobs; leave --workload, --jobs and --load out, or --trace")
    workload = options.read(options.trace, cluster)
    jobs = list(workload)
    facts = {"workload": str(options.trace), "num_jobs": len(jobs), "load": None}
    return draw_of(cluster, jobs, slack), facts, workload.left_out


def _deadlines(options: Options) -> tuple[float, float] | None:
    """Return the bounds of the jobs' slack, if deadlines are asked for."""
    from trainyard.fleet.errors import FleetError

    if not options.deadlines:
        return None
    try:
        least, most = map(float, options.deadlines.split(","))
    except ValueError:
        raise FleetError(
            f"--deadlines {options.deadlines!r} is not two numbers separated by a comma; write for example 0.5,1.5"
        ) from None
    return least, most


def _title(facts: dict[str, Any], slack: tuple[float, float] | None, where: str) -> str:
    name, count, load = facts.values()
    jobs = (
        f"{count} jobs of {name} at load {load:g}" if load else f"{count} jobs drawn from {Path(name).name}"
    )
    late = f", deadlines after {slack[0]:g} to {slack[1]:g} lengths" if slack else ""
    return f"{jobs}{late} on {where}"

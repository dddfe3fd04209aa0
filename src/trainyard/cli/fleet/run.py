"""`trainyard fleet run`: train the jobs of a file for real, and put what was predicted beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.fleet.costs import Restart, Start
from trainyard.cli.fleet.running import RunningOptions
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen

if TYPE_CHECKING:
    from trainyard.fleet.mechanism.costs import Costs
    from trainyard.fleet.records import FleetRun
    from trainyard.fleet.run.directory_backend import DirectoryBackend
    from trainyard.fleet.workload.job import Job

__all__ = ["Options", "act", "outcome_of"]


@dataclass(frozen=True, kw_only=True)
class Options(RunningOptions):
    """Run the trainings and commands of a file for real under a policy; each arrives when the file says."""

    trace: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Jobs in Trainyard's own form (see the guide): trainings (steps, model, batch_size) or commands."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first jobs."""
    start: Start = 0.0
    restart: Restart = 0.0
    measure: bool = False
    """Before, let every training run alone for some seconds on the backend; predict with the speeds and times found."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures of both."""


def act(options: Options, screen: Screen) -> Outcome:
    """Predict, run, compare."""
    from trainyard.compiling import compiling_is_said
    from trainyard.fleet.run.backend import BackendOptions
    from trainyard.fleet.run.backends import check_runnable, make_backend
    from trainyard.fleet.run.measure import measured_document
    from trainyard.fleet.run.only_scheduler import only_scheduler
    from trainyard.fleet.run.run_fleet import run_fleet
    from trainyard.fleet.scheduler import ignored_by, scheduler_of
    from trainyard.fleet.workload.read import read_workload
    from trainyard.hardware.parse import parse_cluster
    from trainyard.private import only_for_user
    from trainyard.report.fleet_league import ignored_lines

    cluster = parse_cluster(options.cluster)
    scheduler = scheduler_of(options.policy, options.placement, options.round)
    costs = _costs(options)
    # Whoever runs jobs trusts what they run.
    jobs = tuple(read_workload(options.trace, limit=options.limit, strict=True, own_files=True))
    check_runnable(jobs, cluster, scheduler.policy, options.limits)
    for line in ignored_lines(ignored_by([scheduler], jobs)):
        screen.say(line)
    folder = options.folder.resolve()
    with only_for_user(), only_scheduler(folder, folder):
        how = BackendOptions(shares=scheduler.shares, limits=options.limits)
        backend = make_backend(options.backend, cluster, folder, how)
        jobs, costs = _with_speeds(jobs, costs, backend, options.measure, screen)
        with compiling_is_said(screen.say, "the simulator"), screen.waiting("predicting"):
            predicted = scheduler.simulate(
                jobs, cluster, costs=costs, crowding=backend.crowding, keep_spans=options.html is not None
            )
        screen.say(f"{len(jobs)} jobs; predicted to be done after {predicted.makespan_s:.1f} s")
        measured = run_fleet(
            jobs,
            cluster,
            scheduler.policy,
            backend,
            name=scheduler.text,
            place=scheduler.place,
            rounds=scheduler.rounds,
            tell=lambda event: screen.say(str(event)),
        )
    title = f"{options.trace.name} on {cluster.name} under {scheduler.text}: predicted / measured"
    facts = {
        "trace": options.trace.name,
        "cluster": cluster.name,
        "policy": scheduler.text,
        "backend": options.backend,
    }
    if options.html is not None:
        screen.keep(_page(title, predicted, measured, facts), options.html)
    document: dict[str, Any] = facts | {"trace": str(options.trace)}
    if options.measure:
        document["alone"] = measured_document(jobs, costs)
    return outcome_of(predicted=predicted, measured=measured, title=title, facts=document)


def outcome_of(*, predicted: FleetRun, measured: FleetRun, title: str, facts: dict[str, Any]) -> Outcome:
    """Put the run as it was predicted beside the run as it was; the document begins with these facts."""
    from trainyard.report.fleet_league import run_document
    from trainyard.report.fleet_measured import measured_table, measurement_document

    runs = {
        "jobs": measurement_document(predicted, measured),
        "predicted": run_document(predicted),
        "measured": run_document(measured),
    }
    return Outcome(facts | runs, (measured_table(title, predicted, measured),))


def _costs(options: Options) -> Costs:
    """Return the times of starts that are given."""
    from trainyard.fleet.errors import FleetError
    from trainyard.fleet.mechanism.costs import Costs

    costs = Costs(options.restart, options.start)
    if options.measure and costs != Costs():
        raise FleetError(
            "--measure finds out what starts take; leave --start and --restart out, or --measure"
        )
    return costs


def _with_speeds(
    jobs: tuple[Job, ...], costs: Costs, backend: DirectoryBackend, measure: bool, screen: Screen
) -> tuple[tuple[Job, ...], Costs]:
    """Return jobs with the speeds of a ready backend, and the costs of starts there."""
    from trainyard.fleet.run.measure import measured_alone
    from trainyard.fleet.workload.training_job import on_places

    backend.warm_up()
    if not measure:
        return tuple(on_places(job, backend.core_part) for job in jobs), costs
    with screen.waiting("measuring") as progress:
        return measured_alone(jobs, backend, tell=partial(progress, "measuring"))


def _page(title: str, predicted: FleetRun, measured: FleetRun, facts: dict[str, str]) -> str:
    from dataclasses import replace

    from trainyard.report.fleet_page import fleet_page

    named = [
        replace(run, policy=f"{measured.policy}, {how}")
        for run, how in ((measured, "measured"), (predicted, "predicted"))
    ]
    return fleet_page(title, named, facts)

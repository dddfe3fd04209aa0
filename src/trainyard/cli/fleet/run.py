"""`trainyard fleet run`: train the jobs of a file for real, and put what was predicted beside what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import DURATION
from trainyard.cli.fleet.run_log import RunLog, counted
from trainyard.cli.fleet.running import RunningOptions
from trainyard.cli.outputs import Output
from trainyard.cli.quantities import DurationOrZero
from trainyard.cli.screen import Outcome, Screen

if TYPE_CHECKING:
    from trainyard.fleet.mechanism.costs import Costs
    from trainyard.fleet.records import FleetRun
    from trainyard.fleet.run.directory_backend import DirectoryBackend
    from trainyard.fleet.scheduler import Scheduler
    from trainyard.fleet.workload.job import Job
    from trainyard.progress import Progress

__all__ = ["Options", "act", "outcome_of"]


@dataclass(frozen=True, kw_only=True)
class Options(RunningOptions):
    """Run the trainings and commands of a file for real under a policy; each arrives when the file says."""

    trace: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Jobs in Trainyard's own form (see the guide): trainings (steps, model, batch_size) or commands."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first jobs."""
    start: Annotated[DurationOrZero | None, DURATION] = None
    """Predicted time that a job needs to start before its first step; by default that of --restart. If neither is given,
    one start is measured on the backend."""
    restart: Annotated[DurationOrZero | None, DURATION] = None
    """Predicted time that a job loses when it restarts, on other devices or after waiting; by default that of --start."""
    measure: bool = False
    """First run every training alone for some seconds on the backend; predict with the measured speeds and starts."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures of the prediction and the run."""


def act(options: Options, screen: Screen) -> Outcome:
    """Predict, run, compare."""
    with screen.waiting("reading the jobs") as progress:
        return _compare(options, screen, progress)


def _compare(options: Options, screen: Screen, progress: Progress) -> Outcome:
    """Predict, run, compare; report progress from the first second."""
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
    _check_costs(options)
    # Whoever runs jobs trusts what they run.
    jobs = tuple(read_workload(options.trace, limit=options.limit, strict=True, own_files=True))
    check_runnable(counted(jobs, "checking the jobs", progress), cluster, scheduler.policy, options.limits)
    for line in ignored_lines(ignored_by([scheduler], jobs, cluster)):
        screen.say(line)
    folder = options.folder.resolve()
    with only_for_user(), only_scheduler(folder, folder):
        progress("starting the backend", options.backend)
        how = BackendOptions(shares=scheduler.shares, limits=options.limits)
        backend = make_backend(options.backend, cluster, folder, how)
        backend.warm_up()
        jobs, costs = _with_costs(jobs, options, backend, screen, progress)
        predicted = _predicted(jobs, scheduler, backend, costs, options, screen, progress)
        measured = run_fleet(
            jobs,
            cluster,
            scheduler.policy,
            backend,
            name=scheduler.text,
            place=scheduler.place,
            rounds=scheduler.rounds,
            tell=RunLog(len(jobs), screen.say, progress).hear,
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
    document: dict[str, Any] = facts | {"trace": str(options.trace), "costs": asdict(costs)}
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


def _check_costs(options: Options) -> None:
    """Refuse --start or --restart together with --measure."""
    from trainyard.fleet.errors import FleetError

    if options.measure and (options.start, options.restart) != (None, None):
        raise FleetError(
            "--measure measures how long starts take; leave out --start and --restart, or --measure"
        )


def _with_costs(
    jobs: tuple[Job, ...], options: Options, backend: DirectoryBackend, screen: Screen, progress: Progress
) -> tuple[tuple[Job, ...], Costs]:
    """Return jobs with their speeds on a backend, and the costs of starts there: from the options, or measured."""
    from trainyard.fleet.mechanism.costs import Costs
    from trainyard.fleet.run.measure import measured_alone
    from trainyard.fleet.run.startup import measured_start
    from trainyard.fleet.workload.training_job import on_places

    if options.measure:
        return measured_alone(jobs, backend, tell=screen.say, progress=progress)
    jobs = tuple(on_places(job, backend.core_part) for job in jobs)
    given = [each_s for each_s in (options.restart, options.start) if each_s is not None]
    if given or not jobs:
        return jobs, Costs(given[0], given[-1]) if given else Costs()
    costs = measured_start(jobs, backend, tell=screen.say, progress=progress)
    if any(job.command is not None for job in jobs):
        screen.say(
            "not predicted: the start of a command itself, such as loading PyTorch, unless length_s includes it"
        )
    return jobs, costs


def _predicted(
    jobs: tuple[Job, ...],
    scheduler: Scheduler,
    backend: DirectoryBackend,
    costs: Costs,
    options: Options,
    screen: Screen,
    progress: Progress,
) -> FleetRun:
    """Simulate the run, and print when it is predicted to end."""
    from trainyard.compiling import compiling_is_said
    from trainyard.fleet.workload.training_job import kinds_of, predict_speeds

    if not options.measure:
        for job in counted(kinds_of(jobs), "predicting speeds", progress):
            predict_speeds(job, backend.cluster)
    progress("simulating the run", "")
    with compiling_is_said(screen.say, "the simulator"):
        predicted = scheduler.simulate(
            jobs, backend.cluster, costs=costs, crowding=backend.crowding, keep_spans=options.html is not None
        )
    screen.say(f"{len(jobs)} jobs; predicted to be done after {predicted.makespan_s:.1f} s")
    return predicted


def _page(title: str, predicted: FleetRun, measured: FleetRun, facts: dict[str, str]) -> str:
    from dataclasses import replace

    from trainyard.report.fleet_page import fleet_page

    named = [
        replace(run, policy=f"{measured.policy}, {how}")
        for run, how in ((measured, "measured"), (predicted, "predicted"))
    ]
    return fleet_page(title, named, facts)

"""Policies on the same workload, ranked: the tables for the terminal, and what they say of every run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from trainyard.fleet.groups import beside
from trainyard.fleet.records import FleetRun, Unfit, ranked_runs
from trainyard.fleet.scheduler import CannotRun, Ignored
from trainyard.fleet.workload.job import Job
from trainyard.report.fleet_groups import Part
from trainyard.report.fleet_jobs import job_columns
from trainyard.report.tables import make_table
from trainyard.report.units import duration_text, percent_text

__all__ = [
    "costs_table",
    "devices_table",
    "fleet_tables",
    "ignored_lines",
    "league",
    "left_out_lines",
    "refusals",
    "remarks",
    "run_document",
]

Columns = tuple[str, ...]
Rows = tuple[tuple[str, ...], ...]
_Cell = tuple[str, Callable[[FleetRun], str]]
_MOST_NAMED = 3


def league(
    runs: Sequence[FleetRun], baseline: FleetRun | None = None, cannot: Sequence[CannotRun] = ()
) -> tuple[Columns, Rows]:
    """Columns and rows of the league table, best first, and those that cannot run.

    JCT is the time from a job's arrival to its end, and waiting the part of it without devices; slowdown is JCT over the
    time that the job takes alone, and unfair the largest ratio of it to what it would be with an equal share of the
    cluster. What-ifs are beside the baseline, not the best. Deadlines have a column only where there are any; who misses
    one is late or was refused.
    """
    order = ranked_runs(runs)
    best_s = order[0].mean_completion_s if order else 0.0
    cells: list[_Cell] = [("mean JCT", lambda run: duration_text(run.mean_completion_s))]
    if baseline is None or not any(run.what_if for run in order):
        cells.append(("to best", lambda run: f"{run.mean_completion_s / best_s:.2f}x" if best_s else ""))
    if baseline is not None:
        cells.append((f"to {baseline.policy}", lambda run: f"{beside(run, baseline):.2f}x"))
    cells += [
        ("median", lambda run: duration_text(run.percentile_s(50))),
        ("p99", lambda run: duration_text(run.percentile_s(99))),
        ("waiting", lambda run: duration_text(run.mean_waiting_s)),
        ("first wait", lambda run: duration_text(run.mean_first_wait_s)),
        ("slowdown", lambda run: f"{run.mean_slowdown:.1f}x"),
        ("unfair", lambda run: f"{run.worst_unfairness:.1f}x"),
    ]
    rows = [(run.policy, *(cell(run) if run.jobs else "" for _, cell in cells)) for run in order]
    columns: Columns = ("policy", *(name for name, _ in cells))
    if any(np.isfinite((*run.deadline_s, *run.refused_deadline_s)).any() for run in order):
        columns = (*columns, "missed")
        rows = [(*row, str(run.num_missed)) for row, run in zip(rows, order, strict=True)]
    rows += [(each.text, "refused", *("",) * (len(columns) - 2)) for each in cannot]
    return columns, tuple(rows)


def devices_table(runs: Sequence[FleetRun]) -> tuple[Columns, Rows]:
    """Columns and rows of what the devices did, in the same order.

    Busy is the share of their time in which jobs had them, and useful that in which these did work that counts. Where
    runs may have unlike clusters, devices are counted.
    """
    order = ranked_runs(runs)
    cells: list[_Cell] = [
        ("placement", lambda run: run.placement),
        ("makespan", lambda run: duration_text(run.makespan_s) if run.jobs else ""),
        ("busy", lambda run: percent_text(run.busy) if run.jobs else ""),
        ("useful", lambda run: percent_text(run.useful) if run.jobs else ""),
        ("preempted", lambda run: str(run.num_preemptions) if run.jobs else ""),
    ]
    if any(run.what_if for run in order):
        cells.insert(1, ("devices", lambda run: f"{run.cluster.num_devices:,}"))
    if any(run.queues for run in order):
        cells.insert(1, ("queues", lambda run: run.queues))
    if any(run.num_killed for run in order):
        cells.append(("killed", lambda run: str(run.num_killed)))
    if any(run.num_moves for run in order):
        cells.append(("moved", lambda run: str(run.num_moves) if run.jobs else ""))
    if any(run.num_failures for run in order):
        cells.append(("failures", lambda run: str(run.num_failures)))
    if any(run.refused for run in order):
        cells.append(("refused", lambda run: str(len(run.refused))))
    if any(run.left_out for run in order):
        cells.append(("left out", lambda run: str(len(run.left_out))))
    rows = tuple((run.policy, *(cell(run) for _, cell in cells)) for run in order)
    return ("policy", *(name for name, _ in cells)), rows


def costs_table(runs: Sequence[FleetRun]) -> tuple[Columns, Rows] | None:
    """Columns and rows of what runs cost, in the same order, as in `run_costs`; None where the cluster has no prices."""
    if not any(run.cluster.prices for run in runs):
        return None
    rows = tuple((run.policy, *map(_cost_text, run.costs.values())) for run in ranked_runs(runs))
    return ("policy", "of devices in use", "of the cluster"), rows


def _cost_text(cost: float | None) -> str:
    return "" if cost is None else f"{cost:,.2f}"


def fleet_tables(
    title: str,
    runs: Sequence[FleetRun],
    baseline: FleetRun | None = None,
    cannot: Sequence[CannotRun] = (),
) -> tuple[Table, ...]:
    """One row per policy in each, best first: what it is for jobs, what the devices did, and what they cost."""
    costs = costs_table(runs)
    return (
        make_table(title, *league(runs, baseline, cannot)),
        make_table("", *devices_table(runs), text_columns=3 if any(run.queues for run in runs) else 2),
        *(() if costs is None else (make_table("costs", *costs),)),
    )


def refusals(runs: Sequence[FleetRun], cannot: Sequence[CannotRun] = ()) -> tuple[str, ...]:
    """List the policies that cannot run, and for every policy the number of refused jobs and the first reason."""
    lines = [f"{each.text} refused: {each.why}" for each in cannot]
    for run in ranked_runs(runs):
        if run.refused:
            first = run.refused[:_MOST_NAMED]
            said = "; ".join(f"{name} ({why})" for name, why in first)
            more = f"; and {len(run.refused) - len(first)} more" if len(run.refused) > len(first) else ""
            lines.append(f"{run.policy} refused {len(run.refused)} of {run.num_jobs} jobs: {said}{more}")
    return tuple(lines)


def left_out_lines(runs: Sequence[FleetRun]) -> tuple[str, ...]:
    """Jobs that were left out because they can never run, by reason, and under which policies."""
    by_jobs: dict[tuple[Unfit, ...], list[FleetRun]] = {}
    for run in ranked_runs(runs):
        if run.left_out:
            by_jobs.setdefault(run.left_out, []).append(run)
    lines: list[str] = []
    for left_out, own in by_jobs.items():
        under = "" if len(own) == len(runs) else f" ({', '.join(run.policy for run in own)})"
        lines.append(f"left out{under}: {len(left_out):,} of {own[0].num_jobs:,} jobs")
        for reason, unfit in _by_reason(left_out).items():
            some = ", ".join(each.job.name for each in unfit[:_MOST_NAMED]) + ", ..." * (
                len(unfit) > _MOST_NAMED
            )
            lines.append(f"  {len(unfit):,} job{'s' * (len(unfit) > 1)}: {reason} ({some})")
    return tuple(lines)


def remarks(
    runs: Sequence[FleetRun],
    cannot: Sequence[CannotRun],
    jobs: Sequence[Job],
    ignored: Sequence[Ignored] = (),
) -> tuple[str, ...]:
    """All that is to be said of policies and jobs below the tables."""
    said = (*refusals(runs, cannot), *left_out_lines(runs), *ignored_lines(ignored))
    return (*said, *_unresized(runs, jobs), *_too_many(runs))


def ignored_lines(ignored: Sequence[Ignored]) -> tuple[str, ...]:
    """Return a line for all policies that ignore the same attributes of jobs, and one for names that no job has."""
    lines = list[str]()
    for policies, attributes, names in ignored:
        who = ", ".join(policies)
        if attributes:
            lines.append(f"{who} ignore{'s' * (len(policies) == 1)} the jobs' {', '.join(attributes)}")
        if names:
            lines.append(f"{who}: no job has {', '.join(names)}, so that what is set for it changes nothing")
    return tuple(lines)


def _too_many(runs: Sequence[FleetRun]) -> Iterator[str]:
    """Say if more devices were in use than the cluster has, as may be in recorded runs."""
    for run in runs:
        most = int(run.series.num_devices_in_use.max(initial=0))
        if most > run.cluster.num_devices:
            yield (
                f"{run.policy}: jobs had up to {most:,} devices at once, and cluster {run.cluster.name} has "
                f"{run.cluster.num_devices:,}: it is not what they ran on, and no simulation on it is to be compared "
                "with that"
            )


def _unresized(runs: Sequence[FleetRun], jobs: Sequence[Job]) -> tuple[str, ...]:
    """Under which policies no job had more devices than it asks for, where some may: one line, or none."""
    may = {job.name for job in jobs if job.most_devices > job.num_devices}
    policies = [run.policy for run in runs if may.intersection(run.names) and not _resizes(run, may)]
    if not policies:
        return ()
    count = f"{len(may):,} of {len(jobs):,} jobs"
    return (
        f"{', '.join(policies)} gave no job more devices than it asks for, though {count} may have more; policies that "
        "resize jobs do: elasticflow, optimus, pollux, sia",
    )


def _resizes(run: FleetRun, may: Collection[str]) -> bool:
    """Return whether any of these jobs had more devices than it asks for."""
    asked = np.array([job.num_devices for job in run.jobs])
    which = np.array([job.name in may for job in run.jobs], np.bool_)
    gangs_s = asked * (run.completion_s - run.waiting_s)
    return bool((run.device_s > gangs_s * (1 + 1e-9) + 1e-6)[which].any())


def _by_reason(left_out: Sequence[Unfit]) -> dict[str, list[Unfit]]:
    """The most frequent reason first."""
    found: dict[str, list[Unfit]] = {}
    for each in left_out:
        found.setdefault(each.reason, []).append(each)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def run_document(
    run: FleetRun, baseline: FleetRun | None = None, parts: Sequence[Part] = ()
) -> dict[str, Any]:
    """A run in numbers, by group, and job by job.

    Parameters
    ----------
    baseline : the run with which it is compared.
    parts : of all runs, by group.
    """
    by: dict[str, dict[str, Mapping[str, float | int]]] = {}
    for part in parts:
        if part.policy == run.policy:
            figures = {**part.run.times(), "to_baseline": part.to_baseline}
            by.setdefault(part.dimension.replace(" ", "_"), {})[part.group] = figures
    return {
        **run.figures(),
        "to_baseline": None if baseline is None else beside(run, baseline),
        "refused": [{"job": name, "reason": reason} for name, reason in run.refused],
        "left_out": [
            {
                "reason": reason,
                "num_jobs": len(unfit),
                "first": [each.job.name for each in unfit[:_MOST_NAMED]],
                "example": unfit[0].said,
            }
            for reason, unfit in _by_reason(run.left_out).items()
        ],
        "by": by,
        "jobs": job_columns(run),
        "series": {name: column.tolist() for name, column in run.series._asdict().items()},
    }

"""One self-contained HTML page about policies on the same workload: who waits how long, and what the devices do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun, ranked_runs
from trainyard.fleet.scheduler import CannotRun
from trainyard.reading.left_out import LeftOut
from trainyard.report.axes import TimeAxis
from trainyard.report.colors import series_color
from trainyard.report.curves import Sample, distributions
from trainyard.report.fleet_gantt import most_bars_each, numbers_of, what_ran_where
from trainyard.report.fleet_groups import Part, groups_table, losers, winners
from trainyard.report.fleet_league import costs_table, devices_table, league
from trainyard.report.fleet_losers import extra_waiting, losing_jobs, waits_by_group
from trainyard.report.fleet_over_time import in_use, use_by_node, use_by_type, waiting_devices, waiting_jobs
from trainyard.report.fleet_stints import DrawnRun, stints_of
from trainyard.report.page import Figure, Table, html_page
from trainyard.report.remarks import remark_tables
from trainyard.report.units import duration_text, percent_text

__all__ = ["fleet_page"]


def fleet_page(
    title: str,
    runs: Sequence[FleetRun],
    facts: Mapping[str, str],
    *,
    left_out: LeftOut | None = None,
    remarks: Sequence[str] = (),
    baseline: FleetRun | None = None,
    cannot: Sequence[CannotRun] = (),
    parts: Sequence[Part] = (),
    zero: datetime | None = None,
) -> str:
    """Show how long jobs take and wait, whose these are, devices in use, and what ran where under every policy.

    Parameters
    ----------
    runs : of different policies on the same workload and cluster.
    facts : shown at the top, by name.
    left_out : rows of the trace that gave no job, and what is to be said of how it was read.
    remarks : what is to be said of policies and jobs.
    baseline : the run with which the others are compared.
    cannot : policies that cannot run.
    parts : of all runs, by group.
    zero : when time 0 was, in the zone in which dates are shown, if that is known.
    """
    order = ranked_runs(runs)
    number = numbers_of(order)
    shown = [DrawnRun(run, stints_of(run, number), series_color(i)) for i, run in enumerate(order)]
    end_s = max(
        chain((run.end_s for run in order), (s.end_s for run in order for s in run.spans)), default=0.0
    )
    axis = TimeAxis(end_s, zero)
    sections: list[Figure | Table] = [
        Table("League table", *league(order, baseline, cannot), best=0),
        Table("Devices", *devices_table(order)),
        *(Table("Costs", *costs) for costs in (costs_table(order),) if costs is not None),
        *remark_tables((*remarks, *_without_places(order)), left_out),
        waiting_jobs(shown, axis),
        waiting_devices(shown, axis),
        in_use(shown, axis),
        *use_by_type(shown, axis),
        use_by_node(shown),
        *_whose(order, baseline, parts, {each.run.policy: each.color for each in shown}),
        _completions(shown),
        _waiting(shown),
        _unfairness(shown),
    ]
    charts = [each for each in shown if each.run.spans]
    users = {job.name: job.user for run in order for job in run.jobs}
    labels = [f"job {name}{f' of {user}' if (user := users.get(name)) else ''}" for name in number]
    sections += [what_ran_where(each, labels, axis, most_bars_each(charts)) for each in charts]
    if parts:
        beside = f", beside {baseline.policy}" if baseline is not None else ""
        sections.append(Table(f"Whose jobs wait{beside}", *groups_table(parts)))
    return html_page(title, facts, sections, interactive=True)


def _without_places(runs: Sequence[FleetRun]) -> list[str]:
    """Name the runs of which the places of jobs are not known."""
    names = [run.policy for run in runs if run.names and not run.spans]
    return [f"{name}: where jobs ran is not known, and so not drawn by node" for name in names]


def _whose(
    runs: Sequence[FleetRun], baseline: FleetRun | None, parts: Sequence[Part], colors: Mapping[str, str]
) -> list[Figure | Table]:
    """Return the figures of groups that wait, and of those that lose beside the baseline."""
    found: list[Figure | Table] = [*waits_by_group(parts, colors)]
    if baseline is None:
        return found
    found.append(extra_waiting(parts, baseline, colors))
    columns, rows = losers(parts, baseline)
    if rows:
        found.append(Table(f"Who loses most, {baseline.policy} / policy", columns, rows))
    columns, rows = winners(parts, baseline)
    if rows and any(run.what_if for run in runs):
        found.append(Table(f"Who gains most, {baseline.policy} / policy", columns, rows))
    jobs = losing_jobs(runs, baseline)
    return found if jobs is None else [*found, jobs]


def _completions(runs: Sequence[DrawnRun]) -> Figure:
    axes = "completion time, arrival to end", "share of jobs done within"
    return _distributions("Completion times", runs, lambda run: run.completion_s, axes)


def _waiting(runs: Sequence[DrawnRun]) -> Figure:
    at_once = [
        f"{run.policy} {percent_text(float(np.mean(run.waiting_s <= 0)))}" for run, *_ in runs if run.jobs
    ]
    note = f"Left of the axis are jobs that did not wait: {', '.join(at_once)}."
    axes = "time without devices", "share of jobs that wait no longer"
    return _distributions("Waiting times", runs, lambda run: run.waiting_s, axes, note)


def _unfairness(runs: Sequence[DrawnRun]) -> Figure:
    axes = "completion time / with an equal share", "share of jobs with no more"
    note = "Jobs right of 1 would have been done sooner with an equal share of the cluster."
    return _distributions("Finish-time fairness", runs, lambda run: run.unfairness, axes, note, is_time=False)


def _distributions(
    heading: str,
    runs: Sequence[DrawnRun],
    values_of: Callable[[FleetRun], NDArray[np.float64]],
    axes: tuple[str, str],
    note: str = "",
    is_time: bool = True,
) -> Figure:
    samples = [Sample(run.policy, color, values_of(run)) for run, _, color in runs]
    return distributions(heading, samples, axes, note, duration_text if is_time else None)

"""Policies on the same workload, ranked: the table for the terminal, and what it says of every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from trainyard.fleet.records import FleetRun
from trainyard.report.tables import make_table
from trainyard.report.units import duration_text, percent_text

__all__ = ["by_virtual_cluster", "fleet_table", "league", "ranked_runs", "run_document"]


def ranked_runs(runs: Sequence[FleetRun]) -> tuple[FleetRun, ...]:
    """Shortest mean completion time first."""
    return tuple(sorted(runs, key=lambda run: run.mean_completion_s))


def league(runs: Sequence[FleetRun]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of the league table, best first; JCT is the time from a job's arrival to its end, and
    unfair the largest ratio of it to what it would be with an equal share of the cluster.

    Deadlines and refusals have columns only where there are any.
    """
    order = ranked_runs(runs)
    best_s = order[0].mean_completion_s if order else 0.0
    extra: list[tuple[str, Callable[[FleetRun], str]]] = []
    if any(np.isfinite(run.deadline_s).any() for run in order):
        extra.append(("late", lambda run: str(run.num_missed)))
    if any(run.num_failures for run in order):
        extra.append(("failures", lambda run: str(run.num_failures)))
    if any(run.refused for run in order):
        extra.append(("refused", lambda run: str(len(run.refused))))
    columns = (
        "policy",
        "mean JCT",
        "to best",
        "median",
        "p99",
        "queueing",
        "makespan",
        "used",
        "preempted",
        "unfair",
    )
    rows = (
        (
            run.policy,
            duration_text(run.mean_completion_s),
            f"{run.mean_completion_s / best_s:.2f}x" if best_s else "",
            duration_text(run.percentile_s(50)),
            duration_text(run.percentile_s(99)),
            duration_text(run.mean_queueing_s),
            duration_text(run.makespan_s),
            percent_text(run.utilisation),
            str(run.num_preemptions),
            f"{run.worst_unfairness:.1f}x",
            *(cell(run) for _, cell in extra),
        )
        for run in order
    )
    return (*columns, *(name for name, _ in extra)), tuple(rows)


def by_virtual_cluster(runs: Sequence[FleetRun]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of the same for every virtual cluster; no rows where no job names one."""
    columns = ("virtual cluster", "policy", "jobs", "mean JCT", "p99", "queueing", "late", "unfair")
    rows = [
        (
            name,
            run.policy,
            str(times["num_jobs"]),
            duration_text(times["mean_completion_s"]),
            duration_text(times["p99_completion_s"]),
            duration_text(times["mean_queueing_s"]),
            str(times["num_missed_deadlines"]),
            f"{times['worst_unfairness']:.1f}x",
        )
        for run in ranked_runs(runs)
        for name, times in _by_virtual_cluster(run).items()
    ]
    return columns, tuple(sorted(rows, key=lambda row: row[0]))


def fleet_table(title: str, runs: Sequence[FleetRun]) -> Table:
    """One row per policy, best first."""
    return make_table(title, *league(runs))


def run_document(run: FleetRun) -> dict[str, Any]:
    """A run in numbers, and by virtual cluster."""
    return {
        "policy": run.policy,
        "num_jobs": len(run.names),
        **_times(run, np.ones(len(run.names), np.bool_)),
        "makespan_s": run.makespan_s,
        "utilisation": run.utilisation,
        "busy_device_s": run.busy_device_s,
        "num_preemptions": run.num_preemptions,
        "num_failures": run.num_failures,
        "num_decisions": run.num_decisions,
        "refused": [{"job": name, "reason": reason} for name, reason in run.refused],
        "virtual_clusters": _by_virtual_cluster(run),
    }


def _by_virtual_cluster(run: FleetRun) -> dict[str, Mapping[str, float | int]]:
    clusters = np.array(run.virtual_clusters)
    return {str(name): _times(run, clusters == name) for name in np.unique(clusters) if name}


def _times(run: FleetRun, which: Any) -> Mapping[str, float | int]:
    times, queueing = run.completion_s[which], run.queueing_s[which]
    if not len(times):
        return {"num_jobs": 0}
    return {
        "num_jobs": len(times),
        "mean_completion_s": float(times.mean()),
        "median_completion_s": float(np.percentile(times, 50)),
        "p99_completion_s": float(np.percentile(times, 99)),
        "mean_queueing_s": float(queueing.mean()),
        "worst_unfairness": float(run.unfairness[which].max()),
        "num_missed_deadlines": int((run.finish_s > run.deadline_s)[which].sum()),
        "device_s": float(run.device_s[which].sum()),
    }

"""Policies on the same workload, ranked: the table for the terminal, and what it says of every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from trainyard.fleet.records import FleetRun
from trainyard.report.tables import make_table
from trainyard.report.units import duration_text, percent_text

__all__ = ["by_virtual_cluster", "fleet_table", "league", "ranked_runs", "refusals", "run_document"]

Columns = tuple[str, ...]
Rows = tuple[tuple[str, ...], ...]
Bools = NDArray[np.bool_]
_MOST_REFUSALS = 3


def ranked_runs(runs: Sequence[FleetRun]) -> tuple[FleetRun, ...]:
    """Shortest mean completion time first; but who ran fewer jobs, because it refused some, comes after who ran more."""
    return tuple(sorted(runs, key=lambda run: (-len(run.names), run.mean_completion_s)))


def league(runs: Sequence[FleetRun]) -> tuple[Columns, Rows]:
    """Columns and rows of the league table, best first; JCT is the time from a job's arrival to its end, and
    unfair the largest ratio of it to what it would be with an equal share of the cluster.

    Deadlines and refusals have columns only where there are any; who misses a deadline is late or was refused.
    """
    order = ranked_runs(runs)
    best_s = order[0].mean_completion_s if order else 0.0
    extra: list[tuple[str, Callable[[FleetRun], str]]] = []
    if any(np.isfinite((*run.deadline_s, *run.refused_deadline_s)).any() for run in order):
        extra.append(("missed", lambda run: str(run.num_missed)))
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
    rows = ((run.policy, *_figures(run, best_s), *(cell(run) for _, cell in extra)) for run in order)
    return (*columns, *(name for name, _ in extra)), tuple(rows)


def _figures(run: FleetRun, best_s: float) -> tuple[str, ...]:
    """What every league table has of a run; nothing of one in which no job ran."""
    if not run.names:
        return ("",) * 9
    return (
        duration_text(run.mean_completion_s),
        f"{run.mean_completion_s / best_s:.2f}x" if best_s else "",
        duration_text(run.percentile_s(50)),
        duration_text(run.percentile_s(99)),
        duration_text(run.mean_queueing_s),
        duration_text(run.makespan_s),
        percent_text(run.utilisation),
        str(run.num_preemptions),
        f"{run.worst_unfairness:.1f}x",
    )


def refusals(runs: Sequence[FleetRun]) -> tuple[str, ...]:
    """Of every policy that refused jobs, how many, and why the first of them."""
    lines = []
    for run in ranked_runs(runs):
        if run.refused:
            first = run.refused[:_MOST_REFUSALS]
            said = "; ".join(f"{name} ({why})" for name, why in first)
            more = f"; and {len(run.refused) - len(first)} more" if len(run.refused) > len(first) else ""
            lines.append(f"{run.policy} refused {len(run.refused)} of {run.num_jobs} jobs: {said}{more}")
    return tuple(lines)


def by_virtual_cluster(runs: Sequence[FleetRun]) -> tuple[Columns, Rows]:
    """Columns and rows of the same for every virtual cluster; no rows where no job names one."""
    columns = (
        "virtual cluster",
        "policy",
        "jobs",
        "mean JCT",
        "p99",
        "queueing",
        "unfair",
        "missed",
        "refused",
    )
    rows = []
    for run in ranked_runs(runs):
        for name, times in _by_virtual_cluster(run).items():
            figures: tuple[str, ...] = ("",) * 4
            if times["num_jobs"]:
                durations = (
                    times[f"{key}_s"] for key in ("mean_completion", "p99_completion", "mean_queueing")
                )
                figures = (*map(duration_text, durations), f"{times['worst_unfairness']:.1f}x")
            counts = str(times["num_missed_deadlines"]), str(times["num_refused"])
            rows.append((name, run.policy, str(times["num_jobs"]), *figures, *counts))
    return columns, tuple(sorted(rows, key=lambda row: row[0]))


def fleet_table(title: str, runs: Sequence[FleetRun]) -> Table:
    """One row per policy, best first."""
    return make_table(title, *league(runs))


def run_document(run: FleetRun) -> dict[str, Any]:
    """A run in numbers, and by virtual cluster."""
    return {
        "policy": run.policy,
        **_times(run, np.ones(len(run.names), np.bool_), np.ones(len(run.refused), np.bool_)),
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
    ran, refused = np.array(run.virtual_clusters, str), np.array(run.refused_clusters, str)
    names = np.union1d(ran, refused).tolist()
    return {name: _times(run, ran == name, refused == name) for name in names if name}


def _times(run: FleetRun, which: Bools, refused: Bools) -> Mapping[str, float | int]:
    """Of some of the jobs that ran and of those that were refused."""
    times, queueing = run.completion_s[which], run.queueing_s[which]
    num_late = (run.finish_s > run.deadline_s)[which].sum()
    counts = {
        "num_jobs": len(times),
        "num_refused": int(refused.sum()),
        "num_missed_deadlines": int(num_late + np.isfinite(run.refused_deadline_s[refused]).sum()),
    }
    if not len(times):
        return counts
    return {
        **counts,
        "mean_completion_s": float(times.mean()),
        "median_completion_s": float(np.percentile(times, 50)),
        "p99_completion_s": float(np.percentile(times, 99)),
        "mean_queueing_s": float(queueing.mean()),
        "worst_unfairness": float(run.unfairness[which].max()),
        "device_s": float(run.device_s[which].sum()),
    }

"""Policies on the same workload, ranked: the table for the terminal, and what it says of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from trainyard.fleet.records import FleetRun
from trainyard.report.tables import make_table
from trainyard.report.units import percent_text, seconds_text

__all__ = ["fleet_table", "ranked_runs", "run_cells", "run_document"]

COLUMNS = (
    "policy",
    "mean JCT",
    "to best",
    "median",
    "p99",
    "queueing",
    "makespan",
    "utilisation",
    "preemptions",
    "late",
    "refused",
)
"""What is said of a run; JCT is the time from a job's arrival to its end."""


def ranked_runs(runs: Sequence[FleetRun]) -> tuple[FleetRun, ...]:
    """Shortest mean completion time first."""
    return tuple(sorted(runs, key=lambda run: run.mean_completion_s))


def run_cells(run: FleetRun, best_s: float) -> tuple[str, ...]:
    """The columns of one run."""
    against = f"{run.mean_completion_s / best_s:.2f}x" if best_s else ""
    return (
        run.policy,
        seconds_text(run.mean_completion_s),
        against,
        seconds_text(run.percentile_s(50)),
        seconds_text(run.percentile_s(99)),
        seconds_text(float(run.queueing_s.mean()) if len(run.names) else 0.0),
        seconds_text(run.makespan_s),
        percent_text(run.utilisation),
        str(run.num_preemptions),
        str(run.num_missed) if np.isfinite(run.deadline_s).any() else "",
        str(len(run.refused)) if run.refused else "",
    )


def fleet_table(title: str, runs: Sequence[FleetRun]) -> Table:
    """One row per policy, best first."""
    order = ranked_runs(runs)
    best_s = order[0].mean_completion_s if order else 0.0
    return make_table(title, COLUMNS, [run_cells(run, best_s) for run in order])


def run_document(run: FleetRun) -> dict[str, Any]:
    """A run in numbers, and by virtual cluster."""
    clusters = np.array(run.virtual_clusters)
    return {
        "policy": run.policy,
        "num_jobs": len(run.names),
        **_times(run, np.ones(len(run.names), np.bool_)),
        "makespan_s": run.makespan_s,
        "utilisation": run.utilisation,
        "num_preemptions": run.num_preemptions,
        "num_decisions": run.num_decisions,
        "num_missed_deadlines": run.num_missed,
        "refused": [{"job": name, "reason": reason} for name, reason in run.refused],
        "virtual_clusters": {
            str(name): _times(run, clusters == name) for name in np.unique(clusters) if name
        },
    }


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
    }

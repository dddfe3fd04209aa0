"""Every job of a run, and what changed over time, for programs and spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.fleet.records import FleetRun
from trainyard.report.csv_file import write_csv

__all__ = ["job_columns", "series_path", "write_jobs", "write_series"]

_TIMES = (
    "arrival_s", "first_start_s", "finish_s", "completion_s", "waiting_s", "first_wait_s", "lost_s", "work_s", "alone_s",
    "slowdown", "unfairness", "device_s", "num_starts", "num_preempted",
)  # fmt: skip


def job_columns(run: FleetRun) -> dict[str, list[Any]]:
    """All jobs of a run, as columns by name: those that ended, in that order, those refused, and those left out.

    What is not known of a job is None. ``state`` is ``ended``, ``killed``, ``refused`` or ``left out``; ``why`` says why
    it is one of the latter two.
    """
    missing = [None] * (len(run.refused) + len(run.left_out))
    jobs = (*run.jobs, *run.refused_jobs, *(each.job for each in run.left_out))
    states = (("refused", len(run.refused)), ("left out", len(run.left_out)))
    ended = ["killed" if is_killed else "ended" for is_killed in run.is_killed.tolist()]
    return {
        "name": [job.name for job in jobs],
        "state": [*ended, *(state for state, count in states for _ in range(count))],
        "user": [job.user for job in jobs],
        "account": [job.account for job in jobs],
        "virtual_cluster": [job.virtual_cluster for job in jobs],
        "qos": [job.qos for job in jobs],
        "num_devices": [job.num_devices for job in jobs],
        "device_types": [job.device_types for job in jobs],
        "deadline_s": [job.deadline_s if np.isfinite(job.deadline_s) else None for job in jobs],
        **{name: [*getattr(run, name).tolist(), *missing] for name in _TIMES},
        "why": [
            *("" for _ in run.jobs),
            *(why for _, why in run.refused),
            *(each.reason for each in run.left_out),
        ],
    }


def write_jobs(path: Path, runs: Sequence[FleetRun]) -> None:
    """Write a CSV with a line for every job under every policy; what is not known is empty."""
    tables = [(run.policy, job_columns(run)) for run in runs]
    rows = ((policy, *row) for policy, table in tables for row in zip(*table.values(), strict=True))
    write_csv(path, ("policy", *tables[0][1]), rows)


def write_series(path: Path, runs: Sequence[FleetRun]) -> None:
    """Write a CSV with a line for every change of the devices in use and of the jobs that wait."""
    rows = (
        (run.policy, time_s, int(in_use), int(waiting))
        for run in runs
        for time_s, in_use, waiting in zip(*(column.tolist() for column in run.series), strict=True)
    )
    write_csv(path, ("policy", *runs[0].series._fields), rows)


def series_path(path: Path) -> Path:
    """Return the path of the series of a file of jobs: ``jobs.series.csv`` beside ``jobs.csv``."""
    return path.with_name(f"{path.stem}.series{path.suffix or '.csv'}")

"""Traces of Tiresias' simulator, and of those that descend from it.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019; SymbioticLab/Tiresias,
``simulator/*_job.csv``. Columns: job_id, num_gpu, submit_time, iterations, model_name, duration, interval; seconds.

A job runs ``duration`` seconds on its gang; those without a device are left out. Iterations and intervals are not used,
as the authors' simulator does not use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import has_columns
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

_NEEDED = ("job_id", "num_gpu", "submit_time", "model_name", "duration")


def read_tiresias(path: Path, profiles: Path | None = None, left_out: LeftOut | None = None) -> Iterator[Job]:
    """Jobs that ask for a device."""
    return Table(path, _NEEDED, left_out=left_out).in_order(_submitted, _job, "job_id")


def _submitted(row: Row) -> float | str:
    return row.number("submit_time") if row.count("num_gpu") else "asks for no device"


def _job(row: Row, arrival_s: float) -> Job:
    return declared_job(
        row.fields["job_id"],
        arrival_s,
        row.count("num_gpu"),
        row.number("duration"),
        model=row.fields["model_name"],
    )


FORMAT = Format(
    "tiresias",
    "Tiresias: CSV of devices, submission, and duration",
    has_columns(*_NEEDED, "iterations", without=("ddl", "expect_time_list")),
    read_tiresias,
)

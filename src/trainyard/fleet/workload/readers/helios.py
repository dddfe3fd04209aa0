"""The Helios traces of SenseTime: ``cluster_log.csv``.

Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021;
S-Lab-System-Group/HeliosData. Columns: job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time,
end_time, duration, queue; times as dates, durations in seconds.

A job ran ``duration`` seconds on ``gpu_num`` devices; start_time, if it is there, is when it first had them. Jobs without
devices, half of the trace, and jobs that never ran are left out. Time 0 is the first submission. Dates name no zone; the
clusters are in China, where clocks are not changed, and so they are taken as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import has_columns
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

_NEEDED = ("job_id", "user", "vc", "gpu_num", "cpu_num", "submit_time", "duration")


def read_helios(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None, zone: ZoneInfo | None = None
) -> Iterator[Job]:
    """Jobs with devices."""

    def submitted(row: Row) -> float | str:
        if not row.count("gpu_num"):
            return "asks for no device"
        if not row.fields["duration"] or not row.number("duration"):
            return "never ran"
        return row.moment_s("submit_time", zone)

    def job(row: Row, arrival_s: float) -> Job:
        size, attempts = row.count("gpu_num"), tuple[Attempt, ...]()
        if row.fields.get("start_time", "") not in ("", "None", "NaT"):
            attempts = (Attempt(row.moment_s("start_time", zone, arrival_s), size),)
        return declared_job(
            row.fields["job_id"],
            arrival_s,
            size,
            row.number("duration"),
            user=row.fields["user"],
            virtual_cluster=row.fields["vc"],
            cpus=row.number("cpu_num"),
            attempts=attempts,
        )

    return Table(path, _NEEDED, left_out=left_out).in_order(submitted, job, "job_id")


FORMAT = Format(
    "helios",
    "Helios: cluster_log.csv of SenseTime's clusters",
    has_columns(*_NEEDED),
    read_helios,
    is_dated=True,
)

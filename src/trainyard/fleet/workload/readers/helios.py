"""The Helios traces of SenseTime: ``cluster_log.csv``.

Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021;
S-Lab-System-Group/HeliosData. Columns: job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time,
end_time, duration, queue; times as dates, durations in seconds.

Jobs without devices, half of the trace, and jobs that never ran are left out. Time 0 is the first submission.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format, has_columns
from trainyard.fleet.workload.readers.rows import Row, Table

_NEEDED = ("job_id", "user", "vc", "gpu_num", "cpu_num", "submit_time", "duration")


def read_helios(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs with devices."""
    start_s = None
    for moment_s, row in Table(path, _NEEDED).by_arrival(_submitted):
        start_s = moment_s if start_s is None else start_s
        yield declared_job(
            row.fields["job_id"],
            moment_s - start_s,
            row.count("gpu_num"),
            row.number("duration"),
            user=row.fields["user"],
            virtual_cluster=row.fields["vc"],
            cpus=row.number("cpu_num"),
        )


def _submitted(row: Row) -> float | None:
    if not row.count("gpu_num") or not row.fields["duration"] or not row.number("duration"):
        return None
    return row.moment_s("submit_time")


FORMAT = Format(
    "helios", "Helios: cluster_log.csv of SenseTime's clusters", has_columns(*_NEEDED), read_helios
)

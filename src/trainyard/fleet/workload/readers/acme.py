"""The Acme traces of Shanghai AI Laboratory: ``trace_seren.csv`` and ``trace_kalos.csv``.

Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024; InternLM/AcmeTrace.
Columns: job_id, user, node_num, gpu_num, cpu_num, type, state, submit_time, start_time, end_time, duration, queue,
gpu_time; in Kalos also mem_per_pod_GB, shared_mem_per_pod, fail_time, stop_time. Times are dates that name their zone.

A job ran from start_time to end_time on ``gpu_num`` devices. The duration is not read: that of Kalos counts from the
submission. What a job is for (``type``: Pretrain, SFT, Evaluation, Debug and others) stands as its virtual cluster. Jobs
without devices and jobs that never ran are left out. Time 0 is the first submission.
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

_NEEDED = ("job_id", "user", "gpu_num", "cpu_num", "type", "submit_time", "start_time", "end_time")


def read_acme(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None, zone: ZoneInfo | None = None
) -> Iterator[Job]:
    """Jobs with devices that ran."""

    def times_s(row: Row) -> tuple[float, float]:
        submit_s = row.moment_s("submit_time", zone)
        start_s = row.moment_s("start_time", zone, submit_s)
        return start_s, row.moment_s("end_time", zone, start_s)

    def submitted(row: Row) -> float | str:
        if not row.count("gpu_num"):
            return "asks for no device"
        if not row.fields["start_time"]:
            return "never ran"
        if not row.fields["end_time"]:
            return "not over yet: it is not known how long it runs"
        start_s, end_s = times_s(row)
        return row.moment_s("submit_time", zone) if end_s > start_s else "ran for no time"

    def job(row: Row, arrival_s: float) -> Job:
        start_s, end_s = times_s(row)
        size = row.count("gpu_num")
        return declared_job(
            row.fields["job_id"],
            arrival_s,
            size,
            end_s - start_s,
            user=row.fields["user"],
            virtual_cluster=row.fields["type"],
            cpus=row.number("cpu_num"),
            attempts=(Attempt(start_s, size),),
        )

    return Table(path, _NEEDED, left_out=left_out).in_order(submitted, job, "job_id")


FORMAT = Format(
    "acme",
    "Acme: jobs of Shanghai AI Laboratory's clusters Seren and Kalos",
    has_columns(*_NEEDED, without=("vc",)),
    read_acme,
    is_dated=True,
)

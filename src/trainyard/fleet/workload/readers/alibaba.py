"""Pods of Alibaba's cluster-trace-gpu-v2023 ("openb").

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC 2023; alibaba/clusterdata. Columns: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, pod_phase,
creation_time, deletion_time, scheduled_time; seconds, thousandths, and mebibytes.

A pod is submitted when it was created, and runs from when it was scheduled until it was deleted. Pods without a device,
pods that were never scheduled or not deleted yet, and those that ran for no time are left out. What a pod asks of its
devices is what it keeps busy of them. Best-effort pods (``BE``) are opportunistic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import has_columns
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

_NEEDED = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip


def read_alibaba(path: Path, profiles: Path | None = None, left_out: LeftOut | None = None) -> Iterator[Job]:
    """Pods with devices that ran."""
    return Table(path, _NEEDED, left_out=left_out).in_order(_created, _pod, "name")


def _created(row: Row) -> float | str:
    if not row.count("num_gpu"):
        return "asks for no device"
    if not row.fields["scheduled_time"]:
        return "never ran"
    if not row.fields["deletion_time"]:
        return "not over yet: it is not known how long it runs"
    return row.number("creation_time") if _length_s(row) > 0 else "ran for no time"


def _pod(row: Row, arrival_s: float) -> Job:
    milli = row.count("gpu_milli", 1)
    if milli > 1000:
        raise row.error("gpu_milli", "a whole number from 1 to 1000")
    return declared_job(
        row.fields["name"],
        arrival_s,
        row.count("num_gpu"),
        _length_s(row),
        busy=milli / 1000,
        device_types=tuple(filter(None, row.fields["gpu_spec"].split("|"))),
        guaranteed=row.fields["qos"] != "BE",
        cpus=row.number("cpu_milli") / 1000,
        memory_bytes=row.number("memory_mib") * 2**20,
        attempts=(Attempt(row.number("scheduled_time"), row.count("num_gpu")),),
    )


def _length_s(row: Row) -> float:
    return row.number("deletion_time") - row.number("scheduled_time")


FORMAT = Format("alibaba", "Alibaba openb: pods that share GPUs", has_columns(*_NEEDED), read_alibaba)

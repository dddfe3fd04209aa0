"""Pods of Alibaba's cluster-trace-gpu-v2023 ("openb").

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC 2023; alibaba/clusterdata. Columns: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, pod_phase,
creation_time, deletion_time, scheduled_time; seconds, thousandths, and mebibytes.

A pod runs from when it was scheduled until it was deleted. Pods without a device, pods that were never scheduled, and
those that ran for no time are left out. What a pod asks of its devices is what it keeps busy of them. Best-effort pods
(``BE``) are opportunistic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format, has_columns
from trainyard.fleet.workload.readers.rows import Row, Table

_NEEDED = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip


def read_alibaba(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Pods with devices that ran."""
    for arrival_s, row in Table(path, _NEEDED).by_arrival(_created):
        milli = row.count("gpu_milli", 1)
        if milli > 1000:
            raise row.error("gpu_milli", "a whole number from 1 to 1000")
        yield declared_job(
            row.fields["name"],
            arrival_s,
            row.count("num_gpu"),
            _length_s(row),
            busy=milli / 1000,
            device_types=tuple(filter(None, row.fields["gpu_spec"].split("|"))),
            guaranteed=row.fields["qos"] != "BE",
            cpus=row.number("cpu_milli") / 1000,
            memory_bytes=row.number("memory_mib") * 2**20,
        )


def _created(row: Row) -> float | None:
    if not row.count("num_gpu") or not row.fields["scheduled_time"] or _length_s(row) <= 0:
        return None
    return row.number("creation_time")


def _length_s(row: Row) -> float:
    return row.number("deletion_time") - row.number("scheduled_time")


FORMAT = Format("alibaba", "Alibaba openb: pods that share GPUs", has_columns(*_NEEDED), read_alibaba)

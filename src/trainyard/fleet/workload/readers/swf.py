"""The Standard Workload Format of the Parallel Workloads Archive.

Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999. Eighteen numbers a
line, separated by white space, -1 where unknown; lines that begin with ``;`` are the header.

The processors of the format are our devices. A job asks for what it requested, or, where that is unknown, for what it
got; jobs that never ran are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format, Head
from trainyard.fleet.workload.readers.rows import Row, Table

_COLUMNS = (
    "job", "submit_s", "wait_s", "run_s", "allocated", "cpu_s", "used_kib", "requested", "requested_s", "requested_kib",
    "status", "user", "group", "application", "queue", "partition", "preceding_job", "think_s",
)  # fmt: skip


def read_swf(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs that ran; memory is given per processor."""
    table = Table(path, _COLUMNS, _COLUMNS, separator=None, comment=";")
    for arrival_s, row in table.by_arrival(lambda row: row.number("submit_s") if _ran(row) else None):
        size = _size(row)
        yield declared_job(
            row.fields["job"],
            arrival_s,
            size,
            row.number("run_s"),
            user=_name(row, "user"),
            virtual_cluster=_name(row, "queue"),
            memory_bytes=max(row.number("requested_kib", -1), 0.0) * 1024 * size,
        )


def _ran(row: Row) -> bool:
    return row.number("run_s", -1) > 0 and _size(row) > 0


def _size(row: Row) -> int:
    requested = row.count("requested", -1)
    return requested if requested > 0 else max(row.count("allocated", -1), 0)


def _name(row: Row, field: str) -> str:
    return "" if row.fields[field] == "-1" else row.fields[field]


def _matches(head: Head) -> bool:
    lines = [line for line in head.lines if line.strip() and not line.lstrip().startswith(";")]
    return bool(lines) and all(len(line.split()) == len(_COLUMNS) for line in lines[:5])


FORMAT = Format("swf", "Standard Workload Format of the Parallel Workloads Archive", _matches, read_swf)

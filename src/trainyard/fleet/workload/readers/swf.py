"""The Standard Workload Format of the Parallel Workloads Archive, version 2.2.

Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999; the fields are as
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html defines them. Eighteen numbers a line, separated by white space,
-1 where unknown; lines that begin with ``;`` are comments. Times are seconds from the beginning of the log, so that
UnixStartTime and TimeZoneString of the header are not needed.

What is read of it, by number of the field: the processors of the format are our devices. A job asks for what it
requested (8) or, where that is unknown, for what it got (5), and takes the time that it ran (4). It is submitted at 2 and
started 3 later; 9 is its limit. Memory (10) is per processor. User (12), group (13, our account) and queue (15, our
virtual cluster) are kept.

A job that was checkpointed and went on has several lines: one of status 0, 1 or 5 for all of it, and one of status 2, 3
or 4 for each of its parts. The one for all counts; where there is none, the parts together are the job. The wait of a
part after the first is from the end of the part before, and its submission may be -1. Jobs that never
ran are left out, and so are those of which it is unknown how long they ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

_COLUMNS = (
    "job", "submit_s", "wait_s", "run_s", "allocated", "cpu_s", "used_kib", "requested", "requested_s", "requested_kib",
    "status", "user", "group", "application", "queue", "partition", "preceding_job", "think_s",
)  # fmt: skip
_PART_STATUS = (2, 3, 4)


def read_swf(path: Path, profiles: Path | None = None, left_out: LeftOut | None = None) -> Iterator[Job]:
    """Jobs that ran."""
    last_s = 0.0

    def submitted(row: Row) -> float | str:
        nonlocal last_s
        found = _submitted(row, last_s)
        last_s = last_s if isinstance(found, str) else found
        return found

    table = Table(path, _COLUMNS, _COLUMNS, separator=None, comment=";", left_out=left_out)
    return table.merged_in_order(
        submitted, _job, lambda row: row.fields["job"], "a part of a job that has another line"
    )


def _submitted(row: Row, last_s: float) -> float | str:
    """When a job was submitted, or why there is none; a further part of a job is where the line before it is."""
    run_s = row.number("run_s", -1)
    if run_s < 0:
        return "it is not known how long it ran, if it did"
    if not run_s:
        return "ran for no time"
    if not _size(row):
        return "no number of processors"
    is_part = row.count("status", -1) in _PART_STATUS
    return last_s if is_part and row.number("submit_s", -1) < 0 else row.number("submit_s")


def _job(rows: Sequence[Row], arrival_s: float) -> Job:
    whole = [row for row in rows if row.count("status", -1) not in _PART_STATUS]
    if len(whole) > 1:
        raise whole[1].error("job", "a number that no other job has")
    parts = [row for row in rows if row.count("status", -1) in _PART_STATUS]
    rows = whole or rows
    first, size = rows[0], max(map(_size, rows))
    limit_s = first.number("requested_s", -1)
    return declared_job(
        first.fields["job"],
        arrival_s,
        size,
        sum(row.number("run_s") for row in rows),
        user=_name(first, "user"),
        account=_name(first, "group"),
        virtual_cluster=_name(first, "queue"),
        memory_bytes=max(first.number("requested_kib", -1), 0.0) * 1024 * size,
        attempts=_recorded(rows, parts, arrival_s),
        limit_s=limit_s if limit_s > 0 else None,
    )


def _recorded(rows: Sequence[Row], parts: Sequence[Row], arrival_s: float) -> tuple[Attempt, ...]:
    """The parts of a job, if they are all there, or the whole; empty where one does not say for how long it waited."""
    lengths_s = [sum(row.number("run_s") for row in some) for some in (parts, rows)]
    found, ended_s = list[Attempt](), arrival_s
    for row in parts if lengths_s[0] == lengths_s[1] else rows:
        wait_s = row.number("wait_s", -1)
        if wait_s < 0:
            return ()
        start_s = ended_s + wait_s
        ended_s = start_s + row.number("run_s")
        found.append(Attempt(start_s, _size(row), ended_s))
    return tuple(found)


def _size(row: Row) -> int:
    requested = row.count("requested", -1)
    return requested if requested > 0 else max(row.count("allocated", -1), 0)


def _name(row: Row, field: str) -> str:
    return "" if row.fields[field] == "-1" else row.fields[field]


def _matches(head: Head) -> bool:
    lines = [line for line in head.lines if line.strip() and not line.lstrip().startswith(";")]
    first = [len(line.split()) == len(_COLUMNS) for line in lines[:20]]
    return 2 * sum(first) > len(first)  # some may be cut off


FORMAT = Format("swf", "Standard Workload Format of the Parallel Workloads Archive", _matches, read_swf)

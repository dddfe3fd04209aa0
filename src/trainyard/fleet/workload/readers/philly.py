"""Microsoft's Philly trace: ``cluster_job_log``.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019;
msr-fiddle/philly-traces. One JSON list of jobs: status, vc, jobid, submitted_time, user, and attempts, each with
start_time, end_time and detail, a list of servers with the GPUs that it had there.

What is read of it: a job asks for the GPUs of its last attempt that ended, and takes the time of all its attempts that
ended, added up; as recorded it had devices in these, and waited between them. An attempt without a start or an end was
not recorded rightly, as the authors say, and counts for nothing; but if the last has no end, the job was not over, and is
left out, as are jobs that never ran. Times are local and name no zone; the telemetry that was published with the log has
that of the Pacific (PDT, PST), and clocks were put back on 5 November 2017, so they are read in that zone. Time 0 is the
first submission. The list is read piece by piece, and since it is not sorted, one short record of every job is held.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.attempts import Attempt, joined
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import RowError
from trainyard.reading import open_plain, raised_as, shortened, shown, undecodable, unique_keys
from trainyard.reading.head import Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import moment_s

_PIECE = 1 << 20
_LARGEST_JOB = 1 << 24
_SPACE = " \t\r\n,"


def read_philly(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None, zone: ZoneInfo | None = None
) -> Iterator[Job]:
    """Jobs that ran and are over; their times are seconds since 1970."""
    try:
        records = _records(path, left_out or LeftOut(strict=True), zone)
    except UnicodeDecodeError as error:
        raise FleetError(str(undecodable(path))) from error
    for record in sorted(records, key=lambda record: record.arrival_s):
        yield declared_job(
            record.name,
            record.arrival_s,
            record.num_devices,
            record.length_s,
            user=record.user,
            virtual_cluster=record.virtual_cluster,
            attempts=record.attempts,
        )


def _records(path: Path, left_out: LeftOut, zone: ZoneInfo | None) -> Collection[_Record]:
    records: dict[str, _Record] = {}
    for line, job in _objects(path):
        left_out.num_rows += 1
        with left_out.faults():
            found = _record(path, line, job, zone)
            if isinstance(found, str):
                left_out.add(found, path, line)
            elif found.name in records:
                raise RowError(path, line, "a job that was there before", f"a second job {shown(found.name)}")
            else:
                records[found.name] = found
    return records.values()


class _Record(NamedTuple):
    """A job of the log that ran."""

    arrival_s: float
    num_devices: int
    length_s: float
    attempts: tuple[Attempt, ...]
    name: str
    user: str
    virtual_cluster: str


def _record(path: Path, line: int, job: Any, zone: ZoneInfo | None) -> _Record | str:
    """A job, or why it is none to replay."""
    try:
        started = [attempt for attempt in job["attempts"] if _given(attempt["start_time"])]
        ended = [attempt for attempt in started if _given(attempt["end_time"])]
        if started and not _given(started[-1]["end_time"]):
            return "not over yet: it is not known how long it runs"
        if not ended:
            return "never ran"
        arrival_s = moment_s(job["submitted_time"], zone)
        spans = _spans(ended, arrival_s, zone)
        sizes = [sum(len(server["gpus"]) for server in attempt["detail"]) for attempt in ended]
        length_s = sum(end_s - start_s for start_s, end_s in spans)
        if length_s <= 0:
            return "never ran"
        if not any(sizes):
            return "had no GPU"
        texts = job["jobid"], job.get("user") or "", job["vc"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"jobid, user and vc are texts, and got {shown(texts)}")
        size = next(size for size in reversed(sizes) if size)
        attempts = joined(
            [[(*span, own) for span, own in zip(spans, sizes, strict=True) if span[0] < span[1]]]
        )
        return _Record(arrival_s, size, length_s, attempts, *texts)
    except KeyError as error:
        said = f"a job without field {error}; every job of a Philly log has it"
        raise RowError(path, line, "a field is missing", said) from error
    except (TypeError, ValueError, AttributeError) as error:
        said = (
            f"{shortened(str(error))}; a job has attempts, with start_time and end_time such as 2017-10-07 01:12:09 or "
            "null, and detail, a list of servers with gpus"
        )
        raise RowError(path, line, "not the fields of a job", said) from error


def _spans(attempts: Sequence[Any], arrival_s: float, zone: ZoneInfo | None) -> list[tuple[float, float]]:
    """From when until when attempts ran, one after the other, of a job that was submitted before."""
    spans, last_s = [], arrival_s
    for attempt in attempts:
        start_s = moment_s(attempt["start_time"], zone, last_s)
        last_s = moment_s(attempt["end_time"], zone, start_s)
        if last_s < start_s:
            raise ValueError(f"an attempt ends at {attempt['end_time']}, before it starts")
        spans.append((start_s, last_s))
    return spans


def _given(time: str | None) -> bool:
    return time not in (None, "", "None")


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """The members of a JSON list, each with the line on which it begins."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    with raised_as(FleetError), TextIOWrapper(open_plain(path), encoding="utf-8") as file:
        text = file.read(_PIECE)
        place = len(text) - len(text.lstrip())
        line = 1 + text.count("\n", 0, place)
        if not text.startswith("[", place):
            raise FleetError(f"{path}, line {line}: a Philly log is a JSON list of jobs and begins with '['")
        place += 1
        while True:
            while place < len(text) and text[place] in _SPACE:
                line += text[place] == "\n"
                place += 1
            if text.startswith("]", place):
                return
            try:
                member, end = decoder.raw_decode(text, place)
            except json.JSONDecodeError as error:
                more = file.read(_PIECE) if len(text) - place < _LARGEST_JOB else ""
                if not more:
                    raise FleetError(f"{path}, line {line}: not JSON, or cut off: {error.msg}") from error
                text, place = text[place:] + more, 0
                continue
            except ValueError as error:  # a key twice, or a number of thousands of digits
                raise FleetError(f"{path}, line {line}: {error}") from error
            except RecursionError as error:
                raise FleetError(
                    f"{path}, line {line}: lists too deep in each other; a Philly log is one list of jobs"
                ) from error
            yield line, member
            line += text.count("\n", place, end)
            place = end


def _matches(head: Head) -> bool:
    return (
        head.text.lstrip().startswith("[") and '"attempts"' in head.text and '"submitted_time"' in head.text
    )


FORMAT = Format(
    "philly",
    "Philly: cluster_job_log of Microsoft's cluster, JSON",
    _matches,
    read_philly,
    is_dated=True,
    timezone="America/Los_Angeles",
)

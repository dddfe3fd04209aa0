"""Microsoft's Philly trace: ``cluster_job_log``.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019;
msr-fiddle/philly-traces. One JSON list of jobs: status, vc, jobid, submitted_time, user, and attempts, each with
start_time, end_time and detail, a list of servers with the GPUs that it had there.

A job asks for the GPUs of its first attempt, and runs as long as all of its attempts did; jobs without a finished attempt
are left out. Time 0 is the first submission. The list is read piece by piece, and since it is not sorted, one short
record of every job is held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format, Head
from trainyard.reading import shortened, shown, undecodable, unique_keys

_PIECE = 1 << 20
_LARGEST_JOB = 1 << 24
_SPACE = " \t\r\n,"


def read_philly(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs that ran."""
    try:
        records = [record for line, job in _objects(path) if (record := _record(path, line, job)) is not None]
    except UnicodeDecodeError as error:
        raise FleetError(str(undecodable(path))) from error
    records.sort(key=lambda record: record[0])
    for moment, size, length_s, name, user, virtual_cluster in records:
        arrival_s = (moment - records[0][0]).total_seconds()
        yield declared_job(name, arrival_s, size, length_s, user=user, virtual_cluster=virtual_cluster)


def _record(path: Path, line: int, job: Any) -> tuple[datetime, int, float, str, str, str] | None:
    """Submission, devices, length, name, user, and virtual cluster."""
    try:
        attempts = [a for a in job["attempts"] if _given(a["start_time"]) and _given(a["end_time"])]
        length_s = sum((_moment(a["end_time"]) - _moment(a["start_time"])).total_seconds() for a in attempts)
        size = sum(len(server["gpus"]) for server in attempts[0]["detail"]) if attempts else 0
        if not size or length_s <= 0:
            return None
        return _moment(job["submitted_time"]), size, length_s, job["jobid"], job.get("user") or "", job["vc"]
    except KeyError as error:
        raise FleetError(
            f"{path}, line {line}: a job without field {error}; every job of a Philly log has it"
        ) from error
    except (TypeError, ValueError) as error:
        raise FleetError(
            f"{path}, line {line}: {shortened(str(error))}; a job has attempts, with start_time and "
            "end_time such as 2017-10-07 01:12:09 or null, and detail, a list of servers with gpus"
        ) from error


def _given(time: str | None) -> bool:
    return time not in (None, "", "None")


def _moment(time: str) -> datetime:
    # The log names no zone, and in autumn 2017 the clocks of Redmond changed; the offsets are not in it.
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is not None:
        raise ValueError(f"time {shown(time)} names a zone")
    return moment


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """The members of a JSON list, each with the line on which it begins."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    with path.open(encoding="utf-8") as file:
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


FORMAT = Format("philly", "Philly: cluster_job_log of Microsoft's cluster, JSON", _matches, read_philly)

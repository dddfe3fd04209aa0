"""Accounting records of Slurm, as ``sacct --parsable2`` prints them (https://slurm.schedmd.com/sacct.html).

::

    export SLURM_TIME_FORMAT=%s   # seconds since 1970, which no change of clocks makes ambiguous
    columns=JobID,User,Account,Partition,QOS,Priority,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,AllocTRES
    columns=$columns,ReqTRES
    sacct --allusers --duplicates --parsable2 --starttime=2025-03-01 --endtime=2025-04-01 --format=$columns > jobs.sacct

What is read of it, by column; JobID, Submit, Elapsed or ElapsedRaw, and AllocTRES or ReqTRES are needed:

- *JobID* (and Cluster, if it is there): lines with the same one are attempts of a job that was preempted or lost a node
  and was requeued (``--duplicates`` prints them all). They are one job: submitted when the first attempt was, with the
  devices of the last that ran; it takes the time of all that ran, added up, and as recorded waited between them.
  Attempts are in the order in which they were submitted and started, whatever that of the lines. One that has several
  lines (of files that were joined, where it ran from month to month) counts once, as the last of them has it.
  ``123+0``, ``123+1`` are components of a heterogeneous job, which is one gang: their devices are added up, and it
  takes the time of the longest. ``123_4`` of an array are jobs of their own. Steps, ``123.0`` or ``123.batch``, are
  parts of their jobs.
- *ElapsedRaw* or *Elapsed* is how long it ran; that is never computed from dates.
- *AllocTRES* or, where that names no GPUs, *ReqTRES*: a job with GPUs of one type (``gres/gpu:a100=4``) is bound to the
  type that it had; one with several types, or with GPUs of which the type is not said, to none. Memory counts in powers
  of 1024; ``mem=0`` is all that a node has, of which the record says no more: a proportional share.
- *Submit* and *Start* (of the first attempt that ran), as dates or seconds since 1970. sacct prints dates in local time
  without saying so: they are taken as UTC unless a time zone is given. With it, those of an hour that came twice are put
  in the order of the lines. Time 0 is the first arrival.
- *Eligible*, if it is there, is when a job could start: those that were held, or had to wait for other jobs
  (``--dependency``) or a begin time, arrive only then. No policy can start a job before.
- *TimelimitRaw* or *Timelimit*: UNLIMITED and Partition_Limit are none.
- *State* or *End* of the last attempt tell jobs that are not over, REQUEUED among them: another attempt is to come.
- *Priority*, of the last attempt that ran, and *QOS*.
- *User*, *Account* and *Partition*, which is the virtual cluster. A JobName is no model, and is not read.

Texts with ``|`` or line breaks in them (JobName, Comment and the like) are read where it is clear which column they are
in. Left out are jobs without a GPU, jobs that never ran, jobs that are not over (it is not known how long they run), and
jobs with parts of GPUs (shards, shares by MPS, slices by MIG), which are no whole devices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from trainyard.fleet.workload.attempts import Attempt, joined
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.slurm_fields import Resources, elapsed_s, limit_s, resources
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row, names_no_zone

_FREE_TEXTS = ("JobName", "Comment", "AdminComment", "SystemComment", "SubmitLine", "WorkDir")
_NUMBER = re.compile(r"\d+", re.ASCII)
_TAKEN_AS_UTC = (
    "dates of the trace name no time zone and are taken as UTC: where clocks were put forward or back meanwhile, times "
    "before and after that are an hour too far apart or too near. --timezone says which it is, such as Europe/Berlin"
)
_NOT_ELIGIBLE = (
    "jobs that were held, or waited for other jobs or a begin time, arrive when they could start (column Eligible), not "
    "when they were submitted"
)
_NOT_OVER = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "RESIZING", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"}
)
_NO_GPU = "asks for no GPU"
_GOES_ON = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})  # in another attempt


def read_slurm(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None, zone: ZoneInfo | None = None
) -> Iterator[Job]:
    """Jobs with GPUs that ran and are over; their times are seconds since 1970."""
    latest_s = -math.inf
    remarks = [] if left_out is None else left_out.remarks

    def submitted(row: Row) -> float | str:
        nonlocal latest_s
        if _NUMBER.match(row.fields["JobID"]) is None:
            raise row.error("JobID", "a number such as 123, 123_4 or 123+0")
        if "." in row.fields["JobID"]:
            return "a step of a job"
        if zone is None and _TAKEN_AS_UTC not in remarks and names_no_zone(row.fields["Submit"]):
            remarks.append(_TAKEN_AS_UTC)
        moment_s = row.moment_s("Submit", zone, latest_s)
        latest_s = max(latest_s, moment_s)
        eligible_s = _eligible_s(row, zone, moment_s)
        if eligible_s > moment_s and _NOT_ELIGIBLE not in remarks:
            remarks.append(_NOT_ELIGIBLE)
        had = resources(row)
        if had.num_parts:
            return "asks for slices or shards of GPUs, which are no whole devices"
        # Here, so that jobs that are only read over need no memory. What waits has nothing yet: it may be an attempt.
        is_known = bool(row.fields.get("AllocTRES") or row.fields.get("ReqTRES"))
        return eligible_s if had.num_devices or not is_known else _NO_GPU

    def job(rows: Sequence[Row], arrival_s: float) -> Job | str:
        return _job(rows, arrival_s, zone)

    table = Table(
        path,
        ("JobID", "Submit"),
        separator="|",
        free_texts=_FREE_TEXTS,
        made_by="sacct --parsable2 --format=JobID,Submit,... without --noheader",
        left_out=left_out,
    )
    return table.merged_in_order(
        submitted,
        job,
        _key,
        "another attempt or component of a job that has a line already, or the same again",
    )


def _eligible_s(row: Row, zone: ZoneInfo | None, submit_s: float) -> float:
    """When an attempt could start: not before it was submitted, and not after it did."""
    if not _is_known(row, "Eligible"):
        return submit_s
    eligible_s = row.moment_s("Eligible", zone, submit_s)
    if _is_known(row, "Start"):
        eligible_s = min(eligible_s, row.moment_s("Start", zone, submit_s))
    return max(submit_s, eligible_s)


def _key(row: Row) -> str:
    """Return the key that all lines of a job have in common."""
    number = row.fields["JobID"].partition("+")[0]
    return f"{row.fields['Cluster']}/{number}" if row.fields.get("Cluster") else number


class _Component(NamedTuple):
    """A component of a job; most jobs have one.

    Attributes
    ----------
    length_s : of all attempts.
    had : in the last attempt that ran.
    """

    length_s: float
    had: Resources


def _job(rows: Sequence[Row], arrival_s: float, zone: ZoneInfo | None) -> Job | str:
    rows = _attempts(rows, arrival_s, zone)
    first = next((row for row in rows if elapsed_s(row)), None)
    if first is None:
        return "never ran"
    by_component: dict[str, list[Row]] = {}
    for row in rows:
        by_component.setdefault(row.fields["JobID"], []).append(row)
    if any(_is_not_over(each[-1]) or _state(each[-1]) in _GOES_ON for each in by_component.values()):
        return "not over yet: it is not known how long it runs"
    parts = [part for each in by_component.values() if (part := _component(each)) is not None]
    num_devices = sum(part.had.num_devices for part in parts)
    if not num_devices:
        return _NO_GPU
    types = {name for part in parts for name in part.had.devices}
    return declared_job(
        _key(first),
        arrival_s,
        num_devices,
        max(part.length_s for part in parts),
        device_types=tuple(types) if len(types) == 1 and "" not in types else (),
        user=first.fields.get("User", ""),
        account=first.fields.get("Account", ""),
        virtual_cluster=first.fields.get("Partition", ""),
        cpus=sum(part.had.cpus for part in parts),
        memory_bytes=sum(part.had.memory_bytes for part in parts),
        attempts=_recorded(by_component.values(), arrival_s, zone),
        limit_s=limit_s(first),
        priority=_priority(rows),
        qos=first.fields.get("QOS", ""),
    )


def _attempts(rows: Sequence[Row], arrival_s: float, zone: ZoneInfo | None) -> Sequence[Row]:
    """One line of each attempt of each component, in the order in which they were submitted and started.

    Parameters
    ----------
    rows : in the order in which they were submitted.
    """
    if len(rows) == 1:
        return rows

    def started_s(row: Row) -> float:
        if not _is_known(row, "Start"):
            return math.inf if _is_not_over(row) else -math.inf
        return row.moment_s("Start", zone, arrival_s)

    def completeness(row: Row) -> tuple[bool, float]:
        return not _is_not_over(row), elapsed_s(row)

    found: dict[tuple[str, ...], Row] = {}
    for _, together in groupby(rows, key=lambda row: row.fields["Submit"]):
        for row in sorted(together, key=started_s):
            columns = ("JobID", "Submit", "Start") if _is_known(row, "Start") else row.fields
            key = tuple(row.fields[name] for name in columns)
            found[key] = max(row, found.get(key, row), key=completeness)
    return list(found.values())


def _recorded(
    components: Collection[Sequence[Row]], arrival_s: float, zone: ZoneInfo | None
) -> tuple[Attempt, ...]:
    """When the attempts of a job had devices, and how many; empty where one of them does not say when it started."""
    found = []
    for rows in components:
        ended_s, own = arrival_s, []
        for row in rows:
            if not elapsed_s(row):
                continue
            if not _is_known(row, "Start"):
                return ()
            start_s = row.moment_s("Start", zone, ended_s)
            ended_s = start_s + elapsed_s(row)
            own.append((start_s, ended_s, resources(row).num_devices))
        found.append(own)
    return joined(found)


def _priority(rows: Sequence[Row]) -> int:
    """Return the priority of the last attempt that ran; 0 if it is not known."""
    last = [row for row in rows if elapsed_s(row)][-1]
    return last.count("Priority") if _is_known(last, "Priority") else 0


def _component(attempts: Sequence[Row]) -> _Component | None:
    ran = [row for row in attempts if elapsed_s(row)]
    return _Component(sum(map(elapsed_s, ran)), resources(ran[-1])) if ran else None


def _state(row: Row) -> str:
    return row.fields.get("State", "").partition(" ")[0]


def _is_not_over(row: Row) -> bool:
    state = _state(row)
    return state in _NOT_OVER or (not state and "End" in row.fields and not _is_known(row, "End"))


def _is_known(row: Row, column: str) -> bool:
    return row.fields.get(column, "") not in ("", "None", "Unknown")


def _matches(head: Head) -> bool:
    # As columns of other widths and names, too, of which it is said what is wrong.
    words = set(re.split(r"[|,;\s]+", head.first))
    return "Submit" in words and not words.isdisjoint(("JobID", "JobIDRaw"))


FORMAT = Format(
    "slurm", "Slurm: output of sacct --parsable2", _matches, read_slurm, is_dated=True, may_overlap=True
)

"""Accounting records of Slurm, as ``sacct --parsable2`` prints them.

::

    sacct --allusers --parsable2 --format=JobID,User,Partition,State,Submit,ElapsedRaw,AllocTRES > jobs.sacct

JobID, Submit, ElapsedRaw (or Elapsed) and AllocTRES (or ReqTRES) are needed; User, Partition and JobName are used where
they are there. Lines of job steps, jobs without a GPU, and jobs that never ran are left out. Devices of one type
(``gres/gpu:a100=4``) bind the job to it. Time 0 is the first submission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.readers.formats import Format, Head
from trainyard.fleet.workload.readers.rows import Row, Table

_ELAPSED = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}):(\d\d):(\d\d)(?:\.\d+)?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMGTP]?)", re.ASCII)
_MOST_DIGITS = 9
_SUFFIXES = " KMGTP"
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)


def read_slurm(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs with GPUs that ran."""
    start_s = None
    for moment_s, row in Table(path, ("JobID", "Submit"), separator="|").by_arrival(_submitted):
        start_s = moment_s if start_s is None else start_s
        resources = _resources(row)
        size, device_type = _gpus(row, resources)
        yield declared_job(
            row.fields["JobID"],
            moment_s - start_s,
            size,
            _length_s(row),
            device_types=(device_type,) if device_type else (),
            user=row.fields.get("User", ""),
            virtual_cluster=row.fields.get("Partition", ""),
            cpus=_cpus(row, resources.get("cpu", "0")),
            memory_bytes=_memory_bytes(row, resources.get("mem", "0")),
            model=row.fields.get("JobName", ""),
        )


def _submitted(row: Row) -> float | None:
    if "." in row.fields["JobID"] or not _gpus(row, _resources(row))[0] or not _length_s(row):
        return None
    return row.moment_s("Submit")


def _column(row: Row, *names: str) -> str:
    """The first of these columns that there is."""
    for name in names:
        if name in row.fields:
            return name
    raise row.error(names[0], f"a column {' or '.join(names)}; add it to --format")


def _length_s(row: Row) -> float:
    if "ElapsedRaw" in row.fields:
        return row.number("ElapsedRaw")
    name = _column(row, "Elapsed")
    found = _ELAPSED.fullmatch(row.fields[name])
    if found is None:
        raise row.error(name, "a time such as 1-02:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _resources(row: Row) -> dict[str, str]:
    """What the job got, ``cpu=16,gres/gpu=2,mem=64G``, by name; before it got anything, what it asked for."""
    name = _tres(row)
    parts = [part.partition("=") for part in row.fields[name].split(",") if part]
    if not all(equals for _, equals, _ in parts):
        raise row.error(name, "a list such as cpu=16,gres/gpu=2,mem=64G")
    return {key: value for key, _, value in parts}


def _tres(row: Row) -> str:
    """The column that says what the job got or, where that is empty, asked for."""
    name = _column(row, "AllocTRES", "ReqTRES")
    return name if row.fields[name] or "ReqTRES" not in row.fields else "ReqTRES"


def _gpus(row: Row, resources: dict[str, str]) -> tuple[int, str]:
    """Number and type; types are listed beside the total."""
    typed = {key.removeprefix("gres/gpu:"): n for key, n in resources.items() if key.startswith("gres/gpu:")}
    total = resources.get("gres/gpu") or next(iter(typed.values()), "0")
    if not total.isdecimal() or len(total) > _MOST_DIGITS:
        raise row.error(_tres(row), f"gres/gpu= and a whole number of at most {_MOST_DIGITS} digits")
    return int(total), next(iter(typed)) if len(typed) == 1 else ""


def _cpus(row: Row, text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise row.error(_tres(row), "cpu= and a number such as 16")
    return float(text)


def _memory_bytes(row: Row, text: str) -> float:
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise row.error(_tres(row), "mem= and a size such as 64G")
    number, suffix = found.groups()
    # Slurm's sizes without a letter are mebibytes
    return float(number) * 1024.0 ** _SUFFIXES.index(suffix or "M")


def _matches(head: Head) -> bool:
    return head.columns("|").issuperset(("JobID", "Submit"))


FORMAT = Format("slurm", "Slurm: output of sacct --parsable2", _matches, read_slurm)

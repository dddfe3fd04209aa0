"""Reading a workload of any format, which is recognised by how it begins."""

from __future__ import annotations

import heapq
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import groupby
from pathlib import Path

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload import own
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers import (
    acme,
    alibaba,
    elasticflow,
    gavel,
    helios,
    philly,
    pollux,
    shockwave,
    slurm,
    swf,
    synergy,
    tiresias,
)
from trainyard.fleet.workload.readers.formats import Format
from trainyard.reading import raised_as
from trainyard.reading.head import recognised
from trainyard.reading.left_out import LeftOut

FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        own.FORMAT, tiresias.FORMAT, gavel.FORMAT, shockwave.FORMAT, pollux.FORMAT, pollux.PHILLY, elasticflow.FORMAT,
        synergy.FORMAT, alibaba.FORMAT, philly.FORMAT, helios.FORMAT, acme.FORMAT, slurm.FORMAT, swf.FORMAT,
    )
}  # fmt: skip
"""All formats, by name."""


class Workload:
    """The jobs of a trace in the order of their arrival; read when they are asked for, once, one after the other.

    Attributes
    ----------
    left_out : rows that gave no job, and why; whole when all jobs were taken.
    zero_s : seconds since 1970 at time 0, where the trace says when it was; from the first job on.
    """

    def __init__(
        self,
        jobs: Iterator[Job],
        left_out: LeftOut,
        path: Path,
        limit: int | None,
        is_dated: bool,
        zone: tzinfo | None = None,
    ) -> None:
        self.left_out, self._zone = left_out, zone or UTC
        self.zero_s: float | None = None
        self._jobs = self._counted(jobs, path, limit, is_dated)

    @property
    def zero(self) -> datetime | None:
        """The date at time 0, in the zone of the trace's dates, or UTC; known when ``zero_s`` is."""
        return None if self.zero_s is None else datetime.fromtimestamp(self.zero_s, self._zone)

    def __iter__(self) -> Iterator[Job]:
        return self._jobs

    def __next__(self) -> Job:
        return next(self._jobs)

    def _counted(self, jobs: Iterator[Job], path: Path, limit: int | None, is_dated: bool) -> Iterator[Job]:
        for job in jobs:
            if is_dated:
                if self.zero_s is None:
                    self.zero_s = job.arrival_s
                job = _counted_from(job, self.zero_s)
            if job.started_s is not None and job.started_s < job.arrival_s:
                job = replace(job, attempts=())  # clocks that went wrong, or back
            self.left_out.num_used += 1
            yield job
            if self.left_out.num_used == limit:
                self.left_out.add_rest(f"after the first {limit:,} jobs, which is the limit that was given")
                return
        if not self.left_out.num_used:
            why = "; ".join(str(reason) for reason in self.left_out.reasons) or "it has no rows"
            raise FleetError(f"{path} gives no job to replay: {why}")


def _counted_from(job: Job, zero_s: float) -> Job:
    """The same job with its times counted from another moment."""
    attempts = tuple(attempt.shifted(-zero_s) for attempt in job.attempts)
    return replace(job, arrival_s=job.arrival_s - zero_s, attempts=attempts)


def recognise(path: Path) -> Format:
    """The format of a file.

    Raises
    ------
    FleetError
        If it is of none.
    """
    with raised_as(FleetError):
        return recognised(path, FORMATS, "job")


def _only_format(path: Path, files: Sequence[Path]) -> Format:
    """Return the one format of the files of a folder, or of a single file."""
    entries = {recognise(file) for file in files}
    if len(entries) > 1:
        raise FleetError(
            f"folder {path} has traces of {', '.join(sorted(e.name for e in entries))}; give one format"
        )
    return entries.pop()


def read_workload(
    path: Path,
    format: str | None = None,
    profiles: Path | None = None,
    limit: int | None = None,
    device_types: Sequence[str] = (),
    *,
    strict: bool = False,
    timezone: str | None = None,
    own_files: bool = False,
) -> Workload:
    """The jobs of a trace, in the order of their arrival; read when asked for, one after the other.

    Rows that are no jobs to replay (no device, never ran, a part of another row's job) and rows that cannot be read are
    left out and counted. A folder is read as one workload: its files are virtual clusters, unless they name some, and
    their names come before those of the jobs; of accounting records, a job that two files have counts once. Files may
    be compressed (gzip, bzip2, xz) and in UTF-16.

    Parameters
    ----------
    path : a file, or a folder of files of one format.
    format : name of the format; recognised if it is not given.
    profiles : where the measured speeds of the jobs are, for formats that have them in a file of their own.
    limit : take only so many jobs, the first ones; by default all.
    device_types : of the cluster, where profiles may have tables by type: those of Sia.
    strict : the first row that cannot be read is an error.
    own_files : whether Python files that jobs name as their models are run, to know how fast they are; a job with such a
        file is refused else.
    timezone : of a trace in local time, such as ``"Europe/Berlin"``; by default as its format says, else UTC.

    Raises
    ------
    FleetError
        If the file cannot be read, or no row of it gives a job; the message says where, and what is allowed.
    """
    if format is not None and format not in FORMATS:
        raise FleetError(f"unknown trace format {format!r}; known: {', '.join(FORMATS)}")
    if limit is not None and limit < 1:
        raise FleetError(
            f"limit {limit}: it is the number of jobs to take, at least 1; leave it out to take all"
        )
    files = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".") if path.is_dir() else [path]
    if not files:
        raise FleetError(f"folder {path} has no files; give a trace, or a folder of traces")
    entry = FORMATS[format] if format else _only_format(path, files)
    left_out = LeftOut(strict=strict, names_files=path.is_dir())
    zone = _zone_of(entry, timezone)
    read = _reading(entry, left_out, profiles, device_types, zone, own_files)
    if path.is_dir():
        parts = (_part(file, read(file)) for file in files)
        jobs: Iterator[Job] = heapq.merge(*parts, key=lambda job: job.arrival_s)
        if entry.may_overlap:
            jobs = _once(jobs, left_out)
    else:
        jobs = read(path)
    return Workload(jobs, left_out, path, limit, entry.is_dated, zone)


def _reading(
    entry: Format,
    left_out: LeftOut,
    profiles: Path | None,
    device_types: Sequence[str],
    zone: zoneinfo.ZoneInfo | None,
    own_files: bool,
) -> Callable[[Path], Iterator[Job]]:
    """Return the reader of a format with its arguments."""
    if profiles is not None and not entry.profiles:
        raise FleetError(f"a {entry.name} trace has no profiles; leave {profiles} out")
    if profiles is None and entry.needs_profiles:
        raise FleetError(
            f"a {entry.name} trace gives work, not time; give `--profiles` (in Python `profiles`): {entry.profiles}"
        )
    read = partial(entry.read, left_out=left_out, profiles=profiles)
    if entry.by_type:
        read = partial(read, device_types=device_types)
    if entry.has_models:
        read = partial(read, own_files=own_files)
    return partial(read, zone=zone) if entry.is_dated else read


def _zone_of(entry: Format, name: str | None) -> zoneinfo.ZoneInfo | None:
    """The zone of dates that name none, where one is known."""
    if name is not None and not entry.is_dated:
        raise FleetError(f"a {entry.name} trace has seconds, no dates; leave the time zone {name!r} out")
    name = name or entry.timezone
    return _zone(name) if name else None


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise FleetError(
            f"unknown time zone {name!r}; give a name such as Europe/Berlin (a machine that knows none gets them with "
            "`pip install tzdata`)"
        ) from error


def _once(jobs: Iterator[Job], left_out: LeftOut) -> Iterator[Job]:
    """Jobs of several files without those that another file has, too."""
    for _, together in groupby(jobs, key=lambda job: job.arrival_s):
        names: set[str] = set()
        for job in together:
            name = job.name.partition("/")[2]
            if name in names:
                left_out.add_named("the same job as in another file", job.name)
            else:
                names.add(name)
                yield job


def _part(file: Path, jobs: Iterator[Job]) -> Iterator[Job]:
    for job in jobs:
        yield replace(job, name=f"{file.stem}/{job.name}", virtual_cluster=job.virtual_cluster or file.stem)

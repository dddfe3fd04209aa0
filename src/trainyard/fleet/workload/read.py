"""Reading a workload of any format, which is recognised by how it begins."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload import own
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers import (
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
from trainyard.fleet.workload.readers.formats import Format, Head

FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        own.FORMAT, tiresias.FORMAT, gavel.FORMAT, shockwave.FORMAT, pollux.FORMAT, pollux.PHILLY, elasticflow.FORMAT,
        synergy.FORMAT, alibaba.FORMAT, philly.FORMAT, helios.FORMAT, slurm.FORMAT, swf.FORMAT,
    )
}  # fmt: skip
"""All formats, by name."""


def recognise(path: Path) -> Format:
    """The format of a file.

    Raises
    ------
    FleetError
        If it is of none.
    """
    head = Head.of(path)
    found = [entry for entry in FORMATS.values() if entry.matches(head)]
    if len(found) != 1:
        what = f"could be {', '.join(f.name for f in found)}" if found else "is of no known format"
        raise FleetError(
            f"trace {path} {what}; name one: {', '.join(FORMATS)}. It begins with {head.first[:80]!r}"
        )
    return found[0]


def read_workload(
    path: Path,
    format: str | None = None,
    profiles: Path | None = None,
    limit: int | None = None,
    device_types: Sequence[str] = (),
) -> Iterator[Job]:
    """The jobs of a trace, in the order of their arrival; read when asked for, one after the other.

    Jobs that ask for no device and jobs that never ran are left out. A folder is read as one workload: its files are
    virtual clusters, unless they name some, and their names come before those of the jobs.

    Parameters
    ----------
    path : a file, or a folder of files of one format.
    format : name of the format; recognised if it is not given.
    profiles : where the measured speeds of the jobs are, for formats that have them in a file of their own.
    limit : take only so many jobs, the first ones; by default all.
    device_types : of the cluster, where profiles may have tables by type: those of Sia.

    Raises
    ------
    FleetError
        If it cannot be read; the message says where in the file, and what is allowed.
    """
    if format is not None and format not in FORMATS:
        raise FleetError(f"no trace format {format!r}; there are {', '.join(FORMATS)}")
    if limit is not None and limit < 1:
        raise FleetError(
            f"limit {limit}: it is the number of jobs to take, at least 1; leave it out to take all"
        )
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise FleetError(f"folder {path} has no files; give a trace, or a folder of traces")
    entries = {FORMATS[format] if format else recognise(file) for file in files}
    if len(entries) > 1:
        raise FleetError(
            f"folder {path} has traces of {', '.join(sorted(e.name for e in entries))}; give one format"
        )
    entry = entries.pop()
    if profiles is not None and not entry.profiles:
        raise FleetError(f"a {entry.name} trace has no profiles; leave {profiles} out")
    if profiles is None and entry.needs_profiles:
        raise FleetError(f"a {entry.name} trace gives work, not time; give `profiles`: {entry.profiles}")
    read = partial(entry.read, profiles=profiles)
    if entry.by_type:
        read = partial(read, device_types=device_types)
    if not path.is_dir():
        return islice(read(path), limit)
    parts = (_part(file, read(file)) for file in files)
    return islice(heapq.merge(*parts, key=lambda job: job.arrival_s), limit)


def _part(file: Path, jobs: Iterator[Job]) -> Iterator[Job]:
    for job in jobs:
        yield replace(job, name=f"{file.stem}/{job.name}", virtual_cluster=job.virtual_cluster or file.stem)

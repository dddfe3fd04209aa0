"""Traces and throughputs of Gavel.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020;
stanford-futuredata/gavel. A trace has no header and is separated by tabs; work is counted in steps::

    10 columns  job_type command working_directory num_steps_arg needs_data_dir total_steps scale_factor priority_weight
                SLO arrival
     7 columns  job_type command num_steps_arg needs_data_dir total_steps arrival scale_factor

``*_throughputs.json`` gives steps per second by worker type, by job type and scale factor, alone (``"null"``) and beside
each other job type: ``[own, other]``. Commands are not read.

Device types are named as in the table, v100, p100, k80, and a job asks for those that can run it. It is named
``NUMBER:JOB TYPE``, so that the type of a partner follows from its name. A gang that was not measured runs as fast per
device as the largest measured one below it: the traces have gangs of up to 64, the tables up to 8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading import parse_json, raised_as, read_text, shortened, shown
from trainyard.reading.head import Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

Kind = tuple[str, int]
"""Job type and scale factor."""

REFERENCE = "v100"
"""The device type on which SLOs count; the authors' simulator does so."""

_LONG = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor",
    "priority_weight", "SLO", "arrival",
)  # fmt: skip
_SHORT = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival", "scale_factor")
_SPREAD = "_unconsolidated"
_KIND = re.compile(r"\('(.+)', (\d{1,9})\)")
_MODEL = re.compile(r"(.+) \(batch size (\d{1,15})\)")


@dataclass(frozen=True, eq=False)
class Throughputs:
    """What was measured; steps per second.

    Attributes
    ----------
    alone : by device type and kind of job.
    together : by device type, kind, and kind of the partner: own, and the partner's.
    """

    alone: Mapping[str, Mapping[Kind, float]]
    together: Mapping[str, Mapping[Kind, Mapping[Kind, tuple[float, float]]]]

    def of_gang(self, device_type: str, job_type: str, num_devices: int) -> float:
        """Steps per second alone; 0 where nothing was measured."""
        table = self.alone.get(device_type, {})
        if (job_type, num_devices) in table:
            return table[job_type, num_devices]
        smaller = [n for kind, n in table if kind == job_type and n < num_devices]
        return table[job_type, max(smaller)] * num_devices / max(smaller) if smaller else 0.0

    def runs_on(self, job_type: str, num_devices: int) -> tuple[str, ...]:
        """Device types that can run a gang."""
        kinds = [kind for kind in self.alone if not kind.endswith(_SPREAD)]
        return tuple(kind for kind in kinds if self.of_gang(kind, job_type, num_devices))

    def of_pair(self, device_type: str, kind: Kind, other: Kind) -> tuple[float, float]:
        """Steps per second of both on the same devices; 0 where that was not measured."""
        return self.together.get(device_type, {}).get(kind, {}).get(other, (0.0, 0.0))


@dataclass(frozen=True)
class GavelProfile:
    """How fast a job of Gavel's runs, in steps per second.

    Attributes
    ----------
    throughputs, job_type : of which table, and of which job.
    spread : whether devices on more than one node are slower, as the ``_unconsolidated`` tables say. The authors'
        simulator does not ask where devices are.
    """

    throughputs: Throughputs
    job_type: str
    spread: bool = False

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        where = spot.device_type
        if self.spread and spot.num_nodes > 1:
            where += _SPREAD
        if not grant.partners:
            return grant.share * self.throughputs.of_gang(where, self.job_type, spot.num_devices)
        if len(grant.partners) > 1:
            return 0.0
        other = grant.partners[0].partition(":")[2]
        kinds = (self.job_type, spot.num_devices), (other, spot.num_devices)
        return self.throughputs.of_pair(where, *kinds)[0]


@lru_cache(maxsize=4)
def read_throughputs(path: Path) -> Throughputs:
    """Read a throughput file; it is kept, since all jobs of a trace share it.

    Raises
    ------
    FleetError
        If it is no such file.
    """
    try:
        with raised_as(FleetError):
            tables = parse_json(read_text(path), path)
        together = {
            where: {_kind(k): _pairs(row) for k, row in table.items()} for where, table in tables.items()
        }
        alone = {where: {_kind(k): float(row["null"]) for k, row in t.items()} for where, t in tables.items()}
    except FleetError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise FleetError(
            f"{path}: not a table of throughputs ({shortened(str(error))}); allowed is worker type > "
            "('job type', scale factor) > null: steps/s, or ('job type', scale factor): [own, other]"
        ) from error
    return Throughputs(alone, together)


def _kind(text: str) -> Kind:
    found = _KIND.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(text)} is no job type")
    return found[1], int(found[2])


def _pairs(row: Mapping[str, Any]) -> dict[Kind, tuple[float, float]]:
    return {_kind(name): (float(pair[0]), float(pair[1])) for name, pair in row.items() if name != "null"}


def split_type(job_type: str) -> tuple[str, int]:
    """Model and batch size of ``"ResNet-18 (batch size 64)"``; 0 where it names none."""
    found = _MODEL.fullmatch(job_type)
    return (found[1], int(found[2])) if found else (job_type, 0)


def read_gavel(path: Path, profiles: Path | None = None, left_out: LeftOut | None = None) -> Iterator[Job]:
    """Jobs of a trace of either layout.

    Parameters
    ----------
    profiles : the throughput file.
    """
    assert profiles is not None
    throughputs = read_throughputs(profiles)
    with raised_as(FleetError):
        first = Head.of(path).first
    columns = _SHORT if first.count("\t") == len(_SHORT) - 1 else _LONG

    def job(row: Row, arrival_s: float) -> Job:
        job_type, size = row.fields["job_type"], row.count("scale_factor", 1)
        steps = row.number("total_steps", 1)
        reference = throughputs.of_gang(REFERENCE, job_type, size)
        if not reference:
            raise row.error("job_type", f"a job type of {profiles}, and it has no {shown(job_type)}")
        slo = row.number("SLO", -1) if "SLO" in row.fields else -1.0
        model, batch_size = split_type(job_type)
        return Job(
            f"{row.line - 1}:{job_type}",
            arrival_s,
            size,
            steps,
            GavelProfile(throughputs, job_type),
            device_types=throughputs.runs_on(job_type, size),
            weight=row.positive("priority_weight") if "priority_weight" in row.fields else 1.0,
            deadline_s=arrival_s + slo * steps / reference if slo > 0 else None,
            model=model,
            batch_size=batch_size,
        )

    table = Table(path, columns, columns, "\t", left_out=left_out)
    return table.in_order(lambda row: row.number("arrival"), job)


def _matches(head: Head) -> bool:
    fields = head.first.split("\t")
    steps = {len(_SHORT): 4, len(_LONG): 5}.get(len(fields))
    return steps is not None and fields[steps].isdigit()


FORMAT = Format(
    "gavel",
    "Gavel: TSV of job types and steps, 7 or 10 columns",
    _matches,
    read_gavel,
    profiles="its throughputs, such as simulation_throughputs.json",
    needs_profiles=True,
)

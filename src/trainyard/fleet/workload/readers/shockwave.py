"""Traces of Shockwave, which are Gavel's with jobs that change their batch size as they train.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023;
uw-mad-dash/shockwave. Twelve columns separated by tabs, without a header: those of Gavel with the mode (``static``,
``accordion``, ``gns``) before the weight and the duration before the arrival. Throughputs are Gavel's, too.

The profile knows the mode, for policies that foresee it; it runs at the first batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers.formats import Format, Head
from trainyard.fleet.workload.readers.gavel import GavelProfile, read_throughputs, split_type
from trainyard.fleet.workload.readers.rows import Table

MODES = ("static", "accordion", "gns")
_COLUMNS = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor", "mode",
    "priority_weight", "SLO", "duration", "arrival",
)  # fmt: skip


@dataclass(frozen=True)
class ShockwaveProfile(GavelProfile):
    """A job of Shockwave's.

    Attributes
    ----------
    mode : how its batch size changes.
    duration_s : that the trace gives for it.
    """

    mode: str = "static"
    duration_s: float = 0.0


def read_shockwave(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs of a trace.

    Parameters
    ----------
    profiles : the throughput file.
    """
    assert profiles is not None
    throughputs = read_throughputs(profiles)
    for arrival_s, row in Table(path, _COLUMNS, _COLUMNS, "\t").by_arrival(lambda row: row.number("arrival")):
        job_type, mode = row.fields["job_type"], row.fields["mode"]
        if mode not in MODES:
            raise row.error("mode", ", ".join(MODES))
        duration_s, size = row.number("duration"), row.count("scale_factor", 1)
        slo = row.number("SLO", -1)
        model, batch_size = split_type(job_type)
        yield Job(
            f"{row.line - 1}:{job_type}",
            arrival_s,
            size,
            row.number("total_steps", 1),
            ShockwaveProfile(throughputs, job_type, mode=mode, duration_s=duration_s),
            device_types=throughputs.runs_on(job_type, size),
            weight=row.number("priority_weight"),
            deadline_s=arrival_s + slo * duration_s if slo > 0 else None,
            model=model,
            batch_size=batch_size,
        )


def _matches(head: Head) -> bool:
    fields = head.first.split("\t")
    return len(fields) == len(_COLUMNS) and fields[_COLUMNS.index("mode")] in MODES


FORMAT = Format(
    "shockwave",
    "Shockwave: TSV of Gavel's job types with a mode, 12 columns",
    _matches,
    read_shockwave,
    profiles="its throughputs, such as tacc_throughputs.json",
    needs_profiles=True,
)

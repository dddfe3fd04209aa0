"""Traces of Shockwave, which are Gavel's with jobs that change their batch size as they train.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023;
uw-mad-dash/shockwave. Twelve columns separated by tabs, without a header: those of Gavel with the mode (``static``,
``accordion``, ``gns``) before the weight and the duration before the arrival. Throughputs are Gavel's, too.

Work is counted in steps of the first batch size; with a larger one an epoch takes fewer steps and less time. Policies
that ask for speeds, of pairs too, hear those of the first batch size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from trainyard.fleet.workload.job import Adaptive, Grant, Job, Rate, Spot
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.gavel import GavelProfile, read_throughputs, split_type
from trainyard.fleet.workload.readers.shockwave_batches import regimes, steps_per_epoch
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

MODES = ("static", "accordion", "gns")
# Work that is done at the end of an epoch may be a little less than that.
_ROUNDING = 1e-9
_COLUMNS = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor", "mode",
    "priority_weight", "SLO", "duration", "arrival",
)  # fmt: skip


@dataclass(frozen=True)
class ShockwaveProfile(GavelProfile, Adaptive):
    """A job of Shockwave's, which changes its batch size at the end of some epochs.

    Attributes
    ----------
    mode : how its batch size changes.
    duration_s : that the trace gives for it.
    """

    mode: str = "static"
    duration_s: float = 0.0

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        """Return a rate that holds until the epoch in which the job takes another batch size.

        With a batch size that was not measured it is as fast as with the first one.
        """
        model, first = split_type(self.job_type)
        sizes = regimes(model, first, spot.num_devices, self.mode)
        own = steps_per_epoch(model, first)
        at = bisect_right([epoch for epoch, _ in sizes], int(done / own + _ROUNDING)) - 1
        batch_size, until = sizes[at][1], inf if at + 1 == len(sizes) else float(sizes[at + 1][0] * own)
        if batch_size == first:
            return Rate(self.work_per_s(spot, grant), until, None, first)
        larger = replace(self, job_type=self.job_type.replace(f" {first})", f" {batch_size})"))
        faster = own / steps_per_epoch(model, batch_size)
        rate = larger.work_per_s(spot, grant) * faster or self.work_per_s(spot, grant)
        return Rate(rate, until, None, batch_size)


def read_shockwave(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None
) -> Iterator[Job]:
    """Jobs of a trace.

    Parameters
    ----------
    profiles : the throughput file.
    """
    assert profiles is not None
    throughputs = read_throughputs(profiles)

    def job(row: Row, arrival_s: float) -> Job:
        job_type, mode = row.fields["job_type"], row.fields["mode"]
        if mode not in MODES:
            raise row.error("mode", ", ".join(MODES))
        duration_s, size = row.number("duration"), row.count("scale_factor", 1)
        slo = row.number("SLO", -1)
        model, batch_size = split_type(job_type)
        return Job(
            f"{row.line - 1}:{job_type}",
            arrival_s,
            size,
            row.number("total_steps", 1),
            ShockwaveProfile(throughputs, job_type, mode=mode, duration_s=duration_s),
            device_types=throughputs.runs_on(job_type, size),
            weight=row.positive("priority_weight"),
            deadline_s=arrival_s + slo * duration_s if slo > 0 else None,
            model=model,
            batch_size=batch_size,
        )

    table = Table(path, _COLUMNS, _COLUMNS, "\t", left_out=left_out)
    return table.in_order(lambda row: row.number("arrival"), job)


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

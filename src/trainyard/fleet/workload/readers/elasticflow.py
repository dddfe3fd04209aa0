"""Traces and throughputs of ElasticFlow.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023. Seconds;
deadlines are moments, not spans. Three layouts of CSV:

- raw (microsoft/elasticflow-traces): job_id, submission_time, duration, num_gpu;
- with deadlines (same place): also num_iteration, model_name, deadline, batch_size;
- of the simulator (pkusys/ElasticFlow): job_id, submit_time, iteration, model_name, ddl, batch_size, num_gpu, duration,
  and at times best_effort: such jobs have no deadline and run on what the others leave.

``throughputs_<DEVICE>/<model>.csv`` gives iterations per second by global batch size (rows) and devices (columns); empty,
``nan`` and 0 stand for what does not run. With them, jobs count iterations, can be resized, and ask for the types they
were measured on; without, they are jobs of their duration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot, declared_job
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading import raised_as
from trainyard.reading.head import HasColumns, Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

Scaling = Mapping[int, Mapping[int, float]]
"""Iterations per second by global batch size and number of devices."""

_RAW = ("job_id", "submission_time", "duration", "num_gpu")
_SIMULATED = ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")
_MOST_DIGITS = 9  # of a number of devices
_NAMES = {"submission_time": "submit_time", "num_iteration": "iteration", "deadline": "ddl"}


@dataclass(frozen=True)
class ElasticFlowProfile:
    """Iterations per second at the job's own batch size; with another, as many as have its samples.

    Attributes
    ----------
    scaling : by device type.
    batch_size : the job's own.
    """

    scaling: Mapping[str, Scaling]
    batch_size: int

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        batch_size = grant.batch_size or self.batch_size
        per_s = self.scaling.get(spot.device_type, {}).get(batch_size, {})
        # Devices between two measured numbers are idle.
        usable = [n for n in per_s if n <= spot.num_devices]
        return grant.share * per_s[max(usable)] * batch_size / self.batch_size if usable else 0.0


def read_scalings(folder: Path) -> dict[str, dict[str, Scaling]]:
    """Tables by device type and model, of one ``throughputs_<DEVICE>`` folder, or of all of them in a folder."""
    folders = [folder] if any(folder.glob("*.csv")) else sorted(folder.glob("throughputs_*/"))
    tables = {
        f.name.rpartition("_")[2]: {p.stem: _scaling(p) for p in sorted(f.glob("*.csv"))} for f in folders
    }
    if not tables:
        raise FleetError(
            f"folder {folder} has no <model>.csv and no throughputs_<DEVICE> folder; give one that has"
        )
    return tables


def _scaling(path: Path) -> Scaling:
    scaling = {}
    for row in Table(path, ("global_batch_size",)).rows():
        counts = [name for name in row.fields if name.isdecimal() and len(name) <= _MOST_DIGITS]
        measured = {int(name): row.number(name) for name in counts if row.fields[name] not in ("", "nan")}
        scaling[row.count("global_batch_size", 1)] = {n: value for n, value in measured.items() if value > 0}
    return scaling


def read_elasticflow(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None
) -> Iterator[Job]:
    """Jobs of any of the three layouts.

    Parameters
    ----------
    profiles : a folder of throughputs.
    """
    with raised_as(FleetError):
        raw = "submission_time" in Head.of(path).columns()
    submitted = "submission_time" if raw else "submit_time"
    tables = read_scalings(profiles) if profiles else {}

    def job(row: Row, arrival_s: float) -> Job:
        fields = {_NAMES.get(name, name): value for name, value in row.fields.items()}
        return _job(arrival_s, row._replace(fields=fields), tables)

    table = Table(path, _RAW if raw else _SIMULATED, left_out=left_out)
    return table.in_order(lambda row: row.number(submitted), job, "job_id")


def _job(arrival_s: float, row: Row, tables: Mapping[str, Mapping[str, Scaling]]) -> Job:
    name, size = row.fields["job_id"], row.count("num_gpu", 1)
    if "ddl" not in row.fields:
        return declared_job(name, arrival_s, size, row.number("duration"))
    guaranteed = row.fields.get("best_effort", "0") in ("0", "")
    deadline_s = row.number("ddl") if guaranteed else None
    model, batch_size = row.fields["model_name"], row.count("batch_size", 1)
    job = declared_job(
        name, arrival_s, size, row.number("duration"),
        deadline_s=deadline_s, guaranteed=guaranteed, model=model, batch_size=batch_size,
    )  # fmt: skip
    return _with_scaling(job, row, tables) if tables else job


def _with_scaling(job: Job, row: Row, tables: Mapping[str, Mapping[str, Scaling]]) -> Job:
    scaling = {kind: models[job.model] for kind, models in tables.items() if job.model in models}
    scaling = {kind: scales for kind, scales in scaling.items() if scales.get(job.batch_size)}
    if not scaling:
        raise row.error(
            "model_name", f"a model that was measured at batch size {job.batch_size} on {', '.join(tables)}"
        )
    most = max(max(scales[job.batch_size]) for scales in scaling.values())
    return Job(
        job.name, job.arrival_s, job.num_devices, float(row.count("iteration", 1)),
        ElasticFlowProfile(scaling, job.batch_size), min_devices=1, max_devices=max(most, job.num_devices),
        deadline_s=job.deadline_s, guaranteed=job.guaranteed, model=job.model, batch_size=job.batch_size,
        device_types=tuple(scaling),
    )  # fmt: skip


FORMAT = Format(
    "elasticflow",
    "ElasticFlow: CSV, raw or with iterations, deadlines and batch sizes",
    HasColumns((_RAW, _SIMULATED)),
    read_elasticflow,
    profiles="a folder throughputs_<DEVICE>, or a folder of such folders",
)

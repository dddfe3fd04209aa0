"""Workloads and step times of Pollux and Sia, and the Philly trace from which they were drawn.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021 (petuum/adaptdl);
Jayaram Subramanya et al., "Sia: Heterogeneity-aware, Goodput-optimized ML-cluster Scheduling", SOSP 2023. Seconds.

- A workload has the columns name, time, application, num_replicas, batch_size. It says what runs, not for how long: how
  much work an application is and how fast it runs follows from its measurements. Until a job is given these, its profile
  only says so.
- The measurements, ``traces`` of Pollux, are a folder per application. With them, jobs tune themselves: they choose their
  batch sizes and ask for one device, whatever the workload says; a policy that resizes no job leaves them on it. NCF
  keeps its batch and its device, as in the authors' simulator. Those of Sia are by device type as well: on a cluster
  whose types were measured, jobs learn how fast they are on each.
- ``philly.csv`` has the columns timestamp, duration, num_gpus, gpu_time, cluster, and is not sorted. Time 0 is the first
  submission.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from zoneinfo import ZoneInfo

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.application import Application, adaptive
from trainyard.fleet.workload.job import Grant, Job, Spot, declared_job
from trainyard.fleet.workload.readers.adaptdl import read_application
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.head import has_columns
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

_WORKLOAD = ("name", "time", "application", "num_replicas", "batch_size")
_PHILLY = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
_PROFILES = (
    "a folder with a folder per application, which has placements.csv, scalability.csv and "
    "validation-<batch size>.csv, such as `traces` of Pollux or of Sia"
)
# Rules of the authors' simulators: samples of a pass on a device of a type, and the batch of a job that keeps it.
_LARGEST_LOCAL = MappingProxyType({("yolov3", ""): 8, ("yolov3", "aws"): 8, ("deepspeech2", "rtx"): 57})
_FIXED_BATCH = MappingProxyType({"ncf": 32768})


@dataclass(frozen=True)
class Unmeasured:
    """The profile of a job whose application has to be measured first.

    Attributes
    ----------
    application : its name.
    """

    application: str

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        raise FleetError(
            f"nothing is known of the speed of application {self.application!r}; give `--profiles` (in Python "
            f"`profiles`): {_PROFILES}"
        )


@lru_cache(maxsize=16)
def read_applications(folder: Path, device_type: str = "") -> Mapping[str, Application]:
    """Applications by name; kept, since all jobs of a workload share them.

    As the authors' simulators have it, YOLOv3 makes passes of at most 8 samples on a T4, and DeepSpeech2 of 57 on a
    2080 Ti.

    Parameters
    ----------
    device_type : on which they were measured; by default for devices of any type.

    Raises
    ------
    FleetError
        If there are none, or one is not readable as what it is.
    """
    names = sorted(path.parent.name for path in folder.glob("*/placements.csv"))
    if not names:
        raise FleetError(f"folder {folder} has no <application>/placements.csv; give {_PROFILES}")
    largest = {name: _LARGEST_LOCAL.get((name, device_type), 0) for name in names}
    return MappingProxyType(
        {name: read_application(folder / name, largest[name], device_type) for name in names}
    )


def read_pollux(
    path: Path,
    profiles: Path | None = None,
    left_out: LeftOut | None = None,
    device_types: Sequence[str] = (),
) -> Iterator[Job]:
    """Jobs of a workload of Pollux' or Sia's; ``model`` is the application.

    Parameters
    ----------
    profiles : the folder of applications; without, jobs cannot be simulated.
    device_types : of the cluster; where they were measured, jobs are told the types apart.

    Raises
    ------
    FleetError
        If some types were measured and others not.
    """
    if profiles is None:
        return _unmeasured(path, left_out)
    first, *others = (read_applications(profiles, kind) for kind in _measured(profiles, device_types))
    elsewhere = {name: tuple(other[name] for other in others) for name in first}
    return adaptive(_unmeasured(path, left_out, first), first, _FIXED_BATCH, elsewhere)


def _measured(folder: Path, device_types: Sequence[str]) -> Sequence[str]:
    """Return the types if applications were measured on each; "", which is any type, if on none of them."""
    known = sorted({path.stem.removeprefix("placements-") for path in folder.glob("*/placements-*.csv")})
    lacking = [kind for kind in device_types if kind not in known]
    if len(lacking) == len(device_types):
        return ("",)
    if lacking:
        raise FleetError(
            f"folder {folder} has no <application>/placements-{lacking[0]}.csv for devices of type {lacking[0]!r}; it "
            f"has such for {', '.join(known)}: take a cluster of these, or of none of them"
        )
    return device_types


def _unmeasured(
    path: Path, left_out: LeftOut | None, measured: Collection[str] | None = None
) -> Iterator[Job]:
    """Jobs of applications that are to be measured, or of these, which were."""

    def job(row: Row, arrival_s: float) -> Job:
        application = row.fields["application"]
        if measured is not None and application not in measured:
            raise row.error("application", f"one that was measured: {', '.join(measured)}")
        return Job(
            row.fields["name"],
            arrival_s,
            row.count("num_replicas", 1),
            0.0,
            Unmeasured(application),
            model=application,
            batch_size=row.count("batch_size", 1),
        )

    return Table(path, _WORKLOAD, left_out=left_out).in_order(lambda row: row.number("time"), job, "name")


def read_philly_csv(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None, zone: ZoneInfo | None = None
) -> Iterator[Job]:
    """Jobs of ``philly.csv``, named by their line.

    A job ran ``duration`` seconds on ``num_gpus`` devices. Its time is taken as it stands, as the authors' simulators do,
    though it is of Redmond, where clocks were put back on 5 November 2017.
    """

    def job(row: Row, arrival_s: float) -> Job:
        return declared_job(
            str(row.line),
            arrival_s,
            row.count("num_gpus", 1),
            row.number("duration"),
            virtual_cluster=row.fields["cluster"],
        )

    return Table(path, _PHILLY, left_out=left_out).in_order(lambda row: row.moment_s("timestamp", zone), job)


FORMAT = Format(
    "pollux",
    "Pollux and Sia: CSV of applications",
    has_columns(*_WORKLOAD),
    read_pollux,
    profiles=_PROFILES,
    needs_profiles=True,
    by_type=True,
)
PHILLY = Format(
    "pollux-philly",
    "Pollux: philly.csv, cut from the Philly trace",
    has_columns(*_PHILLY),
    read_philly_csv,
    is_dated=True,
)

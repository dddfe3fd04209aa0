"""Workloads and step times of Pollux and Sia, and the Philly trace from which they were drawn.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021 (petuum/adaptdl);
Jayaram Subramanya et al., "Sia: Heterogeneity-aware, Goodput-optimized ML-cluster Scheduling", SOSP 2023. Seconds.

- A workload has the columns name, time, application, num_replicas, batch_size. It says what runs, not for how long: how
  much work an application is and how fast it runs follows from its measurements. Until a job is given these, its profile
  only says so.
- ``philly.csv`` has the columns timestamp, duration, num_gpus, gpu_time, cluster, and is not sorted. Time 0 is the first
  submission.
- ``placements*.csv`` and ``scalability*.csv`` of an application give the time of a step by where its replicas are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot, declared_job
from trainyard.fleet.workload.readers.formats import Format, has_columns
from trainyard.fleet.workload.readers.rows import Row, Table

_WORKLOAD = ("name", "time", "application", "num_replicas", "batch_size")
_PHILLY = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


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
            f"nothing is known of the speed of application {self.application!r}; give its jobs `work` and `profile` first"
        )


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Measured steps of an application on one device type; arrays are by measurement.

    Attributes
    ----------
    per_node : replicas on each node; empty where only their number is known.
    num_nodes, num_replicas : how many.
    local_batch_size : samples of a step on one device.
    step_s, sync_s : of a step, and of the part of it in which gradients are exchanged.
    """

    per_node: tuple[tuple[int, ...], ...]
    num_nodes: NDArray[np.int64]
    num_replicas: NDArray[np.int64]
    local_batch_size: NDArray[np.int64]
    step_s: NDArray[np.float64]
    sync_s: NDArray[np.float64]


def read_step_times(path: Path) -> StepTimes:
    """Read ``placements*.csv``, where a digit is the replicas of a node, or ``scalability*.csv``."""
    rows = list(Table(path, ("local_bsz", "step_time", "sync_time")).rows())
    per_node = tuple(_per_node(row) for row in rows)
    return StepTimes(
        per_node,
        np.array(
            [len(p) or row.count("num_nodes", 1) for p, row in zip(per_node, rows, strict=True)], np.int64
        ),
        np.array(
            [sum(p) or row.count("num_replicas", 1) for p, row in zip(per_node, rows, strict=True)], np.int64
        ),
        np.array([row.count("local_bsz", 1) for row in rows], np.int64),
        np.array([row.number("step_time") for row in rows]),
        np.array([row.number("sync_time") for row in rows]),
    )


def _per_node(row: Row) -> tuple[int, ...]:
    if "placement" not in row.fields:
        if {"num_nodes", "num_replicas"} - row.fields.keys():
            raise row.error("placement", "this column, or num_nodes and num_replicas")
        return ()
    return tuple(int(digit) for digit in str(row.count("placement", 1)))


def read_pollux(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs of a workload of Pollux' or Sia's; ``model`` is the application."""
    for arrival_s, row in Table(path, _WORKLOAD).by_arrival(lambda row: row.number("time")):
        yield Job(
            row.fields["name"],
            arrival_s,
            row.count("num_replicas", 1),
            0.0,
            Unmeasured(row.fields["application"]),
            model=row.fields["application"],
            batch_size=row.count("batch_size", 1),
        )


def read_philly_csv(path: Path, profiles: Path | None = None) -> Iterator[Job]:
    """Jobs of ``philly.csv``, named by their line."""
    start_s = None
    for moment_s, row in Table(path, _PHILLY).by_arrival(lambda row: row.moment_s("timestamp")):
        start_s = moment_s if start_s is None else start_s
        yield declared_job(
            str(row.line),
            moment_s - start_s,
            row.count("num_gpus", 1),
            row.number("duration"),
            virtual_cluster=row.fields["cluster"],
        )


FORMAT = Format("pollux", "Pollux and Sia: CSV of applications", has_columns(*_WORKLOAD), read_pollux)
PHILLY = Format(
    "pollux-philly", "Pollux: philly.csv, cut from the Philly trace", has_columns(*_PHILLY), read_philly_csv
)

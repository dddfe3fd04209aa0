"""What AdaptDL measured of an application: times of steps by where its replicas are, and gradients by batch size.

``placements*.csv`` has the columns placement, local_bsz, step_time, sync_time; a digit of a placement is the replicas of
a node. ``scalability*.csv`` has num_nodes and num_replicas instead. Seconds.
``validation-<batch size>.csv`` has a row for every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import QhullError

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.application import Application
from trainyard.fleet.workload.between import between
from trainyard.fleet.workload.goodput import Limits
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.limits import MOST_DEVICES, MOST_ROWS
from trainyard.reading.rows import Row


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
    """Read ``placements*.csv`` or ``scalability*.csv``.

    Raises
    ------
    FleetError
        If it is not there, not such a table, or empty.
    """
    rows = list(Table(path, ("local_bsz", "step_time", "sync_time")).rows())
    if not rows:
        raise FleetError(f"table {path} has no rows; give one per measurement")
    per_node = tuple(_per_node(row) for row in rows)
    both = list(zip(per_node, rows, strict=True))
    return StepTimes(
        per_node,
        np.array([len(p) or row.count("num_nodes", 1, MOST_DEVICES) for p, row in both], np.int64),
        np.array([sum(p) or row.count("num_replicas", 1, MOST_DEVICES) for p, row in both], np.int64),
        np.array([row.count("local_bsz", 1, MOST_ROWS) for row in rows], np.int64),
        np.array([row.number("step_time") for row in rows]),
        np.array([row.number("sync_time") for row in rows]),
    )


def _per_node(row: Row) -> tuple[int, ...]:
    if "placement" not in row.fields:
        if {"num_nodes", "num_replicas"} - row.fields.keys():
            raise row.error("placement", "this column, or num_nodes and num_replicas")
        return ()
    return tuple(int(digit) for digit in str(row.count("placement", 1)))


def read_application(folder: Path, largest_local: int = 0, device_type: str = "") -> Application:
    """Read ``placements.csv``, ``scalability.csv`` and ``validation-<batch size>.csv`` of a folder.

    Parameters
    ----------
    largest_local : samples of a pass on a device; by default the most that were measured.
    device_type : read ``placements-<device type>.csv`` and ``scalability-<device type>.csv`` instead.

    Raises
    ------
    FleetError
        If a file is not there, or not readable as what it is.
    """
    suffix = f"-{device_type}.csv" if device_type else ".csv"
    placed, spread = (read_step_times(folder / (name + suffix)) for name in ("placements", "scalability"))
    paths = {_batch_size(path): path for path in folder.glob("validation-*.csv")}
    if not paths:
        raise FleetError(
            f"folder {str(folder)!r} has no validation-<batch size>.csv; give one per batch size"
        )
    sizes = sorted(paths)
    runs = [_epochs(paths[size]) for size in sizes]
    ends, square, variance, loss = np.stack([run[:, : min(r.shape[1] for r in runs)] for run in runs], 1)
    local = placed.local_batch_size
    limits = Limits(sizes[0], sizes[-1], int(local.min()), largest_local or int(local.max()))
    rows = np.stack([local, placed.step_s, placed.sync_s], 1)
    by_placement = {
        key: rows[[other == key for other in placed.per_node]] for key in dict.fromkeys(placed.per_node)
    }
    # Elsewhere only the numbers of nodes and devices count: of several placements with the same, the mean.
    keys, group = np.unique(_where(placed), axis=0, return_inverse=True)
    means = np.stack([np.bincount(group, rows[:, c]) / np.bincount(group) for c in (1, 2)], 1)
    points = np.concatenate((keys, _where(spread))).astype(np.float64)
    values = np.concatenate((means, np.stack([spread.step_s, spread.sync_s], 1)))
    most_nodes, most_devices = (int(points[:, c].max()) for c in (0, 1))
    elsewhere = None
    if most_nodes > 1 or not all((count,) in by_placement for count in range(1, most_devices + 1)):
        try:
            elsewhere = between(points, values)
        except QhullError as error:
            raise FleetError(
                f"folder {str(folder)!r} has too few step times to know those between; give some of at least two numbers "
                "of nodes, of devices and of samples on each"
            ) from error
    return Application(
        folder.name,
        limits,
        ends.min(0),
        np.array(sizes, np.float64),
        square,
        variance,
        loss,
        by_placement,
        elsewhere,
        most_nodes,
        most_devices,
        device_type,
    )


def _where(times: StepTimes) -> NDArray[np.int64]:
    return np.stack([times.num_nodes, times.num_replicas, times.local_batch_size], 1)


def _epochs(path: Path) -> NDArray[np.float64]:
    """[4, epoch]: progress, squared mean and variance of the gradients, and loss."""
    names = ("progress", "grad_sqr", "grad_var", "metric")
    rows = [[row.number(name) for name in names] for row in Table(path, names).rows()]
    if not rows:
        raise FleetError(f"table {str(path)!r} has no rows; give one per epoch")
    columns = np.array(rows).T
    if columns[3, -1] > columns[3, 0]:  # What rises is a part of 1 or of 100.
        columns[3] = (1 if columns[3].max() <= 1 else 100) - columns[3]
    return columns


def _batch_size(path: Path) -> int:
    text = path.stem.removeprefix("validation-")
    if not text.isdecimal() or not 1 <= len(text) <= len(str(MOST_ROWS)) or not int(text):
        raise FleetError(
            f"{path} is named for no batch size; write validation-<batch size>.csv, such as validation-64.csv"
        )
    return int(text)

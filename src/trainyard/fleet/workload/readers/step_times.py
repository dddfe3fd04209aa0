"""Times of steps that AdaptDL measured of an application, by where its replicas are.

``placements*.csv`` has the columns placement, local_bsz, step_time, sync_time; a digit of a placement is the replicas of
a node. ``scalability*.csv`` has num_nodes and num_replicas instead. Seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.readers.rows import Row
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading.limits import MOST_DEVICES, MOST_ROWS


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
    return StepTimes(
        per_node,
        np.array(
            [
                len(p) or row.count("num_nodes", 1, MOST_DEVICES)
                for p, row in zip(per_node, rows, strict=True)
            ],
            np.int64,
        ),
        np.array(
            [
                sum(p) or row.count("num_replicas", 1, MOST_DEVICES)
                for p, row in zip(per_node, rows, strict=True)
            ],
            np.int64,
        ),
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

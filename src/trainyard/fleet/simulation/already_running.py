"""Jobs that are already running when they arrive, such as those of a cluster when its trace begins."""

from __future__ import annotations

import numpy as np

from trainyard.fleet.mechanism import transitions
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.place.nodes import PACKED
from trainyard.fleet.place.trial import TrialPlacement
from trainyard.fleet.snapshot import Ints
from trainyard.fleet.workload.job import Grant

__all__ = ["continue_job"]


def continue_job(allocator: Allocator, row: int, now_s: float) -> bool:
    """Give an arriving job devices at once, without a start; return whether it fits.

    Usage counts the devices that it had before. If the placement of the run finds no place, any free devices of one type
    are taken.
    """
    table, cluster = allocator.table, allocator.cluster
    job, inside = table.job(row), cluster.members[0]
    table.count_usage(now_s)
    if table.usage is not None:
        table.usage.count_earlier(row, job.num_devices, job.ran_s)
    asked = job, int(table.allowed[row]), int(table.partition[row])
    on = allocator.trial(cluster).find(*asked)
    if on is None:
        on = TrialPlacement(allocator.free, PACKED, inside).find(*asked)
    if on is None:
        return False
    allocator.take_over(row, Grant(_lowest_free(allocator, on)), now_s)
    table.taken_over[row] = 1
    transitions.delay_start(table.data, row, now_s - float(table.since_s[row]))
    return True


def _lowest_free(allocator: Allocator, on: Ints) -> tuple[int, ...]:
    """Return the free devices with the lowest numbers, as many of each node as asked."""
    free, node_of = np.flatnonzero(~allocator.free.taken()), allocator.cluster.node_of
    return tuple(
        device
        for node, count in enumerate(on.tolist())
        for device in free[node_of[free] == node][:count].tolist()
    )

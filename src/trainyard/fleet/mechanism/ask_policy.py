"""Asking a policy, and what may be wrong with what it says before anybody looks at devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.allocation import Allocation, Given, Placed, Queue, TimeFractions
from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs.job_table import Ints, JobTable
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.hardware.cluster import Cluster


def ask_policy(
    allocator: Allocator,
    rows: Ints,
    now_s: float,
    needs: frozenset[Need],
    decide: Callable[[Snapshot], tuple[Allocation, Any]],
    in_rounds: bool,
    cluster: Cluster,
) -> tuple[Allocation, Any]:
    """What a policy decides on some jobs, and its state then.

    Parameters
    ----------
    needs : of the policy.
    in_rounds : whether the run is in rounds, which alone can give fractions of time.
    cluster : with the nodes that the policy sees.

    Raises
    ------
    FleetError
        If what it says has another form, columns of unlike lengths, or jobs that are not there or named twice.
    """
    free, table = allocator.free.by_node * cluster.members[0], allocator.table
    trial = partial(allocator.trial, cluster)
    table.count_usage(now_s)
    decided = decide(Snapshot(now_s, cluster, free, needs, rows, table, trial))
    table.decided()
    allocator.notes.num_decisions += 1
    _check(decided[0].given, rows, table, in_rounds, cluster.num_nodes)
    return decided


def _check(given: Given, rows: Ints, table: JobTable, in_rounds: bool, num_nodes: int) -> None:
    if not isinstance(given, (Queue, Placed, TimeFractions)):
        raise FleetError(f"the policy gives a {type(given).__name__}; give a Queue, Placed or TimeFractions")
    columns: tuple[Any, ...] = given
    if isinstance(given, TimeFractions) and not in_rounds:
        raise FleetError("the policy gives fractions of time; give the run rounds, such as Rounds(360.0)")
    num_named = len(given.order)
    for field, column in enumerate(columns):
        if column is not None and column.__class__ is not bool and len(column) != num_named:
            name = given._fields[field]
            raise FleetError(
                f"the policy names {num_named} jobs, and {name} of {len(column)}; give each its own"
            )
    if isinstance(given, Queue) and given.on_nodes is not None and given.on_nodes.shape[1:] != (num_nodes,):
        raise FleetError(
            f"the policy gives on_nodes of shape {given.on_nodes.shape}; give a row of {num_nodes} nodes for each job"
        )
    place = _first_wrong(np.asarray(given.order, np.int64), len(rows), isinstance(given, TimeFractions))
    if place < 0:
        return
    number = int(given.order[place])
    if not 0 <= number < len(rows):
        raise FleetError(f"the policy names job {number}; jobs of this snapshot are 0 to {len(rows) - 1}")
    name = table.job(int(rows[number])).name
    raise FleetError(f"the policy names job {name!r} twice; a job is in the order once")


@compiled
def _first_wrong(order: Ints, num_jobs: int, may_repeat: bool) -> int:
    """Place of the first number that cannot be, or is there before; -1 if there is none."""
    is_named: NDArray[np.bool_] = np.zeros(num_jobs, np.bool_)
    for place in range(len(order)):
        number = order[place]
        if number < 0 or number >= num_jobs or (is_named[number] and not may_repeat):
            return place
        is_named[number] = True
    return -1

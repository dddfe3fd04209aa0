"""Gavel's total throughput: an assignment of jobs, which has an algorithm of its own; and what Sia's simulator prints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment

from trainyard.fleet.policies.gavel.objectives import MostThroughput
from trainyard.fleet.replicas.gavel import ThroughputProgram
from trainyard.fleet.reproduce.programs.gavel import fractions, small_problem
from trainyard.fleet.reproduce.programs.sia import TABLE
from trainyard.published import PaperTable, Row


def _rows() -> Iterator[Row]:
    given = small_problem()
    units = {
        "speeds in parts of an equal share": (
            MostThroughput(),
            given.throughputs / given.equal_throughput[:, None],
        ),
        "speeds in steps per second (the authors' program)": (ThroughputProgram(), given.throughputs),
    }
    for label, (policy, gained) in units.items():
        by_device = np.repeat(gained, given.devices_of_type, axis=1)
        best = float(by_device[linear_sum_assignment(by_device, maximize=True)].sum())
        fraction = fractions(policy, given)
        yield Row(label, best, float((gained * fraction).sum()))


TABLES = (
    PaperTable(
        "The best assignment of jobs to devices: H. W. Kuhn, The Hungarian Method for the Assignment Problem, 1955",
        "sum of speeds",
        "the policy's decision for jobs of 13 kinds of Gavel's on two devices of each type",
        _rows,
        tolerance=1e-6,
    ),
    TABLE,
)

"""ElasticFlow: the paper's example of a satisfactory share beside those of earlier deadlines, and its testbed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainyard.fleet.policies.elasticflow.shares import Demands, minimum_satisfactory_shares
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.elasticflow import ElasticFlowProgram
from trainyard.fleet.reproduce.programs.elasticflow import SPEEDS, TESTBED, TRACE, deadlines_table
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.readers.elasticflow import read_elasticflow
from trainyard.published import PaperTable, Row

_DEVICES, _SPEEDS = (1, 2, 4), (1.0, 1.5, 2.0)
"""The scaling curve of the example: iterations in a slot by GPUs."""
_STEPS = [k / 1000 for k in range(1, 5001)]


def _shares(work: float) -> list[int]:
    """Devices of A and B, which are due after one slot, and of C, which has so much work and two slots; 0 for none."""
    demands = Demands(
        np.array([1.0, 1.5, work]),
        np.array([1.0, 1.0, 2.0]),
        np.zeros(3, np.int64),
        np.full(3, 3),
        np.tile(_DEVICES, (3, 1)),
        np.tile(_SPEEDS, (3, 1)),
    )
    return [
        _DEVICES[level] if level >= 0 else 0
        for level in minimum_satisfactory_shares(demands, 4, 0.0).tolist()
    ]


def _most_work(share: int) -> float:
    """Return the most work that job C can do by its deadline on up to so many devices."""
    return _STEPS[bisect_left(_STEPS, True, key=lambda work: not 0 < _shares(work)[2] <= share) - 1]


def _rows() -> Iterator[Row]:
    for name, theirs, ours in zip("ABC", (1, 2, 4), _shares(3.0), strict=True):
        yield Row(f"GPUs of job {name}", theirs, ours)
    yield Row("iterations of C in two slots on up to 2 GPUs", 2.5, _most_work(2))
    yield Row("iterations of C in two slots on up to 4 GPUs", 3.0, _most_work(4))


def _testbed(folder: Path) -> FleetRun:
    jobs = read_elasticflow(folder / TRACE, folder / SPEEDS)
    return simulate_fleet(jobs, TESTBED, ElasticFlowProgram())


TABLES = (
    PaperTable(
        "Gu et al., ASPLOS 2023, section 4.1, example of progressive filling",
        "GPUs, iterations",
        "shares of the planner on four GPUs, of which A and B need three in the first slot",
        _rows,
        tolerance=1e-6,
    ),
    deadlines_table("ef-accessctrl", 142, _testbed, SPEEDS),
)

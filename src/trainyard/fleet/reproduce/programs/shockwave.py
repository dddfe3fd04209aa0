"""Max-min fairness in the simulator of Shockwave's authors, whose jobs change their batch size as they train.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023;
uw-mad-dash/shockwave, ``simulate_scheduler_with_trace.py`` with policy ``max_min_fairness`` on 32 V100. Its rules are
those of Gavel's program but for two: shares hold for at least 1000 s, and a job that did not run in the round before
loses 20 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.periods import Rounds
from trainyard.fleet.replicas.gavel import MaxMinProgram
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.readers.shockwave import read_shockwave
from trainyard.hardware.cluster import Cluster
from trainyard.published import Files, PaperTable, Row

_HOLD_S = 1000.0
_FILES = Files(
    (
        "traces/reproduce/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
        "tacc_throughputs.json",
    ),
    "git clone https://github.com/uw-mad-dash/shockwave",
    "shockwave/scheduler",
)


def makespan_s(trace: Path, throughputs: Path) -> float:
    """Return the makespan of a trace, as the authors' program would have it."""
    policy = MaxMinProgram(aware=False, hold_s=_HOLD_S)
    jobs, cluster = read_shockwave(trace, throughputs), Cluster.of_pools([("v100", 1, 32)])
    costs = Costs(restart_s=20.0, start_s=20.0)
    return simulate_fleet(
        jobs, cluster, policy, rounds=Rounds(120.0), place="anywhere", costs=costs
    ).makespan_s


def _makespan(folder: Path) -> Iterator[Row]:
    yield Row("max_min_fairness", 33207.66301239685, makespan_s(*(folder / path for path in _FILES.paths)))


TABLE = PaperTable(
    "The authors' simulator of Shockwave, NSDI 2023, its 120 jobs on 32 V100",
    "makespan (s)",
    "simulated, the same jobs and rules of rounds",
    _makespan,
    tolerance=0.01,
    caveat="their program solves with another solver, and lets batch sizes change a round after they are due",
    files=_FILES,
)

"""Seconds of simulations whose policy decides in Python: policies of one's own, and of the catalog without compiled code.

Run `python benchmarks/fleet_python.py`. Jobs are drawn like Philly's, and later ones have to wait. The policies are that
of the guide, one that sorts the columns of the snapshot, one that looks at every job that waits, and SRTF without its
compiled decisions. Seconds are processor seconds of one thread, the least of two runs after a first one that loads what
is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from record import finish, parser

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.policy import Policy, Priority
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "fleet"
_CLUSTER = Cluster.uniform(48, 8)
_NUM_JOBS, _SMALLEST = (3000, 20_000), (60,)


@dataclass(frozen=True)
class Sorts:
    """Least service first, by columns of the snapshot."""

    needs: frozenset[Need] = frozenset()
    preempts: bool = True

    def start(self, cluster: Cluster) -> None:
        return None

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        order = np.lexsort((snapshot.arrival_s, snapshot.attained_device_s))
        return Allocation(Queue(order), stands=True), None


@dataclass(frozen=True)
class LooksAtJobs:
    """The narrowest first, by the jobs themselves."""

    needs: frozenset[Need] = frozenset()
    preempts: bool = False

    def start(self, cluster: Cluster) -> None:
        return None

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        jobs = snapshot.jobs
        order = sorted(range(len(jobs)), key=lambda i: (jobs[i].num_devices, jobs[i].arrival_s))
        return Allocation(Queue(np.array(order, np.int64))), None


POLICIES: dict[str, Callable[[], Policy]] = {
    "sorts columns": Sorts,
    "looks at jobs": LooksAtJobs,
    "fair.py": lambda: parse_policy(f"{_EXAMPLES}/fair.py:Shares"),
    "srtf in Python": lambda: Priority(lambda s: s.left_s, frozenset({"length", "speed"}), preempts=True),
}


def measure(policy: Policy, jobs: Sequence[Job]) -> dict[str, float]:
    """Processor seconds of a simulation, its decisions, and a result that must not change."""
    seconds = []
    for _ in range(2):
        began_s = time.process_time()
        run = simulate_fleet(jobs, _CLUSTER, policy)
        seconds.append(time.process_time() - began_s)
    return {
        "cpu_s": min(seconds),
        "num_decisions": run.num_decisions,
        "mean_waiting_s": float(run.waiting_s.mean()),
        "mean_completion_s": run.mean_completion_s,
    }


def main() -> None:
    """Measure, print and record."""
    options = parser(__doc__)
    given = options.parse_args()
    results: dict[str, dict[str, float]] = {}
    for name, policy in POLICIES.items():
        simulate_fleet(list(philly_jobs(60 if given.smallest else 1000)), _CLUSTER, policy())
        for num_jobs in _SMALLEST if given.smallest else _NUM_JOBS:
            found = measure(policy(), list(philly_jobs(num_jobs)))
            results[f"{name}, {num_jobs:,} jobs"] = found
            print(
                f"{name}, {num_jobs:,} jobs: "
                + ", ".join(f"{key} {value:,.3g}" for key, value in found.items()),
                flush=True,
            )
    finish("fleet_python", results, given.smallest)


if __name__ == "__main__":
    main()

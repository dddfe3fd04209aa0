"""A policy of your own: widest job first, but nobody waits for more than an hour."""

from pathlib import Path

import numpy as np

from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.policy import Priority, Snapshot
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.site import Site
from trainyard.fleet.workload.read import read_workload

HOUR_S = 3600.0


def urgency(snapshot: Snapshot) -> np.ndarray:
    """The smallest runs first: those that have waited too long, by arrival, then the others, the widest first."""
    too_long = snapshot.waiting_s > HOUR_S
    return np.where(too_long, snapshot.arrival_s - 1e9, -snapshot.num_devices)


def main() -> None:
    trace = Path(__file__).parent / "fleet" / "jobs.csv"
    for name, policy in (("widest first", Priority(urgency)), ("fifo", fifo())):
        run = simulate_fleet(read_workload(trace), Site.uniform(4, 4), policy)
        print(f"{name}: {len(run.names)} jobs, mean completion time {run.mean_completion_s:.0f} s")


if __name__ == "__main__":
    main()

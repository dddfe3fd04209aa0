"""A policy that does everything to jobs that can be done to them, and a cluster for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.of_pools([("V100", 3, 8), ("K80", 3, 4)])


@dataclass(frozen=True)
class Restless:
    """Moves jobs between types, resizes and spreads them by chance; the first to arrive gets all that it asks for."""

    needs: frozenset[Need] = frozenset()
    preempts: bool = True

    def start(self, cluster: Cluster) -> int:
        return 0

    def decide(self, snapshot: Snapshot, state: int) -> tuple[Allocation, int]:
        rng, num_jobs = np.random.default_rng(state), snapshot.num_jobs
        counts = np.minimum(snapshot.num_devices, rng.integers(0, 9, num_jobs))
        counts[0] = snapshot.num_devices[0]
        queue = Queue(
            np.append(0, 1 + rng.permutation(num_jobs - 1)),
            num_devices=counts,
            device_type=rng.integers(-1, 2, num_jobs) * (np.arange(num_jobs) > 0),
            consolidate=rng.random(num_jobs) < 0.5,
            backfill=bool(state % 3),
        )
        return Allocation(queue, ask_again_s=snapshot.now_s + 600), state + 1

"""A policy that lends devices for a time, to who has waited longest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class Lending:
    """The policy.

    Attributes
    ----------
    lease_s : how long a job has its devices.
    preempts : whether it is asked about jobs that run, too, and lends to these anew before it does to others.
    """

    lease_s: float
    preempts: bool = False
    needs: frozenset[Need] = frozenset()

    def start(self, cluster: Cluster) -> None:
        return None

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        order = np.lexsort((-snapshot.waiting_s, ~snapshot.is_running))
        return Allocation(Queue(order, until_s=np.full(len(order), snapshot.now_s + self.lease_s))), None

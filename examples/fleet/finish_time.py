"""A policy of your own: leases go to the jobs that are worst off beside an equal share of the cluster, as in Themis."""

from dataclasses import dataclass

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.snapshot import Snapshot
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class FinishTime:
    """Jobs keep their devices until their leases end; then the job that would end latest, for its share, comes first."""

    lease_s: float = 600.0
    needs = frozenset({"length", "speed"})
    preempts = True

    def start(self, cluster: Cluster) -> None:
        return None  # the snapshot says all that it has to know

    def decide(self, snapshot: Snapshot, state: None):
        shared_s = snapshot.now_s - snapshot.arrival_s + snapshot.left_s  # if it ran from now on
        rho = shared_s / snapshot.fair_s
        keeps = snapshot.is_running & (snapshot.lease_until_s > snapshot.now_s)
        order = np.lexsort((-rho, ~keeps))
        until_s = np.where(keeps, snapshot.lease_until_s, snapshot.now_s + self.lease_s)
        return Allocation(Queue(order, until_s=until_s[order])), None

"""The policy of EASY and conservative backfilling, by the time limits of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.policies.queues.backfill_jobs import NEEDS_OF, Order, QueuedJobs
from trainyard.fleet.policies.queues.conservative import ConservativePlan
from trainyard.fleet.policies.queues.easy import EasyPlan
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import ORDERED, WITH_RESERVATIONS, Traits
from trainyard.hardware.cluster import Cluster

__all__ = ["Backfilling"]


@dataclass(frozen=True)
class Backfilling:
    """Start jobs in the order of a queue, and later jobs early if that delays no job with a reservation.

    It never takes devices from running jobs; `preempts` is set because it has to see them.

    Attributes
    ----------
    reserves_for : the first waiting job (`EasyPlan`), or all waiting jobs (`ConservativePlan`).
    order : of the queue: by arrival, or by priority and then by arrival.
    one_queue : whether only the first waiting job has a reservation, also where others could have other nodes.
    max_jobs : jobs of the queue that get reservations under ``"all"``; None for all.
    """

    reserves_for: Literal["first", "all"]
    order: Order = "arrival"
    one_queue: bool = False
    max_jobs: int | None = None
    preempts: bool = field(default=True, init=False)

    @property
    def needs(self) -> frozenset[Need]:
        """Time limits, and the needs of the order."""
        return NEEDS_OF[self.order] | {"limit"}

    @property
    def traits(self) -> Traits:
        """The first waiting job may hold up others; if all jobs have reservations, none does."""
        supports = ORDERED | WITH_RESERVATIONS
        if self.reserves_for == "all":
            return Traits(supports=supports)
        return Traits(holds_up="all" if self.one_queue else "same nodes", supports=supports)

    def start(self, cluster: Cluster) -> None:
        """Return the state, which is always empty."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Return the running jobs, then the starting ones in the order of the queue."""
        jobs = QueuedJobs(snapshot, self.order)
        plan = (
            EasyPlan(jobs, self.one_queue)
            if self.reserves_for == "first"
            else ConservativePlan(jobs, self.max_jobs)
        )
        starting = np.array(list(plan.starting), np.int64)
        on_nodes = None
        if len(starting):
            on_nodes = np.zeros((len(jobs.running) + len(starting), snapshot.cluster.num_nodes), np.int64)
            on_nodes[len(jobs.running) :] = list(plan.starting.values())
        queue = Queue(np.concatenate((jobs.running, starting)), on_nodes=on_nodes)
        waits = np.setdiff1d(jobs.waiting, starting)
        again_s = jobs.next_until_s if len(waits) else float("inf")
        return Allocation(queue, again_s, stands=True, reasons=Reasons(waits, plan.why)), state

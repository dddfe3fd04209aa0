"""Backfilling by the time limits of users: the policy around EASY and conservative backfilling."""

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
    """Start jobs in the order of a queue, and later ones early where that delays nobody who has a reservation.

    It takes nothing away from running jobs, but looks at them.

    Attributes
    ----------
    reserves_for : the first job that waits (`EasyPlan`), or all jobs (`ConservativePlan`).
    order : of the queue: the order of arrival, or of priority and then of arrival.
    one_queue : whether the first that waits is the only one with a reservation, whichever nodes others could have.
    max_jobs : of a queue with reservations for all, jobs that are looked at; None for all.
    """

    reserves_for: Literal["first", "all"]
    order: Order = "arrival"
    one_queue: bool = False
    max_jobs: int | None = None
    preempts: bool = field(default=True, init=False)

    @property
    def needs(self) -> frozenset[Need]:
        """Time limits, and what the order needs."""
        return NEEDS_OF[self.order] | {"limit"}

    @property
    def traits(self) -> Traits:
        """The first that waits may hold up others; where all have reservations, there is no such job."""
        supports = ORDERED | WITH_RESERVATIONS
        if self.reserves_for == "all":
            return Traits(supports=supports)
        return Traits(holds_up="all" if self.one_queue else "same nodes", supports=supports)

    def start(self, cluster: Cluster) -> None:
        """Return the state, which is always empty."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Choose the running jobs, then the starting ones in the order of the queue."""
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

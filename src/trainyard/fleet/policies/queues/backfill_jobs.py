"""Jobs and nodes as backfilling sees them at one moment: order of the queue, latest ends, reservations of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from trainyard.fleet.known import KnownJob
from trainyard.fleet.place.auxiliary import allowed_nodes
from trainyard.fleet.place.trial import ALL, place_key
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot

__all__ = ["NEEDS_OF", "Order", "QueuedJob", "QueuedJobs", "urgency"]

Order = Literal["arrival", "priority"]

NEEDS_OF: dict[Order, frozenset[Need]] = {"arrival": frozenset(), "priority": frozenset({"priority", "qos"})}
"""Needs of a policy, by the order of its queue."""


def urgency(snapshot: Snapshot) -> Floats:
    """Return the priority of every job plus the priority of its QOS."""
    by_qos = dict(snapshot.cluster.qos)
    if not by_qos:
        return snapshot.priority
    added: Floats = np.array([by_qos.get(job.qos, 0) for job in snapshot.jobs], np.float64)
    return snapshot.priority + added


@dataclass(frozen=True)
class QueuedJob:
    """A waiting job.

    Attributes
    ----------
    number : in the snapshot.
    allowed : device types that it may have, one bit by index each.
    partition : index of its partition; 0 for none.
    nodes : 1 for each node that it may use, else 0.
    limit_s : rest of its time limit; infinite without a limit.
    closed : numbers of the reservations of nodes that exclude it.
    """

    number: int
    job: KnownJob
    allowed: int
    partition: int
    nodes: Ints
    limit_s: float
    closed: tuple[int, ...]

    @cached_property
    def place_key(self) -> tuple[object, ...]:
        """A key: jobs with the same key find the same places for the same time."""
        return *place_key(self.job, self.allowed, self.partition), self.closed


class QueuedJobs:
    """Waiting jobs in the order of the queue, and running jobs with their latest ends.

    Attributes
    ----------
    running : numbers of running jobs.
    waiting : numbers of waiting jobs, most urgent first.
    end_s : latest end of every job, by number; of a waiting job, if it started now.
    """

    def __init__(self, snapshot: Snapshot, order: Order) -> None:
        self.snapshot, self.now_s = snapshot, snapshot.now_s
        self.running, waiting = np.flatnonzero(snapshot.held > 0), np.flatnonzero(snapshot.held == 0)
        self.waiting = waiting
        if order == "priority":
            self.waiting = waiting[np.argsort(-urgency(snapshot)[waiting], kind="stable")]
        self.end_s = _latest_ends_s(snapshot)
        self._nodes: dict[tuple[int, int], Ints] = {}
        cluster = snapshot.cluster
        self.reservations = [each for each in cluster.reservations if each.until_s > snapshot.now_s]
        self.reserved = np.zeros((len(self.reservations), cluster.num_nodes), np.int64)
        for row, reservation in enumerate(self.reservations):
            self.reserved[row, list(reservation.nodes)] = 1

    @property
    def next_until_s(self) -> float:
        """Earliest end of a reservation of nodes; infinite without one."""
        return min((each.until_s for each in self.reservations), default=float("inf"))

    def queued(self, number: int) -> QueuedJob:
        """Return a waiting job."""
        snapshot, cluster, job = self.snapshot, self.snapshot.cluster, self.snapshot.job(number)
        allowed, partition = int(snapshot.allowed[number]), int(snapshot.partition[number])
        nodes = self._nodes.get((allowed, partition))
        if nodes is None:
            nodes = allowed_nodes(cluster, allowed, partition)
            self._nodes[allowed, partition] = nodes
        closed = tuple(
            row
            for row, reservation in enumerate(self.reservations)
            if not reservation.is_for(job.user, job.account)
        )
        limit_s = float(self.end_s[number]) - self.now_s
        return QueuedJob(number, job, allowed, partition, nodes, limit_s, closed)

    def open_nodes(self, job: QueuedJob, start_s: float) -> Ints:
        """Return 1 for each node without a reservation for others until the job ends, else 0; `ALL` for all nodes."""
        end_s = start_s + job.limit_s
        overlapping = [
            row
            for row in job.closed
            if start_s < self.reservations[row].until_s and self.reservations[row].from_s < end_s
        ]
        return 1 - self.reserved[overlapping].max(axis=0) if overlapping else ALL

    def on_nodes(self, number: int) -> Ints:
        """Count the devices of a running job on each node."""
        grant, cluster = self.snapshot.grant(number), self.snapshot.cluster
        assert grant is not None, "it runs"
        return np.bincount(cluster.node_of[list(grant.devices)], minlength=cluster.num_nodes)


def _latest_ends_s(snapshot: Snapshot) -> Floats:
    """Return the latest ends of jobs that run, or would start now; infinite without a time limit."""
    now_s = snapshot.now_s
    begin_s = np.where(snapshot.was_started, snapshot.first_start_s, now_s)
    # Time in which a preempted job had no devices does not count against its limit.
    since_s = np.where(snapshot.num_starts > snapshot.is_running, now_s - snapshot.attained_s, begin_s)
    ends_s: Floats = np.maximum(now_s, since_s + snapshot.limit_s)
    return ends_s

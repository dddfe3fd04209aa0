"""Dominant resource fairness: the next job is one of the user whose largest share of any resource is the smallest.

With u_ij as what the running jobs of user i hold of resource j, r_j as what the cluster has of it and w_i as the weight
of the user, the dominant share is

    s_i = max_j u_ij / r_j / w_i

Resources are devices, processors and memory. At every decision the share of the user with the smallest one is filled up
first (algorithm 1, progressive filling): the first of this user's waiting jobs starts, the share grows, and the next user
is chosen. What the paper calls a task is a job here, whole: its devices are a gang. Users of equal shares go by the
arrival of their next jobs. Nothing is taken from jobs that run.

A job that finds no place ends the filling in the paper, which calls the cluster full. Here it holds up the jobs that
could have some of the same nodes, or with ``backfill`` none.

References
----------
A. Ghodsi, M. Zaharia, B. Hindman, A. Konwinski, S. Shenker, I. Stoica, "Dominant Resource Fairness: Fair Allocation of
Multiple Resource Types", NSDI 2011. Section 4.2: algorithm 1; section 4.3: weights, here one for all resources of a user.

Fidelity: simplified.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.errors import FleetError
from trainyard.fleet.known import KnownJob
from trainyard.fleet.pairs import check_weights
from trainyard.fleet.place.auxiliary import needs_of, shares_by_type
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

RESOURCES = ("devices", "processors", "memory")


@dataclass(frozen=True)
class DRF:
    """The policy.

    Attributes
    ----------
    by : whose shares are made equal: "user" or "account".
    weights : names with their weights; all others have weight 1.
    backfill : whether later jobs may start before one that finds no place.
    """

    by: Literal["user", "account"] = "user"
    weights: tuple[tuple[str, float], ...] = ()
    backfill: bool = False
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.by not in ("user", "account"):
            raise FleetError(f"by of drf is 'user' or 'account', got {self.by!r}")
        check_weights("weights of drf", self.weights, of=self.by)

    @property
    def traits(self) -> Traits:
        """It names only the jobs that start."""
        holds_up: Literal["nobody", "same nodes"] = "nobody" if self.backfill else "same nodes"
        return Traits(holds_up=holds_up, tries_places=True, supports=ORDERED)

    def start(self, cluster: Cluster) -> None:
        """Return the state, which is always empty: who holds what stands in the snapshot."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Choose the jobs that start, one after the other."""
        filling = _Filling(self, snapshot)
        order = np.array(list(filling.starting()), np.int64)
        waiting = np.setdiff1d(np.arange(snapshot.num_jobs), order)
        return Allocation(Queue(order), stands=True, reasons=Reasons(waiting, filling.why)), state


class _Filling:
    """One decision, job by job.

    Attributes
    ----------
    names : of the users or accounts.
    of_job : index among them of every job.
    """

    def __init__(self, policy: DRF, snapshot: Snapshot) -> None:
        self._policy, self._snapshot, self._free = policy, snapshot, snapshot.trial()
        self.names, groups = snapshot.owner_groups(policy.by)
        self.of_job = groups[snapshot.owner]
        self._host_shares, self._totals = _resources(snapshot.cluster)
        weights = dict(policy.weights)
        self._weights = np.array([float(weights.get(name, 1.0)) for name in self.names])
        self._held = np.zeros((len(self.names), len(RESOURCES)))
        np.add.at(self._held, groups, snapshot.held_by_owner())
        # By what jobs ask for: what is free only becomes less.
        self._failed: set[tuple[object, ...]] = set()
        # Nodes for which a job waits, which no later one may have.
        self._away = snapshot.cluster.devices_per_node == 0
        self._blocked = self._away.copy()

    def _shares_of(self, group: int) -> Floats:
        """Return the shares of all resources that a user or an account holds, over its weight."""
        shares: Floats = self._held[group] / self._totals / self._weights[group]
        return shares

    def starting(self) -> Iterator[int]:
        """Yield the jobs that start, in their order."""
        waiting = self._waiting()
        heap = [(self._shares_of(group).max(), jobs[0], group, 0) for group, jobs in waiting.items()]
        heapq.heapify(heap)
        while heap and not self._blocked.all():
            _, number, group, place = heapq.heappop(heap)
            if self._starts(number):
                yield number
            if place + 1 < len(waiting[group]):
                share = self._shares_of(group).max()
                heapq.heappush(heap, (share, waiting[group][place + 1], group, place + 1))

    def _waiting(self) -> dict[int, list[int]]:
        """Return the waiting jobs of every user or account that has any, in the order of their arrival."""
        snapshot, numbers = self._snapshot, np.arange(self._snapshot.num_jobs)
        if self._policy.backfill:  # jobs that do not fit by number hold up nobody
            numbers = numbers[snapshot.num_devices <= self._free.most_free(snapshot.allowed)]
        waiting = dict[int, list[int]]()
        for number, group in zip(numbers.tolist(), self.of_job[numbers].tolist(), strict=True):
            waiting.setdefault(group, []).append(number)
        return waiting

    def _starts(self, number: int) -> bool:
        """Whether a job finds a place, which it takes; if not, it may hold up others."""
        snapshot, job = self._snapshot, self._snapshot.job(number)
        allowed, partition = int(snapshot.allowed[number]), int(snapshot.partition[number])
        asks = job.num_devices, allowed, partition, needs_of(job), job.gang
        on = None if asks in self._failed else self._place(job, allowed, partition)
        if on is None:
            self._failed.add(asks)
            return False
        self._free.take(on, job)
        self._held[self.of_job[number]] += self._demand(job, on)
        return True

    def _place(self, job: KnownJob, allowed: int, partition: int) -> Ints | None:
        """Return the devices of every node that a job would get; None if it has no place or is held up."""
        cluster = self._snapshot.cluster
        nodes = (((allowed >> cluster.type_of_node) & 1) * cluster.members[partition]).astype(np.bool_)
        on = None if (nodes & self._blocked & ~self._away).any() else self._free.find(job, allowed, partition)
        if on is None and not self._policy.backfill:
            self._blocked |= nodes
        return on

    def _demand(self, job: KnownJob, on: Ints) -> Floats:
        """Return what a job holds of every resource on its nodes."""
        kind = self._snapshot.cluster.type_of_node[np.flatnonzero(on)[0]]
        needs = np.array(needs_of(job))
        return job.num_devices * np.append(1.0, np.where(needs > 0, needs, self._host_shares[kind]))

    def why(self, number: int) -> str:
        """Say why a job waits."""
        group = int(self.of_job[number])
        shares = self._shares_of(group)
        dominant, by = int(shares.argmax()), self._policy.by
        of = f"{by} {self.names[group]!r}"
        return f"{of} has a dominant share of {shares[dominant]:.3g}, of {RESOURCES[dominant]}; smaller ones go first"


def _resources(cluster: Cluster) -> tuple[Floats, Floats]:
    """Return processors and memory that go with a device of every type, and all that the cluster has of each resource.

    Nodes that are away count. What no node says it has is infinite, so that nobody has a share of it.
    """
    sizes = np.array([node.num_devices for node in cluster.nodes])
    host_shares = shares_by_type(cluster)
    by_type = np.bincount(cluster.type_of_node, sizes, len(cluster.device_types))
    totals = np.append(by_type.sum(), by_type @ host_shares)
    return host_shares, np.where(totals > 0, totals, np.inf)


def drf(
    *,
    by: Literal["user", "account"] = "user",
    weights: tuple[tuple[str, float], ...] = (),
    backfill: bool = False,
) -> DRF:
    """Dominant resource fairness over devices, processors and memory.

    Parameters
    ----------
    by : whose dominant shares are made equal: "user" or "account".
    weights : pairs of a user or an account and its weight; all others have weight 1.
    backfill : whether later jobs may start before one that finds no place; if not, it holds up those that could have
        some of the same nodes.

    Returns
    -------
    The policy.

    Raises
    ------
    FleetError
        If weights are no pairs of a name and a number above 0.

    Examples
    --------
    >>> drf(weights=(("ann", 2),)).by
    'user'
    """
    return DRF(by, weights, backfill)

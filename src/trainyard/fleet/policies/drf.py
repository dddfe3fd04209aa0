"""Dominant resource fairness: the next job is one of the user with the smallest dominant share.

Let u_ij be the amount of resource j that the running jobs of user i hold, r_j the amount in the cluster, and w_i the
weight of the user. The dominant share of the user is its largest share of any resource:

    s_i = max_j u_ij / r_j / w_i

Resources are devices, processors and memory. Every decision fills shares progressively (algorithm 1): the first waiting
job of the user with the smallest dominant share starts, the share grows, and the next user is chosen. Users with equal
shares go by the arrival of their next jobs. A task of the paper is a whole job here: its devices are a gang. Running jobs
keep their devices.

In the paper, the first job that does not fit ends the filling. Here it holds up the jobs that could use some of the same
nodes; with ``backfill`` it holds up none.

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
from trainyard.fleet.known import KnownJob
from trainyard.fleet.pairs import check_weights, weights_of
from trainyard.fleet.place.auxiliary import allowed_nodes, needs_of, shares_by_type
from trainyard.fleet.place.trial import place_key
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

RESOURCES = ("devices", "processors", "memory")


@dataclass(frozen=True)
class DRF:
    """The policy.

    Attributes
    ----------
    by : owners whose dominant shares are made equal: "user" or "account".
    weights : names with their weights; all others have weight 1.
    backfill : whether later jobs may start before a job that does not fit.
    """

    by: Literal["user", "account"] = "user"
    weights: tuple[tuple[str, float], ...] = ()
    backfill: bool = False
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_weights("weights of drf", self.weights, of=self.by)

    @property
    def traits(self) -> Traits:
        """It names only the jobs that start."""
        holds_up: Literal["nobody", "same nodes"] = "nobody" if self.backfill else "same nodes"
        named = tuple((str(self.by), name) for name, _ in self.weights)
        return Traits(holds_up=holds_up, tries_places=True, named=named, supports=ORDERED)

    def start(self, cluster: Cluster) -> None:
        """Return the state, which is always empty: the snapshot has what everybody holds."""

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
        self._weights = weights_of(self.names, policy.weights)
        self._held = np.zeros((len(self.names), len(RESOURCES)))
        np.add.at(self._held, groups, snapshot.held_by_owner())
        # Requests that do not fit; free devices only become fewer.
        self._failed: set[tuple[object, ...]] = set()
        # Nodes for which a job waits; later jobs may not use them.
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
        """Place a job if it fits, and return whether it did; a job that does not fit may hold up others."""
        snapshot, job = self._snapshot, self._snapshot.job(number)
        allowed, partition = int(snapshot.allowed[number]), int(snapshot.partition[number])
        asks = place_key(job, allowed, partition)
        on = None if asks in self._failed else self._place(job, allowed, partition)
        if on is None:
            self._failed.add(asks)
            return False
        self._free.take(on, job)
        self._held[self.of_job[number]] += self._demand(job, on)
        return True

    def _place(self, job: KnownJob, allowed: int, partition: int) -> Ints | None:
        """Return the devices of every node that a job would get; None if it does not fit or is held up."""
        nodes = allowed_nodes(self._snapshot.cluster, allowed, partition).astype(np.bool_)
        on = None if (nodes & self._blocked & ~self._away).any() else self._free.find(job, allowed, partition)
        if on is None and not self._policy.backfill:
            self._blocked |= nodes
        return on

    def _demand(self, job: KnownJob, on: Ints) -> Floats:
        """Return the amount of every resource that a job takes on its nodes."""
        kind = self._snapshot.cluster.type_of_node[np.flatnonzero(on)[0]]
        needs = np.array(needs_of(job))
        return job.num_devices * np.append(1.0, np.where(needs > 0, needs, self._host_shares[kind]))

    def why(self, number: int) -> str:
        """Say why a job waits."""
        group = int(self.of_job[number])
        shares = self._shares_of(group)
        dominant, by = int(shares.argmax()), self._policy.by
        of = f"{by} {self.names[group]!r}"
        return f"{of} has a dominant share of {shares[dominant]:.3g} ({RESOURCES[dominant]}); smaller ones go first"


def _resources(cluster: Cluster) -> tuple[Floats, Floats]:
    """Return the processors and memory that go with a device of every type, and the cluster's total of each resource.

    Nodes that are away count. A total is infinite if no node names the resource: nobody then has a share of it.
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
    by : owners whose dominant shares are made equal: "user" or "account".
    weights : pairs of a user or an account and its weight; all others have weight 1.
    backfill : whether later jobs may start before a job that does not fit. If not, those that could use some of the same
        nodes wait behind it.

    Returns
    -------
    The policy.

    Raises
    ------
    FleetError
        If weights are no pairs of a name and a number from 1e-9 to 1e9.

    Examples
    --------
    >>> drf(weights=(("ann", 2),)).by
    'user'
    """
    return DRF(by, weights, backfill)

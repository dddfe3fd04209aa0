"""Scheduling domains: partitions that share no node are scheduled apart, as if each were a cluster of its own.

A domain is a partition, or several that share nodes, directly or through others. The policy decides on the jobs of one
domain at a time, sees the nodes of this domain only, is asked when something happens there, and has a state for each.

A job without a partition may have any node. While such a job is there, the whole cluster is one domain. When domains are
joined or divided, the policy starts anew, like one that takes over from another scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trainyard.fleet.jobs.job_table import Bools, Ints
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.policy import Policy
from trainyard.hardware.cluster import Cluster

_INF = float("inf")


@dataclass(eq=False)
class SchedulingDomain:
    """Jobs that are decided on together, and what the last decision on them left.

    Attributes
    ----------
    has : for every row of `Cluster.members`, whether jobs of this partition are in the domain.
    cluster : with the nodes of the domain.
    state : of the policy.
    wake_s : when the policy wants to decide, if nothing happens before.
    stands : whether its last decision holds for as long as nobody waits.
    free_when_blocked : devices that were free after the last decision, if a job found no place that blocks all later
        ones; else -1.
    is_due : whether something has happened since the last decision.
    """

    has: Bools
    cluster: Cluster
    state: Any
    wake_s: float = field(default=_INF, init=False)
    stands: bool = field(default=False, init=False)
    free_when_blocked: int = field(default=-1, init=False)
    is_due: bool = field(default=False, init=False)

    def restart(self, policy: Policy) -> None:
        """Forget all decisions, and make one."""
        self.state, self.wake_s, self.is_due = policy.start(self.cluster.whole), _INF, True
        self.forget_promises()

    def forget_promises(self) -> None:
        """Forget which later decisions the last one said can be left out."""
        self.stands, self.free_when_blocked = False, -1


class SchedulingDomains:
    """The domains of a run.

    Parameters
    ----------
    apart : whether partitions may be scheduled apart; in rounds, all begin at the same time.

    Attributes
    ----------
    whole : the domain of all jobs.
    parts : domains that share no nodes; none where there is but one.
    current : domains that decisions are about now.
    """

    def __init__(self, allocator: Allocator, policy: Policy, apart: bool) -> None:
        self._allocator, self._policy, cluster = allocator, policy, allocator.cluster
        everybody = np.ones(len(cluster.members), np.bool_)
        self.whole = SchedulingDomain(everybody, cluster, policy.start(cluster.whole))
        groups = _groups(cluster) if apart else []
        self.parts = tuple(self._part(has) for has in groups) if len(groups) > 1 else ()
        self._joined = (self.whole,)
        self.current = self.parts or self._joined

    def _part(self, has: Bools) -> SchedulingDomain:
        cluster = self._allocator.cluster
        outside = np.flatnonzero(~cluster.members[has].any(axis=0))
        own = replace(cluster, outside=frozenset(outside.tolist()))
        return SchedulingDomain(has, own, self._policy.start(own.whole))

    @property
    def wake_s(self) -> float:
        """Time at which the policy wants to decide next, if nothing happens before."""
        first, *others = self.current
        return min([first.wake_s, *(domain.wake_s for domain in others)]) if others else first.wake_s

    def touch(self, partition: int) -> None:
        """Something happens to a job of a partition, by its row in `Cluster.members`."""
        for domain in self.current:
            if domain.has[partition]:
                domain.is_due = True

    def change_nodes(self) -> None:
        """Nodes have gone away or come back."""
        away = self._allocator.cluster.away
        self.whole.cluster = self._allocator.cluster
        for domain in self.parts:
            domain.cluster = domain.cluster.without(away)
        for domain in (self.whole, *self.parts):
            domain.forget_promises()
            domain.is_due = True

    def due(self, now_s: float) -> Iterator[SchedulingDomain]:
        """Domains to decide on now; one that is not reached is still due next time."""
        if self.parts:
            self._join_or_divide()
        for domain in self.current:
            if domain.wake_s <= now_s:
                domain.wake_s, domain.is_due = _INF, True
            if domain.is_due:
                domain.is_due = False
                yield domain

    def _join_or_divide(self) -> None:
        table = self._allocator.table
        current = self.parts if table.partition[table.active].all() else self._joined
        if current is not self.current:
            self.current = current
            for domain in current:
                domain.restart(self._policy)

    def rows(self, domain: SchedulingDomain, rows: Ints) -> Ints:
        """Return the rows of jobs that are in a domain."""
        return rows if domain is self.whole else rows[domain.has[self._allocator.table.partition[rows]]]

    def num_jobs(self, domain: SchedulingDomain) -> tuple[int, int]:
        """How many jobs there are in a domain, and how many of them wait."""
        table = self._allocator.table
        if domain is self.whole:
            return table.num_active, table.num_waiting
        held = table.held[self.rows(domain, table.active)]
        return len(held), len(held) - int(np.count_nonzero(held))

    def num_free(self, domain: SchedulingDomain) -> int:
        """How many devices of a domain nobody has."""
        free = self._allocator.free
        return free.total if domain is self.whole else int(free.by_node @ domain.cluster.members[0])


def _groups(cluster: Cluster) -> list[Bools]:
    """Partitions that share nodes, directly or through others; for each group, whether every row of members is in it."""
    left, found = [row for row in range(1, len(cluster.members)) if cluster.members[row].any()], []
    while left:
        has = np.zeros(len(cluster.members), np.bool_)
        has[left[0]] = True
        size = 0
        while size < (size := int(has.sum())):
            nodes = cluster.members[has].any(axis=0)
            has[[row for row in left if cluster.members[row, nodes].any()]] = True
        left = [row for row in left if not has[row]]
        found.append(has)
    return found

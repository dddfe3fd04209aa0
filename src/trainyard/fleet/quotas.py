"""Quotas: devices that the jobs of one account have in use at once, under a policy that only orders jobs.

Jobs count against the quota of their account in the order of the policy, also while no place is free for them. A job that
would exceed the quota waits, and does not hold up other jobs.

With borrowing, such a job may use what other accounts leave unused. The rule is that of a cohort of cluster queues in
Kueue (``nominalQuota``, ``borrowingLimit``, ``reclaimWithinCohort: Any``), and of queues with a ``capacity`` and a
``maximum-capacity`` in YARN's capacity scheduler:

1. Jobs within the quotas of their accounts come first, in the order of the policy, running or waiting.
2. The other jobs follow in the same order. A job borrows if all accounts together then use no more than the sum of their
   quotas, and its account no more than its quota and its limit of borrowing. Devices that waiting jobs of step 1 ask for
   count as in use.

So an account with a waiting job within its quota gets its devices back. Under a policy that preempts, it gets them at
once. Under another, no further job borrows, and the account gets devices as they become free.

References
----------
"Cluster Queue" and "Preemption", documentation of Kueue. "Capacity Scheduler", documentation of
Apache Hadoop YARN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policy import Policy
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.snapshot import Ints, Snapshot
from trainyard.fleet.traits import ORDERED, traits_of
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

__all__ = ["QuotaPolicy", "Quotas", "takes_quotas"]

_INF = float("inf")


@dataclass(frozen=True)
class Quotas:
    """The most devices that each account may use at once.

    Attributes
    ----------
    by_account : names of accounts with their quotas. With borrowing, these accounts lend and borrow.
    every : quota of each account that is not named; None for no limit. Jobs without an account have no quota.
    borrow : devices that an account may use beyond its quota while other accounts leave theirs unused; infinite for no
        limit, 0 for no borrowing.
    """

    by_account: tuple[tuple[str, int], ...]
    every: int | None = None
    borrow: float = 0.0

    @cached_property
    def named(self) -> Mapping[str, int]:
        """The quotas of the accounts that are named."""
        return dict(self.by_account)

    def of(self, account: str) -> float:
        """Return the quota of an account; infinite if it has none."""
        every = _INF if self.every is None or not account else self.every
        return self.named.get(account, every)

    def most(self, account: str) -> float:
        """Return the most devices that an account may ever have, with all that it may borrow."""
        if not self.borrow or account not in self.named:
            return self.of(account)
        return min(self.named[account] + self.borrow, sum(self.named.values()))

    def naming(self, jobs: Iterable[Job]) -> Quotas:
        """Return these quotas with a quota by name for each account of the jobs."""
        if self.every is None:
            return self
        named = dict.fromkeys(sorted({job.account for job in jobs} - {""}), self.every) | dict(
            self.by_account
        )
        return replace(self, by_account=tuple(named.items()))

    def check(self, jobs: Iterable[Job]) -> None:
        """Refuse a quota of an account that no job has.

        Raises
        ------
        FleetError
            If there is one; the message lists the accounts of the jobs.
        """
        known = sorted({job.account for job in jobs} - {""})
        unknown = [name for name, _ in self.by_account if name not in known]
        there = f"accounts are {', '.join(known)}" if known else "the trace names no accounts"
        if unknown or not known:
            which = f"account {unknown[0]!r}" if unknown else "any account"
            raise FleetError(f"no job is of {which}, so that a quota changes nothing; {there}")


def takes_quotas(policy: Policy) -> bool:
    """Return whether a policy only orders jobs, so that some of them can be kept out of its order."""
    # A policy that reads time limits reserves places for waiting jobs, also for those that a quota keeps waiting.
    # A policy that tries places returns only jobs that fit beside the jobs before them: none of these may be taken out.
    traits = traits_of(policy)
    return traits.supports >= ORDERED and not traits.tries_places and "limit" not in policy.needs


@dataclass
class QuotaPolicy(PolicyWrapper):
    """A policy that `takes_quotas`, with quotas of accounts.

    Attributes
    ----------
    name : of the policy, for errors.
    """

    quotas: Quotas
    name: str

    def start(self, cluster: Cluster) -> Any:
        """Return the policy's state before the first decision.

        Raises
        ------
        FleetError
            If the cluster has partitions: each is decided on by itself, and an account may have jobs in several.
        """
        if cluster.partitions:
            raise FleetError(
                f"cluster {cluster.name!r} has partitions, and quotas of accounts are for clusters without; leave these "
                "out"
            )
        return super().start(cluster)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        """Return the policy's decision without the jobs that would exceed the quotas of their accounts."""
        allocation, state = super().decide(snapshot, state)
        queue = allocation.given
        if not isinstance(queue, Queue):
            raise FleetError(
                f"{self.name} gives a {type(queue).__name__}; quotas are for policies that give a Queue"
            )
        counted = _Counted(self.quotas, snapshot, queue, self._num_startable(snapshot, queue))
        kept = counted.within() + counted.borrowing()
        refused = {**allocation.refused, **counted.refused}
        given = _only(queue, np.array(kept, np.int64), self.quotas.borrow > 0)
        return allocation._replace(given=given, refused=refused), state

    def _num_startable(self, snapshot: Snapshot, queue: Queue) -> float:
        """Count the devices that jobs get before one without a place holds up all others; infinite if none does."""
        holds_up = not queue.backfill and not self.preempts and snapshot.cluster.is_one_pool
        return float(snapshot.free.sum()) if holds_up else float("inf")


@dataclass
class _Counted:
    """Jobs of a queue, counted against the quotas of their accounts.

    Attributes
    ----------
    num_free : devices that are left until a job without a place holds up all others.
    in_use : devices of every account, those of counted waiting jobs included.
    beyond : jobs that exceed the quotas of their accounts, as (place in the order, devices, account).
    refused : reasons by the number of a job that asks for more than its account may ever have.
    """

    quotas: Quotas
    snapshot: Snapshot
    queue: Queue
    num_free: float
    in_use: Counter[str] = field(init=False)
    beyond: list[tuple[int, int, str]] = field(default_factory=list, init=False)
    refused: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.in_use = self.snapshot.devices_of_unlisted_jobs(by="account")

    def within(self) -> list[int]:
        """Return the places of the jobs that are within quotas."""
        order, sizes = self.queue.order, self.queue.num_devices
        sizes = self.snapshot.num_devices[order] if sizes is None else sizes
        kept, quotas = list[int](), self.quotas
        for place, (number, size) in enumerate(zip(order.tolist(), sizes.tolist(), strict=True)):
            job = self.snapshot.job(number)
            if job.num_devices > quotas.most(job.account):
                self.refused[number] = self._too_large(job.num_devices, job.account)
            elif self.in_use[job.account] + size <= quotas.of(job.account):
                if self._count(place, size, job.account, kept):
                    break
            else:
                self.beyond.append((place, size, job.account))
        return kept

    def borrowing(self) -> list[int]:
        """Return the places of the jobs that borrow what others leave unused."""
        kept, quotas = list[int](), self.quotas
        if not quotas.borrow or self.num_free < 0:
            return kept
        unused = sum(quotas.named.values()) - sum(self.in_use[account] for account in quotas.named)
        for place, size, account in self.beyond:
            if (
                account in quotas.named
                and size <= unused
                and self.in_use[account] + size <= quotas.most(account)
            ):
                unused -= size
                if self._count(place, size, account, kept):
                    break
        return kept

    def _count(self, place: int, size: int, account: str, kept: list[int]) -> bool:
        """Count the devices of a job as in use; return whether no job after it can start."""
        self.in_use[account] += size
        self.num_free -= size
        kept.append(place)
        return self.num_free < 0

    def _too_large(self, size: int, account: str) -> str:
        most, quota = self.quotas.most(account), self.quotas.of(account)
        borrowed = f", {most - quota:g} of them borrowed" if most > quota else ""
        return f"it asks for {size} devices; account {account!r} may have {most:g} at once{borrowed}"


def _only(queue: Queue, places: Ints, reordered: bool) -> Queue:
    """Return the queue of the jobs at these places; it does not block later jobs if jobs are left out or reordered."""
    columns: dict[str, Any] = {
        name: column[places] for name, column in queue._asdict().items() if isinstance(column, np.ndarray)
    }
    blocks = queue.blocks and len(places) == len(queue.order) and not reordered
    return queue._replace(**columns, blocks=blocks)

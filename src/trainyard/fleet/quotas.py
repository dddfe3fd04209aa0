"""Quotas: the most devices that the jobs of one account have in use at once, under a policy that only orders jobs.

Jobs count against the quota of their account in the order of the policy, also while they find no place. A job that would
exceed it waits, and holds nobody up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Quotas:
    """The most devices that each account has at once.

    Attributes
    ----------
    by_account : names of accounts with their quotas.
    every : quota of each account that is not named; None for no limit. Jobs without an account have no quota.
    """

    by_account: tuple[tuple[str, int], ...]
    every: int | None = None

    def of(self, account: str) -> float:
        """Return the quota of an account; infinite if it has none."""
        every = float("inf") if self.every is None or not account else self.every
        return dict(self.by_account).get(account, every)

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
    return traits_of(policy).supports >= ORDERED and "limit" not in policy.needs


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
        sizes = snapshot.num_devices[queue.order] if queue.num_devices is None else queue.num_devices
        in_use = snapshot.devices_of_unlisted_jobs(by="account")
        kept, refused = list[int](), dict(allocation.refused)
        num_free = self._num_startable(snapshot, queue)
        for place, (number, size) in enumerate(zip(queue.order.tolist(), sizes.tolist(), strict=True)):
            job = snapshot.job(number)
            account, quota = job.account, self.quotas.of(job.account)
            if job.num_devices > quota:
                refused[number] = (
                    f"it asks for {job.num_devices} devices; account {account!r} may have {quota:g} at once"
                )
            elif in_use[account] + size <= quota:
                in_use[account] += size
                kept.append(place)
                if (num_free := num_free - size) < 0:
                    break
        return allocation._replace(given=_only(queue, np.array(kept, np.int64)), refused=refused), state

    def _num_startable(self, snapshot: Snapshot, queue: Queue) -> float:
        """Count the devices that jobs get before one without a place holds up all others; infinite if none does."""
        holds_up = not queue.backfill and not self.preempts and snapshot.cluster.is_one_pool
        return float(snapshot.free.sum()) if holds_up else float("inf")


def _only(queue: Queue, places: Ints) -> Queue:
    """Return the queue of the jobs at some places; it blocks no later jobs if any job is left out."""
    columns: dict[str, Any] = {
        name: column[places] for name, column in queue._asdict().items() if isinstance(column, np.ndarray)
    }
    return queue._replace(**columns, blocks=queue.blocks and len(places) == len(queue.order))

"""Quotas: the most devices that the jobs of one account have in use at once, under a policy that only orders jobs.

Jobs count against the quota of their account in the order of the policy, also while they find no place. A job that would
exceed it waits, and holds nobody up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policy import Policy
from trainyard.fleet.snapshot import Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits, traits_of
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

__all__ = ["Quotas", "WithQuotas"]


@dataclass(frozen=True)
class Quotas:
    """The most devices that each account has at once.

    Attributes
    ----------
    by_account : names of accounts with their quotas.
    every : quota of each account that is not named; None for no limit. Jobs without an account have none.
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
            Names the account, and those that there are.
        """
        known = sorted({job.account for job in jobs} - {""})
        unknown = [name for name, _ in self.by_account if name not in known]
        there = f"accounts are {', '.join(known)}" if known else "the trace names no accounts"
        if unknown or not known:
            which = f"account {unknown[0]!r}" if unknown else "any account"
            raise FleetError(f"no job is of {which}, so that a quota changes nothing; {there}")


@dataclass(frozen=True)
class WithQuotas:
    """A policy that only orders jobs, with quotas.

    Raises
    ------
    FleetError
        If the policy does more than order jobs.
    """

    policy: Policy
    quotas: Quotas
    name: str

    def __post_init__(self) -> None:
        # Who reads time limits keeps places for jobs that wait, also for those that the quota would keep waiting.
        if not traits_of(self.policy).supports >= ORDERED or "limit" in self.policy.needs:
            raise FleetError(
                f"{self.name} does more than put jobs in an order, and knows no quotas; policies that take "
                "quotas are fifo, sjf, srtf, las and tiresias"
            )

    @property
    def needs(self) -> frozenset[Need]:
        """Those of the policy."""
        return self.policy.needs

    @property
    def preempts(self) -> bool:
        """As the policy does."""
        return self.policy.preempts

    @property
    def traits(self) -> Traits:
        """Those of the policy, without compiled code, which knows no quotas."""
        return replace(traits_of(self.policy), compiled=None)

    def start(self, cluster: Cluster) -> Any:
        """The state of the policy; refuses partitions, which are scheduled apart while accounts may be in several."""
        if cluster.partitions:
            raise FleetError(
                f"cluster {cluster.name!r} has partitions, and quotas of accounts are for clusters without; leave these "
                "out"
            )
        return self.policy.start(cluster)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        """What the policy decides, without jobs that would exceed the quotas of their accounts."""
        allocation, state = self.policy.decide(snapshot, state)
        queue = allocation.given
        if not isinstance(queue, Queue):
            raise FleetError(
                f"{self.name} gives a {type(queue).__name__}; quotas are for policies that give a Queue"
            )
        sizes = snapshot.num_devices[queue.order] if queue.num_devices is None else queue.num_devices
        in_use = snapshot.held_by_others("account")
        kept, refused = list[int](), dict(allocation.refused)
        num_free = self._num_free(snapshot, queue)
        for place, (number, size) in enumerate(zip(queue.order.tolist(), sizes.tolist(), strict=True)):
            account = snapshot.job(number).account
            quota = self.quotas.of(account)
            if snapshot.job(number).num_devices > quota:
                refused[number] = (
                    f"it asks for {size} devices; account {account!r} may have {quota:g} at once"
                )
            elif in_use[account] + size <= quota:
                in_use[account] += size
                kept.append(place)
                if (num_free := num_free - size) < 0:
                    break
        return allocation._replace(given=_only(queue, np.array(kept, np.int64)), refused=refused), state

    def _num_free(self, snapshot: Snapshot, queue: Queue) -> float:
        """Devices after which no more jobs start, since one that finds no place holds up all others; else infinite."""
        holds_up = not queue.backfill and not self.preempts and snapshot.cluster.is_one_pool
        return float(snapshot.free.sum()) if holds_up else float("inf")


def _only(queue: Queue, places: Ints) -> Queue:
    """Return a queue of the jobs at some places; later jobs may start though one of these waits, if it was left out."""
    columns: dict[str, Any] = {
        name: column[places] for name, column in queue._asdict().items() if isinstance(column, np.ndarray)
    }
    return queue._replace(**columns, blocks=queue.blocks and len(places) == len(queue.order))

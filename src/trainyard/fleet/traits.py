"""Traits of a policy beside its needs and whether it takes devices away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trainyard.fleet.compiled_policy import CompiledPolicy
    from trainyard.fleet.periods import Rounds
    from trainyard.hardware.cluster import Cluster

Wish = Literal["gang", "equal workers", "pinned cell", "partition", "reservation"]
"""Wishes of jobs that not every policy supports: each worker of a gang on one node, of any sizes or of equal ones; a
pinned cell; the nodes of a partition; and nodes that are reserved for a time."""

HoldsUp = Literal["nobody", "same nodes", "all"]
"""Whom a waiting job that does not fit holds up: no job, jobs that could use some of the same nodes, or all jobs."""

EQUAL_WORKERS: frozenset[Wish] = frozenset({"equal workers"})
"""Wishes that a policy supports if it leaves placement to the run and gives jobs as many devices as they ask for."""

WITH_RESERVATIONS: frozenset[Wish] = frozenset({"reservation"})
"""Wish of a cluster: nodes are kept free for reservations. A policy may support it beside other wishes."""

ORDERED: frozenset[Wish] = EQUAL_WORKERS | {"partition"}
"""Wishes that a policy supports if it only orders jobs, whichever devices they can have."""


@dataclass(frozen=True)
class Traits:
    """Traits of a policy with its present options.

    Attributes
    ----------
    shares : whether it may give a device to several jobs at once.
    round_s : length of the rounds in which it is meant to decide; None for whenever something happens.
    rounds : makes of the rounds that were asked for, or None, those in which it decides, or raises a `FleetError` if it
        cannot decide in them; None for one that can in any.
    places : whether it chooses the devices of all its jobs itself, so that no placement is asked.
    places_by : by what it says of some jobs how they are to be placed, in words; empty if it does of none.
    without_placing : makes the same policy, which leaves that to the run.
    holds_up : whom a job may hold up that finds no place; see `HoldsUp`.
    tries_places : whether it places jobs by `Snapshot.trial` and returns only those that fit: if one were taken out, its
        devices would be idle.
    usage_half_life_s : half-life of `Snapshot.usage_device_s`, seconds; infinite if usage always counts in full. None for
        a policy that does not read usage.
    named : attributes of jobs, such as "account", with names that options of the policy apply to.
    supports : wishes of jobs that it supports; a job with another wish is refused. The placement that policies share
        supports equal workers.
    compiled : the same policy in compiled code.
    """

    shares: bool = False
    round_s: float | None = None
    rounds: Callable[[Rounds | None], Rounds | None] | None = None
    places: bool = False
    places_by: str = ""
    without_placing: Callable[[], Any] | None = None
    holds_up: HoldsUp = "nobody"
    tries_places: bool = False
    usage_half_life_s: float | None = None
    named: tuple[tuple[str, str], ...] = ()
    supports: frozenset[Wish] = frozenset()
    compiled: CompiledPolicy | None = None

    def placement_text(self, place: str) -> str:
        """Say how jobs are placed.

        Parameters
        ----------
        place : name of the placement of jobs that the policy does not place itself.
        """
        if self.places:
            return "its own"
        return f"{self.places_by}, else {place}" if self.places_by else place

    def queues_text(self, cluster: Cluster) -> str:
        """Which queues there are, in words; empty where there can be but one, or none holds up anybody."""
        if cluster.is_one_pool or self.holds_up == "nobody":
            return ""
        if self.holds_up == "all":
            return "one"
        pools = {"device type": len(cluster.device_types) > 1, "partition": bool(cluster.partitions)}
        return f"one per {' and '.join(pool for pool, is_one in pools.items() if is_one)}"


def traits_of(policy: object) -> Traits:
    """The ``traits`` of a policy; one that has none decides whenever something happens, and leaves placing to the run."""
    found: Traits = getattr(policy, "traits", Traits())
    return found

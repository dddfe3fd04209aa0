"""What a policy may say of itself beside what every policy does: attributes that it need not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trainyard.fleet.site import Site


@runtime_checkable
class Sharing(Protocol):
    """A policy that may give a device to several jobs at once."""

    @property
    def shares(self) -> bool:
        """Whether it does with its present options."""
        ...


def shares_devices(policy: object) -> bool:
    """Whether a policy may give a device to several jobs at once."""
    return isinstance(policy, Sharing) and policy.shares


@runtime_checkable
class Periodic(Protocol):
    """A policy that is meant to decide in rounds."""

    @property
    def round_s(self) -> float:
        """Their length with its present options."""
        ...


def round_length_s(policy: object) -> float | None:
    """Length of the rounds in which a policy is meant to decide; None for whenever something happens."""
    return policy.round_s if isinstance(policy, Periodic) else None


@runtime_checkable
class Placing(Protocol):
    """A policy that may choose the very devices of its jobs."""

    @property
    def places(self) -> bool:
        """Whether it does for all of them, so that no placement is asked."""
        ...


def places_jobs(policy: object) -> bool:
    """Whether a policy chooses the devices of all its jobs itself."""
    return isinstance(policy, Placing) and policy.places


@runtime_checkable
class PlacingSome(Protocol):
    """A policy that may say of some jobs how they are to be placed."""

    @property
    def places_some(self) -> bool:
        """Whether it does with its present options."""
        ...

    @property
    def places_by(self) -> str:
        """Of which jobs, in words: what comes before "else", where the others are left to the run."""
        ...

    def without_placing(self) -> Any:
        """The same policy, which leaves that to the run."""
        ...


def places_some_jobs(policy: object) -> bool:
    """Whether a policy says of some jobs how they are to be placed."""
    return isinstance(policy, PlacingSome) and policy.places_some


def placing(policy: object, place: str) -> str:
    """How jobs are placed under a policy, in words.

    Parameters
    ----------
    place : name of the placement of jobs that it does not place itself.
    """
    if places_jobs(policy):
        return "its own"
    if isinstance(policy, PlacingSome) and policy.places_some:
        return f"{policy.places_by}, else {place}"
    return place


@runtime_checkable
class Queueing(Protocol):
    """A policy under which a job that finds no place may hold up those after it."""

    @property
    def holds_up(self) -> Literal["nobody", "same nodes", "all"]:
        """Whom: those that could have some of the same nodes, or all."""
        ...


def queues(policy: object, site: Site) -> str:
    """Which queues a policy has, in words; empty where there can be but one, or none holds up anybody."""
    if site.is_one_pool or not isinstance(policy, Queueing) or policy.holds_up == "nobody":
        return ""
    if policy.holds_up == "all":
        return "one"
    pools = {"device type": len(site.device_types) > 1, "partition": bool(site.partitions)}
    return f"one per {' and '.join(pool for pool, is_one in pools.items() if is_one)}"


Wish = Literal["gang", "equal workers", "pinned cell", "partition"]
"""What a job may ask for that not every policy heeds: that each worker of its gang lies on one node, whatever their
sizes, or if these are equal; that it lies in its pinned cell; and that it lies on nodes of its partition."""


@runtime_checkable
class Heeding(Protocol):
    """A policy that heeds some of that; from any other, jobs that ask for it are kept away."""

    @property
    def heeds(self) -> frozenset[Wish]:
        """What it heeds. The placement that policies share heeds equal workers."""
        ...


def heeds_of(policy: object) -> frozenset[Wish]:
    """What a policy heeds of what not every policy does."""
    return policy.heeds if isinstance(policy, Heeding) else frozenset()


EQUAL_WORKERS: frozenset[Wish] = frozenset({"equal workers"})
"""What those heed that leave placement to others, and give jobs as many devices as they ask for."""

ORDERED: frozenset[Wish] = EQUAL_WORKERS | {"partition"}
"""What those heed, too, that only put jobs in an order, whichever devices they can have."""

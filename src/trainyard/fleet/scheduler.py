"""A policy of the catalog with all that a run needs beside it: where its jobs are placed, and when it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainyard.fleet.catalog import find, parse_policy, split_policies
from trainyard.fleet.errors import FleetError
from trainyard.fleet.known import ignored
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.periods import Rounds, check_period
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policy import Policy
from trainyard.fleet.recorded import AS_RECORDED
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import prepared_run
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class Scheduler:
    """A policy, ready to simulate or to run.

    Attributes
    ----------
    text : the policy as it was named, with its options.
    place : name of the placement of jobs that the policy does not place itself.
    rounds : when decisions are made; None for whenever something happens.
    """

    text: str
    policy: Policy
    place: str
    rounds: Rounds | None

    @property
    def shares(self) -> bool:
        """Whether the policy may give a device to several jobs at once."""
        return traits_of(self.policy).shares

    def simulate(self, jobs: Iterable[Job], cluster: Cluster, **conditions: Any) -> FleetRun:
        """Run a workload in simulation; ``conditions`` are those of `prepared`."""
        return self.prepared(jobs, cluster, **conditions)()

    def prepared(
        self,
        jobs: Iterable[Job],
        cluster: Cluster,
        *,
        costs: Costs | None = None,
        hazards: Hazards | None = None,
        crowding: Crowding | None = None,
        keep_spans: bool = False,
        strict: bool = False,
    ) -> Callable[[], FleetRun]:
        """Set up a simulation of a workload, which runs when it is called; see `prepared_run`."""
        return prepared_run(
            jobs,
            cluster,
            self.policy,
            name=self.text,
            place=self.place,
            rounds=self.rounds,
            costs=costs,
            hazards=hazards,
            crowding=crowding,
            keep_spans=keep_spans,
            strict=strict,
        )


def scheduler_of(text: str, place: str | None = None, round_s: float | None = None) -> Scheduler:
    """A policy by its name, placed and timed as its paper or its own options have it where nothing else is said.

    A placement that is given is that of all jobs, also under a policy that would place some of them in its own way.

    Parameters
    ----------
    text : as `parse_policy` reads it.
    round_s : length of its rounds.

    Raises
    ------
    FleetError
        If there is no such policy or placement, the policy places all jobs itself and a placement is given, or it
        cannot decide in such rounds.
    """
    policy, entry = parse_policy(text), find(text.partition("(")[0].strip())
    traits = traits_of(policy)
    if place is not None and traits.places:
        raise FleetError(f"{text} chooses the devices of its jobs itself; leave the placement {place!r} out")
    if place is not None and traits.without_placing is not None:
        policy = traits.without_placing()
    place = place or entry.place
    placement(place)
    if round_s is None and (round_s := traits.round_s) is not None:
        check_period(f"a round of {text}", round_s)
    rounds = None if round_s is None else Rounds(round_s)
    if traits.rounds is not None:
        rounds = traits.rounds(rounds)
    return Scheduler(text, policy, place, rounds)


@dataclass(frozen=True)
class CannotRun:
    """A policy that cannot run on a cluster or a workload, or under the conditions that were given, and why."""

    text: str
    why: str


class Ignored(NamedTuple):
    """What has no effect under some policies.

    Attributes
    ----------
    policies : their texts.
    attributes : attributes that jobs have and the policies do not read.
    names : names that options of the policies or the cluster apply to and no job has, such as ``account 'vision'``.
    """

    policies: tuple[str, ...]
    attributes: tuple[str, ...]
    names: tuple[str, ...] = ()


def ignored_by(schedulers: Sequence[Scheduler], jobs: Sequence[Job], cluster: Cluster) -> tuple[Ignored, ...]:
    """Return what has no effect on jobs; policies for which it is the same are together."""
    policies: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for scheduler in schedulers:
        what = ignored(jobs, scheduler.policy.needs), _names_of_no_job(scheduler.policy, jobs, cluster)
        if any(what):
            policies.setdefault(what, []).append(scheduler.text)
    return tuple(Ignored(tuple(texts), *what) for what, texts in policies.items())


def _names_of_no_job(policy: Policy, jobs: Sequence[Job], cluster: Cluster) -> tuple[str, ...]:
    """Return the names that a policy or its cluster applies to and no job has."""
    traits, named = traits_of(policy), dict.fromkeys(traits_of(policy).named)
    if "qos" in policy.needs:
        named |= dict.fromkeys(("qos", name) for name, _ in cluster.qos)
    if "reservation" in traits.supports:
        for each in cluster.reservations:
            named |= dict.fromkeys(("user", name) for name in each.users)
            named |= dict.fromkeys(("account", name) for name in each.accounts)
    there = {kind: {getattr(job, kind) for job in jobs} for kind in {kind for kind, _ in named}}
    return tuple(f"{kind.replace('_', ' ')} {name!r}" for kind, name in named if name not in there[kind])


def schedulers_of(
    policies: str, place: str | None = None, round_s: float | None = None
) -> tuple[list[Scheduler], list[CannotRun]]:
    """Several policies, each as `scheduler_of` makes it, and those that cannot be placed or timed so.

    Raises
    ------
    FleetError
        If a policy or the placement is unknown, or none of the policies can be placed and timed so.
    """
    if place is not None:
        placement(place)
    schedulers, refused = list[Scheduler](), list[CannotRun]()
    for name in split_policies(policies):
        parse_policy(name)
        try:
            schedulers.append(scheduler_of(name, place, round_s))
        except FleetError as error:
            refused.append(CannotRun(name, str(error)))
    if not schedulers:
        raise FleetError(refused[0].why)
    return schedulers, refused


def baseline_of(policies: str, baseline: str | None, ran: Sequence[str] | None = None) -> str:
    """The policy with which others are compared: the one that is named, or the first that ran; empty if there is none.

    Parameters
    ----------
    policies : all that were asked for, as `split_policies` reads them.
    ran : those that ran, and what else can be compared with; by default all.

    Raises
    ------
    FleetError
        If one is named that was not asked for.
    """
    asked = split_policies(policies)
    if baseline is None:
        return next((name for name in (asked if ran is None else ran)), "")
    name = "".join(split_policies(baseline)) if baseline != AS_RECORDED else baseline
    if name not in (*asked, AS_RECORDED):
        raise FleetError(
            f"--baseline {baseline!r} is none of the policies; take one of {', '.join(asked)}, or {AS_RECORDED!r}"
        )
    return name if ran is None or name in ran else ""

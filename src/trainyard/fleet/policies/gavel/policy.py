"""From fractions to an allocation: the shell around each of Gavel's programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation, TimeFractions
from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.gavel.estimate import Estimated, estimated_pairs
from trainyard.fleet.policies.gavel.pairs import Seen, seen_pairs
from trainyard.fleet.policies.gavel.problem import Fractions, Pairs, Problem
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import EQUAL_WORKERS, Traits, Wish
from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SpaceSharing = bool | Literal["estimated"]
"""Whether two jobs may have the same devices, and whether their speeds then are estimated."""

SolverName = Literal["prices", "highs"]
"""Solvers of programs in which no two jobs share devices; programs in which they may are solved by HiGHS."""

_INF = float("inf")
_NEXT_TO_NONE = 1e-6
_MOMENT_S = 1e-3
_ROUND_S = 360.0
"""The length of a round in the paper, six minutes."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Memory from one decision to the next.

    Attributes
    ----------
    serial, speed : of the jobs of the last decision.
    kept : by the program.
    seen : speeds of jobs beside others.
    """

    serial: Ints
    speed: Floats
    kept: Any
    seen: Seen | Estimated | None = None


@dataclass(frozen=True, kw_only=True)
class Gavel(ABC):
    """A policy whose decision is a program over fractions of time (section 3.1), brought about in rounds (section 5).

    Attributes
    ----------
    aware : False takes all types for alike, and work for as long as on the first one, as do the policies that the paper
        compares with.
    space_sharing : two jobs may have the same devices at once; "estimated" if what is known of their speeds then are
        measurements of some (section 6).
    solver : "highs" has HiGHS solve every program; "prices", which is faster and comes to as good fractions by prices of
        the types, only those of jobs that share devices.
    leftovers : whether devices that no fraction claims go to other jobs.
    by_entity : whether it looks at virtual clusters.

    Raises
    ------
    FleetError
        If one of the options is something else, or it is to share devices and knows no speeds.
    """

    aware: bool = True
    space_sharing: SpaceSharing = False
    solver: SolverName = "prices"
    leftovers: bool = field(default=True, init=False)
    by_entity: bool = field(default=False, init=False)
    preempts: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.space_sharing not in (False, True, "estimated"):
            raise FleetError(f'space_sharing is True, False or "estimated", got {self.space_sharing!r}')
        if self.solver not in get_args(SolverName):
            raise FleetError(f'solver is "prices" or "highs", got {self.solver!r}')
        if self.space_sharing and not self.aware:
            raise FleetError(
                "space_sharing needs the speeds of jobs beside others; give it without aware=False, which knows no speeds"
            )

    @abstractmethod
    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        """Solve the program: fractions of combinations of jobs, and what it is to remember.

        Parameters
        ----------
        kept : what the last decision left to remember.
        """

    @property
    def start_with(self) -> Any:
        """Return the memory before the first decision."""
        return None

    def seen_speed(self, speed: Floats) -> Floats:
        """Speeds as it sees them: to one who takes all types for alike, jobs do one second's work in a second."""
        return speed if self.aware else np.where(speed > 0, 1.0, 0.0)

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds."""
        return frozenset({"speed"})

    @property
    def traits(self) -> Traits:
        """Rounds of six minutes, as the paper's. Partners are placed together, whatever their workers."""
        supports = frozenset[Wish]() if self.space_sharing else EQUAL_WORKERS
        return Traits(
            shares=bool(self.space_sharing), round_s=_ROUND_S, rounds=self.rounds, supports=supports
        )

    def rounds(self, given: Rounds | None) -> Rounds:
        """Rounds of six minutes if nothing else is asked for."""
        return given or Rounds(_ROUND_S)

    def start(self, cluster: Cluster) -> Memory:
        """Nobody was there."""
        return Memory(np.zeros(0, np.int64), np.zeros((0, len(cluster.device_types))), self.start_with)

    def decide(self, snapshot: Snapshot, state: Memory) -> tuple[Allocation, Memory]:
        """A fraction for every job on every type on which it can run; those that can run nowhere are refused."""
        known = _speeds(snapshot, state)
        never = np.nonzero(~(known > 0).any(axis=1))[0].tolist()
        speed = np.where(snapshot.num_devices[:, None] <= snapshot.cluster.devices_of_type, known, 0.0)
        runs = np.nonzero((speed > 0).any(axis=1))[0]
        waits = sorted(set(range(snapshot.num_jobs)).difference(never, runs.tolist()))
        names = ", ".join(snapshot.cluster.device_types)
        reasons = dict.fromkeys(waits, "nodes that it needs cannot be used now")
        refused = dict.fromkeys(never, f"it runs at no speed on {names}")
        if not len(runs):
            nobody = Allocation(TimeFractions(runs, runs, np.zeros(0)), reasons=reasons, refused=refused)
            return nobody, Memory(snapshot.serial, known, state.kept, state.seen)
        seen: Seen | Estimated | None = None
        pairs: Pairs | None = None
        if self.space_sharing:
            seen, pairs = self._pairs(snapshot, known, state.seen)
            pairs = pairs.where(speed > 0)
            pairs = pairs.of(runs) if (pairs.part > 0).any() else None
        problem = self._problem(snapshot, runs, speed[runs], pairs)
        found, kept = self.fractions(problem, state.kept)
        jobs, kinds = np.nonzero(problem.able)
        order, fraction, partner = runs[jobs], found.alone[jobs, kinds], None
        if len(found.first):
            partner = np.concatenate((np.full(len(order), -1), runs[found.second]))
            order, kinds = np.append(order, runs[found.first]), np.append(kinds, found.device_type)
            fraction = np.append(fraction, found.together)
        allocation = Allocation(
            TimeFractions(order, kinds, np.clip(fraction, 0.0, 1.0), partner, self.leftovers),
            reasons=reasons,
            refused=refused,
            ask_again_s=_INF if pairs is None or pairs.are_sure(found) else snapshot.now_s + _ROUND_S,
        )
        return allocation, Memory(snapshot.serial, known, kept, seen)

    def _pairs(
        self, snapshot: Snapshot, speed: Floats, before: Seen | Estimated | None
    ) -> tuple[Seen | Estimated, Pairs]:
        if self.space_sharing == "estimated":
            assert not isinstance(before, Seen)
            return estimated_pairs(snapshot, speed, before)
        assert not isinstance(before, Estimated)
        return seen_pairs(snapshot, speed, before)

    def _problem(self, snapshot: Snapshot, runs: Ints, speed: Floats, pairs: Pairs | None) -> Problem:
        none = np.zeros(0)
        left = _left(snapshot, runs, speed) if "length" in self.needs else none
        if not self.aware and len(left):
            left = left / np.where(speed[:, 0] > 0, speed[:, 0], speed.max(axis=1, initial=0.0))
        time_left_s = snapshot.deadline_s[runs] - snapshot.now_s if "deadline" in self.needs else none
        entity = (
            tuple(snapshot.job(number).virtual_cluster for number in runs.tolist()) if self.by_entity else ()
        )
        return Problem(
            self.seen_speed(speed),
            snapshot.num_devices[runs].astype(float),
            snapshot.cluster.devices_of_type,
            snapshot.weight[runs] if "weight" in self.needs else np.ones(len(runs)),
            snapshot.serial[runs],
            snapshot.cluster.device_types,
            able=speed > 0,
            left=left,
            age_s=snapshot.now_s - snapshot.arrival_s[runs],
            time_left_s=time_left_s,
            entity=entity,
            pairs=pairs,
            waiting=np.delete(snapshot.serial, runs),
            prices=snapshot.cluster.prices,
            in_highs=self.solver == "highs",
        )


def _left(snapshot: Snapshot, runs: Ints, speed: Floats) -> Floats:
    """Work left; next to none of a real job that has not yet said that its last step is done, and of one without work."""
    left, work = snapshot.left[runs], np.array([snapshot.job(number).work for number in runs.tolist()])
    least = np.where(work > 0, _NEXT_TO_NONE * work, _MOMENT_S * speed.max(axis=1, initial=0.0))
    return np.where(left > 0, left, least)


def _speeds(snapshot: Snapshot, state: Memory) -> Floats:
    """Speeds by device type; those of jobs that were there before are not asked again."""
    found = np.empty((snapshot.num_jobs, len(snapshot.cluster.device_types)))
    old = np.searchsorted(state.serial, snapshot.serial)
    known = np.append(state.serial, -1)[old] == snapshot.serial
    found[known] = state.speed[old[known]]
    for number in np.nonzero(~known)[0].tolist():
        found[number] = snapshot.gang_speeds(number)
    return found

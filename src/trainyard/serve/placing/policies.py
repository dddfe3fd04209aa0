"""Policies of placement by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainyard.naming import Names
from trainyard.serve.errors import ServeError
from trainyard.serve.placing.auto import Placer, best_by_simulation
from trainyard.serve.placing.decisions import GroupPlacement, PlacementDecision, TimeSharedPlacement
from trainyard.serve.placing.problem import PlacingProblem
from trainyard.serve.policies.alpaserve.enumeration import replication
from trainyard.serve.policies.alpaserve.local import mixed_search
from trainyard.serve.policies.nexus.packing import PackedDevice, Session, num_full, pack

__all__ = ["PLACERS", "AlpaServe", "Auto", "Nexus", "Placer", "Replicate", "parse_placers"]

_STEPS = 20  # of the headroom that is tried
_MOST_HEADROOM = 1000


def _check_search(**numbers: int) -> None:
    """Refuse numbers of a search that are below 0."""
    if min(numbers.values()) < 0:
        given = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise ServeError(f"{given}; allowed is 0 or more")


@dataclass(frozen=True)
class Replicate:
    """Every model on single devices, as often as there is room: the baseline of AlpaServe (simple replication)."""

    def decide(self, problem: PlacingProblem) -> GroupPlacement:
        return GroupPlacement(problem, replication(problem.grouped))


@dataclass(frozen=True)
class AlpaServe:
    """Models split into stages and shards on groups of devices, by simulation.

    Attributes
    ----------
    num_shapes : how many sets of group shapes are tried.
    num_moves : how many layouts are tried for each set of shapes.
    seed : of the order in which they are tried.
    """

    num_shapes: int = 12
    num_moves: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        _check_search(num_shapes=self.num_shapes, num_moves=self.num_moves)

    def decide(self, problem: PlacingProblem) -> GroupPlacement:
        layout = mixed_search(problem.grouped, self.num_shapes, self.num_moves, self.seed)
        return GroupPlacement(problem, layout)


@dataclass(frozen=True)
class Nexus:
    """Sessions packed on the fewest devices that serve their rates.

    Attributes
    ----------
    headroom : multiple of the rates for which devices are packed, to leave time for bursts; less where there are too
        few devices.
    """

    headroom: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.headroom <= _MOST_HEADROOM:
            raise ServeError(f"headroom is {self.headroom}; allowed is above 0, up to {_MOST_HEADROOM:,}")

    def decide(self, problem: PlacingProblem) -> TimeSharedPlacement:
        return TimeSharedPlacement(problem, _packed(problem, self.headroom))


@dataclass(frozen=True)
class _Entry:
    name: str
    factory: Callable[..., Placer]


_PUBLISHED = (_Entry("alpaserve", AlpaServe), _Entry("nexus", Nexus), _Entry("replicate", Replicate))
_MORE_STARTS = (Nexus(1.5), Nexus(2.0), Nexus(4.0))
_PARTITION_PLACERS = (AlpaServe(num_shapes=2, num_moves=100), Nexus(), Nexus(2.0))


@dataclass(frozen=True)
class Auto:
    """The best of the other policies on the given requests, improved by local search on the same requests.

    Attributes
    ----------
    num_partitionings : ways to divide models and devices between placers that are tried.
    num_moves : changes that are tried in each round of the search.
    seed : of the search.
    """

    num_partitionings: int = 100
    num_moves: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        _check_search(num_partitionings=self.num_partitionings, num_moves=self.num_moves)

    def decide(self, problem: PlacingProblem) -> PlacementDecision:
        starts = (*(entry.factory() for entry in _PUBLISHED), *_MORE_STARTS)
        return best_by_simulation(
            problem, starts, _PARTITION_PLACERS, self.num_partitionings, self.num_moves, self.seed
        )


PLACERS = (*_PUBLISHED, _Entry("auto", Auto))
"""All policies of placement."""

_NAMES: Names[Any] = Names(
    PLACERS, "policy", "policies", "alpaserve, nexus(headroom=2)", ServeError, (int, float), "a number"
)


def parse_placers(text: str) -> tuple[tuple[str, Placer], ...]:
    """Read policies of placement from text: names joined by commas, each with options in parentheses if it has any.

    Raises
    ------
    ServeError
        If a name or an option is unknown, or the text has another form.

    Examples
    --------
    >>> [name for name, _ in parse_placers("alpaserve, nexus(headroom=2)")]
    ['alpaserve', 'nexus(headroom=2)']
    """
    return _NAMES.parse(text, ",")


def _packed(problem: PlacingProblem, headroom: float) -> tuple[PackedDevice, ...]:
    """Devices for the largest multiple of the rates, up to the headroom, that there are enough for."""
    asked = [
        Session(each.name, each.forward.batching, each.objective_s, rate, each.forward.weight_bytes)
        for each, rate in zip(problem.models, problem.rates_per_s, strict=True)
    ]

    def nodes(factor: float) -> tuple[PackedDevice, ...] | None:
        scaled = tuple(replace(each, rate_per_s=factor * each.rate_per_s) for each in asked)
        if num_full(scaled, problem.device_bytes) > problem.num_devices:
            return None
        found = pack(scaled, problem.device_bytes)
        return found if len(found) <= problem.num_devices else None

    factors = headroom * np.arange(1, _STEPS + 1) / _STEPS
    for factor in (headroom, *reversed(factors.tolist())):
        if (found := nodes(factor)) is not None:
            return found
    raise ServeError(
        f"{len(asked)} models need more than {problem.num_devices} devices even at {factors[0]:g} of their rates; give "
        "more devices or longer objectives"
    )

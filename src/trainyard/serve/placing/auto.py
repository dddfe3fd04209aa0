"""Choose a placement by simulation: of all policies the best, models served in different ways, and small changes.

1. Every policy decides, and the requests by which is decided are simulated on what it decides.
2. Models are divided into parts, each of which another policy places on devices of its own: what cannot be batched, or is
   too large for a device, beside what has to be batched. Which models and how many devices each part has is found by
   local search.
3. All of these are changed a little, again and again; a change stays if it is no worse. The better half gets twice as
   many changes each, until one is left.

So on those requests the result is never worse than a policy of step 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple, Protocol

from trainyard.serve.errors import ServeError
from trainyard.serve.placing.decisions import (
    JoinedPlacement,
    Part,
    PlacedModels,
    PlacementDecision,
    arrivals_for,
)
from trainyard.serve.placing.problem import PlacingProblem

__all__ = ["Placer", "best_by_simulation"]

_WORST = (float("inf"), float("inf"))


class Placer(Protocol):
    """Decides which models are on which devices."""

    def decide(self, problem: PlacingProblem) -> PlacementDecision:
        """Decide by the requests of the problem.

        Raises
        ------
        ServeError
            If models cannot be placed so; the message says why.
        """
        ...


class _Trial(NamedTuple):
    decision: PlacementDecision
    rank: tuple[float, float]


def best_by_simulation(
    problem: PlacingProblem,
    starts: Sequence[Placer],
    ways: Sequence[Placer],
    num_joins: int,
    num_moves: int,
    seed: int,
) -> PlacementDecision:
    """The best placement that is found.

    Parameters
    ----------
    starts : policies of step 1.
    ways : policies that place the parts of step 2.
    num_joins : divisions of the models that are tried.
    num_moves : changes that are tried in each round of step 3.
    seed : of what is drawn.

    Raises
    ------
    ServeError
        If no policy can place the models.
    """
    random, trials, reasons = Random(seed), [], []
    for placer in starts:
        try:
            trials.append(_tried(problem, placer.decide(problem)))
        except ServeError as error:
            reasons.append(str(error))
    joined = _Joining(problem, tuple(ways)).search(num_joins, random)
    if joined is not None:
        trials.append(_tried(problem, joined))
    if not trials:
        raise ServeError("; ".join(dict.fromkeys(reasons)))
    while True:
        budget = num_moves // len(trials)
        trials = sorted((_changed(problem, each, budget, random) for each in trials), key=lambda t: t.rank)
        if len(trials) == 1:
            return trials[0].decision
        trials = trials[: len(trials) // 2]


def _tried(problem: PlacingProblem, decision: PlacementDecision) -> _Trial:
    return _Trial(decision, decision.serve(problem.arrivals).rank)


def _changed(problem: PlacingProblem, trial: _Trial, num_moves: int, random: Random) -> _Trial:
    """A decision after changes, none of which made it worse."""
    for _ in range(num_moves):
        near = trial.decision.near(random)
        try:
            other = _tried(problem, near)
        except ServeError:  # no model is left
            continue
        if other.rank <= trial.rank:
            trial = other
    return trial


class _Division(NamedTuple):
    """Which way places each model, and how many devices each way has."""

    way_of: tuple[int, ...]
    devices: tuple[int, ...]

    def models(self, way: int) -> tuple[int, ...]:
        return tuple(model for model, chosen in enumerate(self.way_of) if chosen == way)


@dataclass(frozen=True)
class _Joining:
    """Divisions of models and devices, with what was found of their parts."""

    problem: PlacingProblem
    ways: tuple[Placer, ...]
    _known: dict[tuple[int, tuple[int, ...], int], tuple[PlacementDecision, PlacedModels] | None] = field(
        default_factory=dict, init=False
    )

    def search(self, num_joins: int, random: Random) -> JoinedPlacement | None:
        """The best division that is found; None if models cannot be placed in any."""
        best = _Division((0,) * len(self.problem.models), (self.problem.num_devices,))
        best = best._replace(devices=best.devices + (0,) * (len(self.ways) - 1))
        rank = self._rank(best)
        for _ in range(num_joins if len(self.ways) > 1 else 0):
            other = self._near(best, random)
            if other is not None and (other_rank := self._rank(other)) <= rank:
                best, rank = other, other_rank
        return None if rank == _WORST else self._joined(best)

    def _near(self, division: _Division, random: Random) -> _Division | None:
        """Some models placed in another way, and the devices divided anew; None if there are too few."""
        way_of = list(division.way_of)
        for _ in range(random.choice((0, 1, 1, 2))):
            way_of[random.randrange(len(way_of))] = random.randrange(len(self.ways))
        used = sorted(set(way_of))
        if len(used) > self.problem.num_devices:
            return None
        devices = [max(count, 1) if way in used else 0 for way, count in enumerate(division.devices)]
        for _ in range(random.choice((0, 1, 2, self.problem.num_devices))):
            _shift(devices, random.choice(used), 1)
            _shift(devices, random.choice(used), -1)
        while (missing := self.problem.num_devices - sum(devices)) != 0:
            _shift(devices, random.choice(used), 1 if missing > 0 else -1)
        return _Division(tuple(way_of), tuple(devices))

    def _rank(self, division: _Division) -> tuple[float, float]:
        parts = self._parts(division)
        if parts is None:
            return _WORST
        num_good = sum(sum(placed.num_good) for _, placed in parts)
        total_s = sum(placed.mean_latency_s * sum(placed.num_good) for _, placed in parts)
        num_asked = max(len(self.problem.arrivals.model), 1)
        return -num_good / num_asked, total_s / max(num_good, 1)

    def _joined(self, division: _Division) -> JoinedPlacement:
        parts, first = [], 0
        for way, (decision, _) in zip(_used(division), self._parts(division) or (), strict=True):
            parts.append(Part(division.models(way), first, decision))
            first += division.devices[way]
        return JoinedPlacement(len(division.way_of), tuple(parts))

    def _parts(self, division: _Division) -> list[tuple[PlacementDecision, PlacedModels]] | None:
        """Of every way that is used; None if one of them cannot place its models."""
        found = []
        for way in _used(division):
            key = (way, division.models(way), division.devices[way])
            if key not in self._known:
                self._known[key] = self._part(*key)
            part = self._known[key]
            if part is None:
                return None
            found.append(part)
        return found

    def _part(
        self, way: int, models: tuple[int, ...], num_devices: int
    ) -> tuple[PlacementDecision, PlacedModels] | None:
        problem = replace(
            self.problem,
            models=tuple(self.problem.models[model] for model in models),
            num_devices=num_devices,
            arrivals=arrivals_for(self.problem.arrivals, models),
        )
        try:
            decision = self.ways[way].decide(problem)
            return decision, decision.serve(problem.arrivals)
        except ServeError:
            return None


def _used(division: _Division) -> list[int]:
    return sorted(set(division.way_of))


def _shift(devices: list[int], way: int, by: int) -> None:
    devices[way] = max(devices[way] + by, 1)

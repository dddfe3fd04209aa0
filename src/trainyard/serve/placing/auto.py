"""Choose a placement by simulation: of all policies the best, models served in different ways, and small changes.

1. Every policy decides, and the requests by which is decided are simulated on what it decides.
2. Models are divided into partitions, each of which another policy places on devices of its own: what cannot be batched,
   or is too large for a device, beside what has to be batched. Local search finds which models and how many devices each
   partition has.
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
    PartitionedPlacement,
    PlacedModels,
    PlacementDecision,
    PlacementPart,
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
    partition_placers: Sequence[Placer],
    num_partitionings: int,
    num_moves: int,
    seed: int,
) -> PlacementDecision:
    """The best placement that is found.

    Parameters
    ----------
    starts : policies of step 1.
    partition_placers : policies that place the partitions of step 2.
    num_partitionings : ways to divide models and devices that are tried in step 2.
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
    partitioned = _PartitionSearch(problem, tuple(partition_placers)).search(num_partitionings, random)
    if partitioned is not None:
        trials.append(_tried(problem, partitioned))
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


class _Partitioning(NamedTuple):
    """Which placer places each model, by number, and how many devices each placer has."""

    placer_of: tuple[int, ...]
    devices: tuple[int, ...]

    def models(self, number: int) -> tuple[int, ...]:
        return tuple(model for model, chosen in enumerate(self.placer_of) if chosen == number)


@dataclass(frozen=True)
class _PartitionSearch:
    """Searches how models and devices are divided into partitions, and keeps what was found of each partition."""

    problem: PlacingProblem
    placers: tuple[Placer, ...]
    _known: dict[tuple[int, tuple[int, ...], int], tuple[PlacementDecision, PlacedModels] | None] = field(
        default_factory=dict, init=False
    )

    def search(self, num_partitionings: int, random: Random) -> PartitionedPlacement | None:
        """The best partitioning that is found; None if models cannot be placed in any."""
        best = _Partitioning((0,) * len(self.problem.models), (self.problem.num_devices,))
        best = best._replace(devices=best.devices + (0,) * (len(self.placers) - 1))
        rank = self._rank(best)
        for _ in range(num_partitionings if len(self.placers) > 1 else 0):
            other = self._near(best, random)
            if other is not None and (other_rank := self._rank(other)) <= rank:
                best, rank = other, other_rank
        return None if rank == _WORST else self._placement(best)

    def _near(self, partitioning: _Partitioning, random: Random) -> _Partitioning | None:
        """Give some models to another placer and divide the devices anew; None if there are too few devices."""
        placer_of = list(partitioning.placer_of)
        for _ in range(random.choice((0, 1, 1, 2))):
            placer_of[random.randrange(len(placer_of))] = random.randrange(len(self.placers))
        used = sorted(set(placer_of))
        if len(used) > self.problem.num_devices:
            return None
        devices = [
            max(count, 1) if number in used else 0 for number, count in enumerate(partitioning.devices)
        ]
        for _ in range(random.choice((0, 1, 2, self.problem.num_devices))):
            _shift(devices, random.choice(used), 1)
            _shift(devices, random.choice(used), -1)
        while (missing := self.problem.num_devices - sum(devices)) != 0:
            _shift(devices, random.choice(used), 1 if missing > 0 else -1)
        return _Partitioning(tuple(placer_of), tuple(devices))

    def _rank(self, partitioning: _Partitioning) -> tuple[float, float]:
        partitions = self._partitions(partitioning)
        if partitions is None:
            return _WORST
        num_good = sum(sum(placed.num_good) for _, placed in partitions)
        total_s = sum(placed.total_latency_s for _, placed in partitions)
        num_asked = max(len(self.problem.arrivals.model), 1)
        return -num_good / num_asked, total_s / max(num_good, 1)

    def _placement(self, partitioning: _Partitioning) -> PartitionedPlacement:
        partitions, first = [], 0
        for number, (decision, _) in zip(
            _used(partitioning), self._partitions(partitioning) or (), strict=True
        ):
            partitions.append(PlacementPart(partitioning.models(number), first, decision))
            first += partitioning.devices[number]
        return PartitionedPlacement(len(partitioning.placer_of), tuple(partitions))

    def _partitions(self, partitioning: _Partitioning) -> list[tuple[PlacementDecision, PlacedModels]] | None:
        """Return the partition of each placer that is used; None if one of them cannot place its models."""
        found = []
        for number in _used(partitioning):
            key = (number, partitioning.models(number), partitioning.devices[number])
            if key not in self._known:
                self._known[key] = self._partition(*key)
            partition = self._known[key]
            if partition is None:
                return None
            found.append(partition)
        return found

    def _partition(
        self, number: int, models: tuple[int, ...], num_devices: int
    ) -> tuple[PlacementDecision, PlacedModels] | None:
        problem = replace(
            self.problem,
            models=tuple(self.problem.models[model] for model in models),
            num_devices=num_devices,
            arrivals=arrivals_for(self.problem.arrivals, models),
        )
        try:
            decision = self.placers[number].decide(problem)
            return decision, decision.serve(problem.arrivals)
        except ServeError:
            return None


def _used(partitioning: _Partitioning) -> list[int]:
    return sorted(set(partitioning.placer_of))


def _shift(devices: list[int], number: int, by: int) -> None:
    devices[number] = max(devices[number] + by, 1)

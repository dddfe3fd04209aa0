"""Decisions of placement policies: where models are, and how requests are served there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

import numpy as np

from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Group, Placement, Replica
from trainyard.serve.placing.moves import moved_sessions
from trainyard.serve.placing.problem import PlacingProblem
from trainyard.serve.policies.alpaserve import simulate as groups
from trainyard.serve.policies.alpaserve.local import exchanged, reshaped, thinned
from trainyard.serve.policies.alpaserve.problem import Arrivals, Layout, ParallelConfig
from trainyard.serve.policies.nexus import simulate as sessions
from trainyard.serve.policies.nexus.packing import PackedDevice

__all__ = [
    "GroupPlacement",
    "ModelOnDevices",
    "PartitionedPlacement",
    "PlacedModels",
    "PlacementDecision",
    "PlacementPart",
    "TimeSharedPlacement",
    "arrivals_for",
]

_RESHAPED, _THINNED = 0.2, 0.2  # of the changes of groups


@dataclass(frozen=True)
class ModelOnDevices:
    """A replica of a model on devices, and how they serve it.

    Attributes
    ----------
    replica : the model, and how it is split over the devices.
    devices : their numbers.
    batch : most requests at once.
    cycle_s : time in which the device computes a batch of each of its models; 0 where it computes what comes first.
    """

    replica: Replica
    devices: tuple[int, ...]
    batch: int = 1
    cycle_s: float = 0.0


@dataclass(frozen=True)
class PlacedModels:
    """A placement, and what becomes of requests on it.

    Attributes
    ----------
    replicas : of all models, by their first device.
    num_asked, num_good : requests of every model, and those of them within their objective; the others were refused or
        dropped.
    total_latency_s : of the good ones, added up.
    busy_s : time in which each device computes, by its number.
    span_s : from the start to the last arrival.
    """

    replicas: tuple[ModelOnDevices, ...]
    num_asked: tuple[int, ...]
    num_good: tuple[int, ...]
    total_latency_s: float
    busy_s: tuple[float, ...] = ()
    span_s: float = 0.0

    @property
    def load(self) -> tuple[float, ...]:
        """Share of the time up to the last arrival in which each device computes; above 1 if it needs longer."""
        return tuple(each / self.span_s if self.span_s > 0 else 0.0 for each in self.busy_s)

    @property
    def placement(self) -> Placement:
        """Which replicas are on which devices."""
        groups: dict[tuple[int, ...], list[Replica]] = {}
        for each in self.replicas:
            groups.setdefault(each.devices, []).append(each.replica)
        return Placement(tuple(Group(devices, tuple(there)) for devices, there in sorted(groups.items())))

    @property
    def mean_latency_s(self) -> float:
        """Mean latency of the good requests, in seconds; NaN if there are none."""
        num = sum(self.num_good)
        return self.total_latency_s / num if num else math.nan

    @property
    def slo_attainment(self) -> float:
        """Share of the requests within their objective; 1 if there are none."""
        return sum(self.num_good) / sum(self.num_asked) if sum(self.num_asked) else 1.0

    @property
    def num_devices(self) -> int:
        """Devices that have a model."""
        return len({device for each in self.replicas for device in each.devices})

    @property
    def rank(self) -> tuple[float, float]:
        """Key that sorts placements, the best first: more good requests, then a shorter mean latency."""
        return -self.slo_attainment, self.total_latency_s


class PlacementDecision(Protocol):
    """Which models are on which devices."""

    def serve(self, arrivals: Arrivals) -> PlacedModels:
        """Serve requests there, by simulation.

        Raises
        ------
        ServeError
            If no model is on any device.
        """
        ...

    def near(self, random: Random) -> PlacementDecision:
        """Draw a decision that differs in little; return this one if the drawn one cannot be."""
        ...


@dataclass(frozen=True)
class GroupPlacement:
    """Models split over groups of devices, which compute one request after the other, as AlpaServe serves them.

    Attributes
    ----------
    problem : that was decided about.
    layout : of the groups.
    """

    problem: PlacingProblem
    layout: Layout

    def serve(self, arrivals: Arrivals) -> PlacedModels:
        found = groups.simulate(self.problem.grouped, self.layout, arrivals)
        replicas = tuple(
            ModelOnDevices(each, group.devices)
            for group in self.problem.grouped.placement(self.layout).groups
            for each in group.replicas
        )
        if not replicas:
            raise ServeError("no model fits on any group of devices; use larger devices")
        total_s = found.mean_latency_s * len(arrivals.model)
        busy_s = tuple(
            float(found.busy_s[group, stage])
            for group in self.layout.by_size
            for stage in range(self.layout.shapes[group].pipeline_stages)
            for _ in range(self.layout.shapes[group].tensor_parallel)
        )
        asked, good = tuple(found.asked.tolist()), tuple(found.good.tolist())
        return PlacedModels(replicas, asked, good, total_s, busy_s, _span_s(arrivals))

    def near(self, random: Random) -> GroupPlacement:
        kind = random.random()
        if kind < _THINNED:
            return replace(self, layout=thinned(self.layout, random))
        change = reshaped if kind < _THINNED + _RESHAPED else exchanged
        return replace(self, layout=change(self.problem.grouped, self.layout, random))


@dataclass(frozen=True)
class TimeSharedPlacement:
    """Models on single devices, which compute a batch of each in turn, as Nexus serves them.

    Attributes
    ----------
    problem : that was decided about.
    devices : with their sessions, each of which is a model at a rate.
    """

    problem: PlacingProblem
    devices: tuple[PackedDevice, ...]

    def serve(self, arrivals: Arrivals) -> PlacedModels:
        names = [model.name for model in self.problem.models]
        times_s = {name: arrivals.arrival_s[arrivals.model == i] for i, name in enumerate(names)}
        busy_s = np.zeros(len(self.devices))
        outcome = sessions.simulate(self.devices, times_s, busy_s)
        plans = {each.name: each.forward.plans.get(ParallelConfig(1)) for each in self.problem.models}
        replicas = tuple(
            ModelOnDevices(Replica(session.name, plan=plans[session.name]), (number,), batch, device.duty_s)
            for number, device in enumerate(self.devices)
            for session, batch in zip(device.sessions, device.batches, strict=True)
        )
        good = tuple(outcome[name].num_good for name in names)
        total_s = sum(each.total_s for each in outcome.values())
        asked = tuple(outcome[name].num_asked for name in names)
        return PlacedModels(replicas, asked, good, total_s, tuple(busy_s.tolist()), _span_s(arrivals))

    def near(self, random: Random) -> TimeSharedPlacement:
        problem = self.problem
        return replace(
            self, devices=moved_sessions(self.devices, problem.num_devices, problem.device_bytes, random)
        )


@dataclass(frozen=True)
class PlacementPart:
    """Part of a placement: some models on some devices.

    Attributes
    ----------
    models : their numbers, in ascending order.
    first_device : the devices of the decision are counted from here.
    decision : about these models only.
    """

    models: tuple[int, ...]
    first_device: int
    decision: PlacementDecision


@dataclass(frozen=True)
class PartitionedPlacement:
    """Models that are served in different ways, each on devices of its own.

    Attributes
    ----------
    num_models : of all partitions.
    partitions : no model and no device is in two of them.
    """

    num_models: int
    partitions: tuple[PlacementPart, ...]

    def serve(self, arrivals: Arrivals) -> PlacedModels:
        replicas: list[ModelOnDevices] = []
        asked, good, total_s = [0] * self.num_models, [0] * self.num_models, 0.0
        busy_s = dict[int, float]()
        for partition in self.partitions:
            placed = partition.decision.serve(arrivals_for(arrivals, partition.models))
            replicas += [
                replace(each, devices=tuple(partition.first_device + device for device in each.devices))
                for each in placed.replicas
            ]
            for i, model in enumerate(partition.models):
                asked[model], good[model] = placed.num_asked[i], placed.num_good[i]
            total_s += placed.total_latency_s
            busy_s |= {partition.first_device + device: each for device, each in enumerate(placed.busy_s)}
        by_device = tuple(busy_s.get(device, 0.0) for device in range(max(busy_s, default=-1) + 1))
        return PlacedModels(tuple(replicas), tuple(asked), tuple(good), total_s, by_device, _span_s(arrivals))

    def near(self, random: Random) -> PartitionedPlacement:
        partitions = list(self.partitions)
        at = random.randrange(len(partitions))
        partitions[at] = replace(partitions[at], decision=partitions[at].decision.near(random))
        return replace(self, partitions=tuple(partitions))


def _span_s(arrivals: Arrivals) -> float:
    return float(arrivals.arrival_s.max(initial=0.0))


def arrivals_for(arrivals: Arrivals, models: Sequence[int]) -> Arrivals:
    """The requests for some of the models, which are counted anew from 0."""
    kept = np.isin(arrivals.model, models)
    return Arrivals(arrivals.arrival_s[kept], np.searchsorted(models, arrivals.model[kept]))

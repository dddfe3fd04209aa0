"""Policies of placement by name, each with what becomes of requests on what it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from trainyard.naming import Names
from trainyard.serve.errors import ServeError
from trainyard.serve.placing.problem import PlacingProblem
from trainyard.serve.policies.alpaserve import simulate as groups
from trainyard.serve.policies.alpaserve.enumeration import replication
from trainyard.serve.policies.alpaserve.local import mixed_search
from trainyard.serve.policies.alpaserve.problem import Arrivals, Layout
from trainyard.serve.policies.nexus import simulate as sessions
from trainyard.serve.policies.nexus.packing import PackedDevice, Session, pack

__all__ = [
    "PLACERS",
    "AlpaServe",
    "ModelOnDevices",
    "Nexus",
    "PlacedModels",
    "Placer",
    "Replicate",
    "parse_placers",
]

_STEPS = 20  # of the headroom that is tried


@dataclass(frozen=True)
class ModelOnDevices:
    """A model on a device, or split over several.

    Attributes
    ----------
    model : its name.
    devices : their numbers.
    pipeline_stages, tensor_parallel : how it is split over them.
    batch : most requests at once.
    cycle_s : time in which the device computes a batch of each of its models; 0 where it computes what comes first.
    """

    model: str
    devices: tuple[int, ...]
    pipeline_stages: int = 1
    tensor_parallel: int = 1
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
    mean_latency_s : of the good ones; 0 if there are none.
    """

    replicas: tuple[ModelOnDevices, ...]
    num_asked: tuple[int, ...]
    num_good: tuple[int, ...]
    mean_latency_s: float

    @property
    def goodput(self) -> float:
        """Share of the requests within their objective; 1 if there are none."""
        return sum(self.num_good) / sum(self.num_asked) if sum(self.num_asked) else 1.0

    @property
    def num_devices(self) -> int:
        """Devices that have a model."""
        return len({device for each in self.replicas for device in each.devices})


class Placer(Protocol):
    """Decides which models are on which devices."""

    def place(self, problem: PlacingProblem, arrivals: Arrivals) -> PlacedModels:
        """Decide by the requests of the problem, and serve others.

        Raises
        ------
        ServeError
            If models cannot be placed so; the message says why.
        """


@dataclass(frozen=True)
class Replicate:
    """Every model on single devices, as often as there is room: the baseline of AlpaServe (simple replication)."""

    def place(self, problem: PlacingProblem, arrivals: Arrivals) -> PlacedModels:
        return _on_groups(problem, replication(problem.grouped), arrivals)


@dataclass(frozen=True)
class AlpaServe:
    """Models split into pipelines on groups of devices, by simulation.

    Attributes
    ----------
    num_shapes, num_moves, seed : of the search.
    """

    num_shapes: int = 12
    num_moves: int = 2000
    seed: int = 0

    def place(self, problem: PlacingProblem, arrivals: Arrivals) -> PlacedModels:
        return _on_groups(
            problem, mixed_search(problem.grouped, self.num_shapes, self.num_moves, self.seed), arrivals
        )


@dataclass(frozen=True)
class Nexus:
    """Sessions packed on the fewest devices that serve their rates.

    Attributes
    ----------
    headroom : packed are so many times the rates, for bursts; less where there are too few devices.
    """

    headroom: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.headroom < float("inf"):
            raise ServeError(f"headroom is {self.headroom}; allowed is above 0")

    def place(self, problem: PlacingProblem, arrivals: Arrivals) -> PlacedModels:
        nodes = _packed(problem, self.headroom)
        names = [model.name for model in problem.models]
        times_s = {name: arrivals.arrival_s[arrivals.model == i] for i, name in enumerate(names)}
        outcome = sessions.simulate(nodes, times_s)
        replicas = tuple(
            ModelOnDevices(session.name, (device,), batch=batch, cycle_s=node.duty_s)
            for device, node in enumerate(nodes)
            for session, batch in zip(node.sessions, node.batches, strict=True)
        )
        good = tuple(outcome[name].num_good for name in names)
        total_s = sum(each.total_s for each in outcome.values())
        asked = tuple(outcome[name].num_asked for name in names)
        return PlacedModels(replicas, asked, good, total_s / max(sum(good), 1))


@dataclass(frozen=True)
class _Entry:
    name: str
    factory: Callable[..., Placer]


PLACERS = (_Entry("alpaserve", AlpaServe), _Entry("nexus", Nexus), _Entry("replicate", Replicate))
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


def _on_groups(problem: PlacingProblem, layout: Layout, arrivals: Arrivals) -> PlacedModels:
    """Serve requests on groups of devices."""
    found = groups.simulate(problem.grouped, layout, arrivals)
    replicas = tuple(
        ModelOnDevices(each.model, group.devices, each.pipeline_stages, each.tensor_parallel)
        for group in problem.grouped.placement(layout).groups
        for each in group.replicas
    )
    if not replicas:
        raise ServeError("no model fits on any group of devices; use larger devices")
    num_good = int(found.good.sum())
    mean_s = found.mean_latency_s * len(arrivals.model) / max(num_good, 1)
    return PlacedModels(replicas, tuple(found.asked.tolist()), tuple(found.good.tolist()), mean_s)


def _packed(problem: PlacingProblem, headroom: float) -> tuple[PackedDevice, ...]:
    """Devices for the largest multiple of the rates, up to the headroom, that there are enough for."""
    asked = [
        Session(each.name, each.forward.batching, each.objective_s, rate, each.forward.weight_bytes)
        for each, rate in zip(problem.models, problem.rates_per_s, strict=True)
    ]

    def nodes(factor: float) -> tuple[PackedDevice, ...]:
        scaled = tuple(replace(each, rate_per_s=factor * each.rate_per_s) for each in asked)
        return pack(scaled, problem.device_bytes)

    most = nodes(headroom)
    if len(most) <= problem.num_devices:
        return most
    factors = headroom * np.arange(1, _STEPS + 1) / _STEPS
    for factor in reversed(factors.tolist()):
        found = nodes(factor)
        if len(found) <= problem.num_devices:
            return found
    raise ServeError(
        f"{len(asked)} models need more than {problem.num_devices} devices even at {factors[0]:g} of their rates; give "
        "more devices or longer objectives"
    )

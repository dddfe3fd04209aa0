"""Input of AlpaServe: models with their profiles, devices, objectives, and the arrivals of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.job.plan import Plan
from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Group, Placement, Replica

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NEAR = 1e-9


class ParallelConfig(NamedTuple):
    """Split of each model of a group (the paper's parallel configuration).

    Attributes
    ----------
    pipeline_stages, tensor_parallel : as `Replica` has them.
    """

    pipeline_stages: int
    tensor_parallel: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of a group of this shape."""
        return self.pipeline_stages * self.tensor_parallel


@dataclass(frozen=True)
class ModelProfile:
    """A model, as measured.

    Attributes
    ----------
    name : of the model.
    weight_bytes : all its weights.
    stage_s : seconds of every pipeline stage, for every shape that was measured.
    objective_s : longest latency that its clients accept (SLO).
    stage_bytes : weights that one device of every stage has, by shape; equal parts where they are not given.
    plans : of level 1, by shape; none where only times are known.

    Raises
    ------
    ServeError
        If a number is out of range, or a shape has more or fewer times than stages.
    """

    name: str
    weight_bytes: float
    stage_s: Mapping[ParallelConfig, tuple[float, ...]]
    objective_s: float
    stage_bytes: Mapping[ParallelConfig, tuple[float, ...]] = field(default_factory=dict)
    plans: Mapping[ParallelConfig, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weight_bytes < 0 or not self.objective_s > 0:
            raise ServeError(
                f"model {self.name!r}: weight_bytes is {self.weight_bytes}, objective_s {self.objective_s}; "
                "allowed are 0 bytes or more and an objective above 0 s"
            )
        for shape, times in self.stage_s.items():
            if len(times) != shape.pipeline_stages or min(times) <= 0:
                raise ServeError(
                    f"model {self.name!r}, {shape}: stages of {times} s; "
                    f"allowed are {shape.pipeline_stages} times above 0 s"
                )

    def device_bytes(self, shape: ParallelConfig) -> tuple[float, ...]:
        """Weights that one device of each stage has of it, on a group of this shape."""
        equal = (self.weight_bytes / shape.num_devices,) * shape.pipeline_stages
        return self.stage_bytes.get(shape, equal)


@dataclass(frozen=True)
class Arrivals:
    """Requests of all models, merged by time.

    Attributes
    ----------
    arrival_s : in ascending order, shape ``(requests,)``.
    model : number of the model that each asks for, shape ``(requests,)``.

    Raises
    ------
    ServeError
        If the times do not ascend, or the lengths differ.
    """

    arrival_s: Floats
    model: Ints

    def __post_init__(self) -> None:
        if self.arrival_s.shape != self.model.shape or (np.diff(self.arrival_s) < 0).any():
            raise ServeError(
                f"arrivals of shape {self.arrival_s.shape} with models of shape {self.model.shape}: "
                "give one model for each, and sort both by time"
            )


class Layout(NamedTuple):
    """A placement while it is searched for: by numbers of models, before devices have numbers.

    Attributes
    ----------
    shapes : of every group.
    models : of every group, in ascending order.
    """

    shapes: tuple[ParallelConfig, ...]
    models: tuple[tuple[int, ...], ...]

    @property
    def num_replicas(self) -> int:
        """Replicas of all models."""
        return sum(map(len, self.models))

    @property
    def by_size(self) -> tuple[int, ...]:
        """Numbers of the groups in the order of their devices: the largest have the first ones."""
        return tuple(sorted(range(len(self.shapes)), key=lambda g: (-self.shapes[g].num_devices, g)))

    def ordered(self) -> Layout:
        """Return the layout with groups sorted by their models, so that equal layouts are found again."""
        pairs = sorted(zip(self.models, self.shapes, strict=True))
        return Layout(tuple(shape for _, shape in pairs), tuple(models for models, _ in pairs))


@dataclass(frozen=True)
class PlacementProblem:
    """Models, devices and requests for which a placement is sought.

    Attributes
    ----------
    models : profiles.
    num_devices : all alike.
    device_bytes : memory for weights, of each.
    arrivals : that the placement is decided by.
    overhead_s : what the way to a group and back adds to every request.

    Raises
    ------
    ServeError
        If there is no model or device, two models have one name, or a request asks for a model that is not there.
    """

    models: tuple[ModelProfile, ...]
    num_devices: int
    device_bytes: float
    arrivals: Arrivals
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if not names or len(set(names)) < len(names) or self.num_devices < 1:
            raise ServeError(
                f"models {names} on {self.num_devices} devices: allowed are one or more of each, with different names"
            )
        asked = self.arrivals.model
        if len(asked) and not 0 <= asked.min() <= asked.max() < len(names):
            raise ServeError(
                f"arrivals ask for models {asked.min()} to {asked.max()}; there are {len(names)}"
            )

    @cached_property
    def shapes(self) -> tuple[ParallelConfig, ...]:
        """Shapes that were measured for a model or more, and that the devices suffice for."""
        measured = {ParallelConfig(*shape) for model in self.models for shape in model.stage_s}
        return tuple(sorted(shape for shape in measured if shape.num_devices <= self.num_devices))

    @cached_property
    def stage_table(self) -> Floats:
        """Seconds of every stage, shape ``(shapes, models, stages)``; 0 where there is none."""
        most = max((shape.pipeline_stages for shape in self.shapes), default=1)
        table = np.zeros((len(self.shapes), len(self.models), most))
        for i, shape in enumerate(self.shapes):
            for m, model in enumerate(self.models):
                times = model.stage_s.get(shape, ())
                table[i, m, : len(times)] = times
        return table

    @cached_property
    def objective_s(self) -> Floats:
        """Objective of each model, in seconds."""
        return np.array([model.objective_s for model in self.models])

    def fits(self, shape: ParallelConfig, models: tuple[int, ...]) -> bool:
        """Whether a group of this shape was measured for all these models and has the memory for them."""
        if any(shape not in self.models[m].stage_s for m in models):
            return False
        held = (self.models[m].device_bytes(shape) for m in models)
        return max(map(sum, zip(*held, strict=True)), default=0.0) <= self.device_bytes * (1 + _NEAR)

    def placement(self, layout: Layout) -> Placement:
        """A layout on devices: the largest groups have the first ones, so that they lie side by side.

        Raises
        ------
        ServeError
            If a group has no memory for its models.
        """
        groups, first = [], 0
        for g in layout.by_size:
            shape, models = layout.shapes[g], layout.models[g]
            if not self.fits(shape, models):
                raise ServeError(
                    f"{shape} of devices of {self.device_bytes:.6g} bytes for weights has no room for models "
                    f"{', '.join(self.models[m].name for m in models)}, or they were not measured on it; take a model "
                    "away or use a larger group"
                )
            replicas = tuple(
                Replica(self.models[m].name, *shape, self.models[m].plans.get(shape)) for m in models
            )
            groups.append(Group(tuple(range(first, first + shape.num_devices)), replicas))
            first += shape.num_devices
        return Placement(tuple(groups))

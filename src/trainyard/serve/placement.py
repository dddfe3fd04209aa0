"""A placement: which models are on which devices, and how each is split over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.job.plan import Plan
from trainyard.serve.errors import ServeError

__all__ = ["Group", "Placement", "Replica"]


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on a group, and how it is split over the devices of the group.

    Attributes
    ----------
    model : its name.
    pipeline_stages : parts in sequence, each on its own devices.
    tensor_parallel : devices that compute each stage together.
    plan : which layers each stage has, and how its weights lie on its devices; None where only times are known.

    Raises
    ------
    ServeError
        If a number is below 1, or the plan is for another number of devices.
    """

    model: str
    pipeline_stages: int = 1
    tensor_parallel: int = 1
    plan: Plan | None = field(default=None, repr=False, hash=False)

    def __post_init__(self) -> None:
        for name in ("pipeline_stages", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise ServeError(
                    f"replica of {self.model!r}: {name} is {getattr(self, name)}; allowed is 1 or more"
                )

        if self.plan is not None and self.plan.num_ranks != self.num_devices:
            raise ServeError(
                f"replica of {self.model!r}: its plan is for {self.plan.num_ranks} devices; allowed is "
                f"pipeline_stages x tensor_parallel, {self.num_devices}"
            )

    @property
    def num_devices(self) -> int:
        """How many devices it is split over."""
        return self.pipeline_stages * self.tensor_parallel

    def __str__(self) -> str:
        split = [
            f"{number} {word}"
            for number, word in ((self.pipeline_stages, "stages"), (self.tensor_parallel, "shards"))
            if number > 1
        ]
        return f"{self.model} ({' x '.join(split)})" if split else self.model


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that serve the same models together.

    Attributes
    ----------
    devices : their numbers.
    replicas : the models on them; each is split over all of them.

    Raises
    ------
    ServeError
        If there is no device, a device or a model is named twice, or a model is split over more or fewer devices.
    """

    devices: tuple[int, ...]
    replicas: tuple[Replica, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices or min(self.devices) < 0:
            raise ServeError(
                f"group of devices {self.devices}: allowed is one device or more, numbered from 0"
            )
        for what, given in (("device", self.devices), ("model", self.models)):
            twice = _first_twice(given)
            if twice is not None:
                raise ServeError(
                    f"group of devices {self.devices}: {what} {twice!r} is there twice; name it once"
                )
        for replica in self.replicas:
            if replica.num_devices != len(self.devices):
                raise ServeError(
                    f"group of devices {self.devices}: {replica.model!r} is split over {replica.num_devices} devices; "
                    f"pipeline_stages x tensor_parallel must be {len(self.devices)}"
                )

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models on it."""
        return tuple(replica.model for replica in self.replicas)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.devices))
        return f"devices {numbers}: {', '.join(map(str, self.replicas)) or 'no model'}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which models are on which devices; printed, a line for each group.

    Attributes
    ----------
    groups : none has a device of another one.

    Raises
    ------
    ServeError
        If two groups have a device in common.
    """

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        twice = _first_twice([device for group in self.groups for device in group.devices])
        if twice is not None:
            raise ServeError(f"placement: device {twice} is in two groups; a device may be in one group only")

    @property
    def num_replicas(self) -> int:
        """Replicas of all models."""
        return sum(len(group.replicas) for group in self.groups)

    def groups_of(self, model: str) -> tuple[int, ...]:
        """Numbers of the groups that have a model."""
        return tuple(i for i, group in enumerate(self.groups) if model in group.models)

    def __str__(self) -> str:
        return "\n".join(map(str, self.groups))


def _first_twice(items: Sequence[object]) -> object | None:
    seen: set[object] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None

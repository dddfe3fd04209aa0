"""Jobs that are level-1 trainings: what to train, and how fast that is expected to be on how many devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.hardware.cluster import Cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.plan import Plan
from trainyard.job.planning import simulate
from trainyard.job.run.config import ModelSource
from trainyard.job.task import Setting, Task, apply
from trainyard.zoo import build


@dataclass(frozen=True)
class Training:
    """A training of a model of the zoo. Its batch is the same however many devices it has, and so is its loss curve.

    Attributes
    ----------
    model : name in the zoo.
    rows : of the batch of one step.
    steps : of the whole training.
    strategies : how it is spread over its devices, as ``parse_strategies`` reads them.
    learning_rate, seed : of the training.
    checkpoint_every : steps between checkpoints: what a job that is stopped may lose.
    """

    model: str
    rows: int
    steps: int
    strategies: str = "data_parallel"
    learning_rate: float = 1e-3
    seed: int = 0
    checkpoint_every: int = 5

    @property
    def source(self) -> ModelSource:
        """Builds the model, in whatever process that is needed."""
        return partial(build, self.model, self.rows)

    def plan(self, cluster: Cluster) -> Plan:
        """How it runs on all devices of a cluster.

        Raises
        ------
        PlanError
            If its strategies have no plan there.
        """
        return apply(parse_strategies(self.strategies), Setting(Task(self.source()), cluster))

    def sizes(self, most: int) -> tuple[int, ...]:
        """Numbers of devices over which the batch divides."""
        return tuple(n for n in range(1, most + 1) if self.rows % n == 0)


@dataclass(frozen=True)
class Predicted:
    """Steps per second by number of devices, as level 1 predicts them."""

    steps_per_s: Mapping[int, float]

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return grant.share * self.steps_per_s.get(spot.num_devices, 0.0)


def predicted(training: Training, clusters: Mapping[int, Cluster]) -> Predicted:
    """The profile that other schedulers make their users measure: simulated, on each of these numbers of devices."""
    found = {}
    for count, cluster in clusters.items():
        if training.rows % count == 0:
            simulation = simulate(training.plan(cluster), training.source(), cluster)
            found[count] = 1.0 / simulation.step_s
    return Predicted(found)


def training_job(
    name: str, arrival_s: float, num_devices: int, training: Training, profile: Predicted, **rest: object
) -> Job:
    """A job whose work is the steps of a training.

    Raises
    ------
    FleetError
        If the batch does not divide over the devices.
    """
    if training.rows % num_devices:
        raise FleetError(
            f"job {name!r}: a batch of {training.rows} rows does not divide over {num_devices} devices; ask for one of "
            f"{', '.join(map(str, training.sizes(training.rows)))}"
        )
    return Job(
        name,
        arrival_s,
        num_devices,
        float(training.steps),
        profile,
        model=training.model,
        batch_size=training.rows,
        **rest,  # type: ignore[arg-type]
    )

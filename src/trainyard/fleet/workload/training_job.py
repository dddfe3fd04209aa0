"""Jobs that are trainings: as fast as level 1 predicts them, or as they were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.goodput import Report
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Rate, Spot, spot_of
from trainyard.fleet.workload.level1 import ask
from trainyard.fleet.workload.measured_report import updated_report
from trainyard.fleet.workload.training import Training
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class Predicted(Adaptive):
    """The profile that other schedulers make their users measure: the speed of a training, as level 1 predicts it.

    Attributes
    ----------
    training : what runs.
    steps_per_s : by number of devices, where that is known better than by prediction.
    core_part : of the time of a core of its own that each process takes, where devices are places for processes; 1 where
        level 1 predicts devices as they are.
    """

    training: Training
    steps_per_s: Mapping[int, float] = field(default_factory=dict, compare=False)
    core_part: float = 1.0

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        """Return a rate that stays the same, while the job learns how long its steps take."""
        known = report if isinstance(report, Report) else None
        rate = self.work_per_s(spot, grant)
        learnt = updated_report(self.training.rows, known, spot, grant.share / rate) if rate > 0 else known
        return Rate(rate, float(self.training.steps), learnt)

    @property
    def skew(self) -> float:
        """See `Job.skew`."""
        found: float = ask("skew", self.training.model)
        return found

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """Steps in a second; 0 on devices over which the batch does not divide, or for which there is no plan.

        Raises
        ------
        FleetError
            If the type of the devices is none that level 1 knows.
        """
        if self.steps_per_s:
            return grant.share * self.steps_per_s.get(spot.num_devices, 0.0)
        if self.training.rows % spot.num_devices:
            return 0.0
        shape = spot.device_type, spot.per_node, self.core_part < 1.0
        steps_per_s: float = ask("steps_per_s", self.training.as_fast, *shape)
        return grant.share * self.core_part * steps_per_s


def training_job(
    name: str,
    arrival_s: float,
    num_devices: int,
    training: Training,
    profile: Predicted | None = None,
    **rest: Any,
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
            f"{training.sizes_text}"
        )
    return Job(
        name,
        arrival_s,
        num_devices,
        float(training.steps),
        profile or Predicted(training),
        model=training.model,
        batch_size=training.rows,
        **rest,
    )


def training_of(job: Job) -> Training:
    """Return the training that a job runs.

    Raises
    ------
    FleetError
        If the job runs a command, or nothing that is known.
    """
    if not isinstance(job.profile, Predicted):
        raise FleetError(
            f"job {job.name!r} is no training of level 1, with model, batch_size and steps, and only these are "
            "measured; leave --measure out"
        )
    return job.profile.training


def on_places(job: Job, core_part: float) -> Job:
    """A job as fast as it is where each process of a training takes a part of a core of its own; 1 changes nothing."""
    if core_part == 1.0 or not isinstance(job.profile, Predicted):
        return job
    return replace(job, profile=replace(job.profile, core_part=core_part))


def kinds_of(jobs: Iterable[Job]) -> list[Job]:
    """Return one job of each kind: trainings that are equally fast and ask for as many devices are one kind."""
    kinds = {
        (job.profile.training.as_fast, job.num_devices): job
        for job in jobs
        if isinstance(job.profile, Predicted)
    }
    return list(kinds.values())


def predict_speeds(job: Job, cluster: Cluster) -> None:
    """Predict the speed of a job on its devices, of every type that it may have: the answers are kept."""
    for kind, device_type in enumerate(cluster.device_types):
        if device_type in (job.device_types or cluster.device_types):
            spot = spot_of(device_type, cluster.compact(job.num_devices, kind))
            job.profile.work_per_s(spot, Grant(tuple(range(job.num_devices))))

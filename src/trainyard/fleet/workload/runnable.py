"""Trainings and commands that jobs run. Jobs of traces have neither, and can only be simulated."""

from __future__ import annotations

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted

Runnable = Training | Command
"""A training of level 1, or a command."""


def runnable_of(job: Job) -> Runnable:
    """Return the training or the command that a job runs.

    Raises
    ------
    FleetError
        If it is a job of a trace, of which only the length is known.
    """
    if job.command is not None:
        return job.command
    if isinstance(job.profile, Predicted):
        return job.profile.training
    raise FleetError(
        f"job {job.name!r} has a length and nothing to run, so it can only be simulated; to run it, give it a model, a "
        "batch_size and steps instead, or a command beside it"
    )

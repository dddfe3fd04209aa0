"""The protocol of backends: they start and stop jobs on devices, and report their progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Job


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """Limits of a job.

    Attributes
    ----------
    heartbeat_s : seconds without a heartbeat after which a process counts as stopped, or its host as lost.
    stall_s : seconds without a further step after which a process that lives counts as stuck; the first step may take
        half an hour in any case.
    max_checkpoint_bytes : that its checkpoints may take on the disk together.
    max_rank_bytes : of memory that each of its processes may take.
    """

    heartbeat_s: float = 60.0
    stall_s: float = 1800.0
    max_checkpoint_bytes: float = math.inf
    max_rank_bytes: float = math.inf

    def __post_init__(self) -> None:
        for limit in fields(JobLimits):
            if not getattr(self, limit.name) > 0.0:
                raise FleetError(f"{limit.name} is more than 0, got {getattr(self, limit.name)}")


USUAL_LIMITS = JobLimits()
"""Default limits."""


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Options of a backend for all of its jobs.

    Attributes
    ----------
    patience_s : that a job has to end its step and to write its checkpoint when it is to leave; after that it is killed.
        Where the backend sees that it works, it has as many CPU seconds for each of its threads.
    shares : whether jobs may have a device together. All jobs of a backend are started in the same way, as a share
        changes while its job runs, and what a cluster manager gave to a job does not.
    limits : limits of each job.
    """

    patience_s: float = 120.0
    shares: bool = False
    limits: JobLimits = USUAL_LIMITS


USUAL_OPTIONS = BackendOptions()
"""Default options."""


@dataclass(frozen=True)
class Progress:
    """Progress of a job.

    Attributes
    ----------
    steps : steps done, as far as that is known; None for a command that reports none.
    ended : whether it has done all of its work, and that is saved.
    failure : why it stopped before, in one sentence; None if it did not.
    killed : whether that was done to it from outside.
    repeats : whether it would happen again however often the job is started.
    lacks : whether what all jobs need was not there, such as space on the disk.
    step_s : what a step takes on the devices that it has; None where that is not known yet.
    losses : steps done and mean loss at the end of every epoch, as far as that is known.
    """

    steps: int | None
    ended: bool = False
    failure: str | None = None
    killed: bool = False
    repeats: bool = False
    lacks: bool = False
    step_s: float | None = None
    losses: tuple[tuple[float, float], ...] = ()


class Backend(Protocol):
    """Runs trainings; see `trainyard.fleet.run.directory_backend` for what backends share."""

    @property
    def core_part(self) -> float:
        """Share of a core's time that a process takes where devices are places for processes; else 1."""
        ...

    @property
    def limits(self) -> JobLimits:
        """Limits of each job."""
        ...

    def start(self, job: Job, grant: Grant) -> None:
        """Start a job on devices, or continue it from its newest checkpoint.

        Raises
        ------
        FleetError
            If the job is no training, or it runs already.
        """
        ...

    def adopt(self, job: Job, grant: Grant) -> bool:
        """Take over a job that a backend before this one started; False if it does not run any more, or is to leave."""
        ...

    def away(self) -> frozenset[int]:
        """Nodes of the cluster that cannot be used now, as far as that is known."""
        ...

    def leave(self, name: str, is_lost: bool = False) -> None:
        """Have a job leave its devices, without waiting for it; its checkpoints stay.

        Parameters
        ----------
        is_lost : nodes of it may not answer any more.
        """
        ...

    def has_left(self, name: str) -> bool:
        """Whether nothing is left of a job that was to leave, or nothing that could still do work.

        Asked again and again, it sees to it: who does not leave in time is killed.
        """
        ...

    def held(self, name: str) -> frozenset[int] | None:
        """The devices on which a job was started last; None where that is not known."""
        ...

    def progress(self, name: str) -> Progress:
        """Return the progress of a job that was started or adopted; it may have been stopped since."""
        ...

    def close(self) -> None:
        """Stop everything."""
        ...

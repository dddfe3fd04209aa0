"""What a policy may know of a job: what every cluster knows of it, and beside that what the policy declares to need."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Job, JobRequest, Profile


def require(need: str, needs: frozenset[str]) -> None:
    """Refuse what a policy did not declare.

    Raises
    ------
    FleetError
        If the need is not among those declared.
    """
    if need not in needs:
        declared = ", ".join(map(repr, sorted(needs))) or "nothing"
        raise FleetError(
            f"a policy that asks for {need!r} must declare it in `needs`; this one has {declared}"
        )


class KnownJob(JobRequest):
    """A job as it was submitted, for a policy to look at: what every cluster knows of it, and what the policy declared.

    How much ``work`` it is needs "length", its ``profile`` needs "speed", its ``deadline_s`` needs "deadline",
    its ``limit_s`` needs "limit".
    """

    __slots__ = ("_job", "_needs")
    _job: Job
    _needs: frozenset[str]

    def __init__(self, job: Job, needs: frozenset[str]) -> None:
        # Nothing is copied: every decision of a simulation makes as many of these as there are jobs.
        object.__setattr__(self, "_job", job)
        object.__setattr__(self, "_needs", needs)

    @property
    def work(self) -> float:
        require("length", self._needs)
        return self._job.work

    @property
    def profile(self) -> Profile:
        require("speed", self._needs)
        return self._job.profile

    @property
    def deadline_s(self) -> float | None:
        require("deadline", self._needs)
        return self._job.deadline_s

    @property
    def limit_s(self) -> float | None:
        require("limit", self._needs)
        return self._job.limit_s

    @property
    def skew(self) -> float | None:
        """See `Job.skew`."""
        return self._job.skew


for _field in fields(JobRequest):
    setattr(KnownJob, _field.name, property(attrgetter(f"_job.{_field.name}")))

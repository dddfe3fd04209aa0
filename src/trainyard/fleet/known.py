"""What a policy may know of a job: what every cluster knows of it, and beside that what the policy declares to need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

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


NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "work": "length",
        "profile": "speed",
        "deadline_s": "deadline",
        "limit_s": "limit",
        "priority": "priority",
        "yields": "priority",
        "guaranteed": "guaranteed",
        "weight": "weight",
        "qos": "qos",
    }
)
"""The need that a policy has to declare for each attribute that `Job` adds to `JobRequest`."""


_OPEN = tuple(field.name for field in fields(JobRequest))


class KnownJob(JobRequest):
    """A job as a policy sees it: all of `JobRequest`, and of `Job` what the policy declared.

    What an attribute needs is in `NEEDS`.
    """

    __slots__ = ("_job", "_needs", *_OPEN)
    _job: Job
    _needs: frozenset[str]
    work: float
    profile: Profile
    deadline_s: float | None
    limit_s: float | None
    priority: int
    yields: bool
    guaranteed: bool
    weight: float
    qos: str

    def __init__(self, job: Job, needs: frozenset[str]) -> None:
        # What everybody knows is copied, as policies look at all jobs at every decision.
        object.__setattr__(self, "_job", job)
        object.__setattr__(self, "_needs", needs)
        for name in _OPEN:
            object.__setattr__(self, name, getattr(job, name))

    @property
    def skew(self) -> float | None:
        """See `Job.skew`."""
        return self._job.skew


def _declared(name: str) -> property:
    """An attribute of a job that a policy is told if it declared to need it."""

    def get(known: KnownJob) -> Any:
        require(NEEDS[name], known._needs)
        return getattr(known._job, name)

    return property(get)


for _name in NEEDS:
    setattr(KnownJob, _name, _declared(_name))


def ignored(jobs: Sequence[Job], needs: frozenset[str]) -> tuple[str, ...]:
    """Attributes that some job has and a policy with these needs ignores, in the order of `NEEDS`."""
    defaults = {field.name: field.default for field in fields(Job)}
    said = [name for name, need in NEEDS.items() if need not in needs and defaults[name] is not MISSING]
    return tuple(name for name in said if any(getattr(job, name) != defaults[name] for job in jobs))

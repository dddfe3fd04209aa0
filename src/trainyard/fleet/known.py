"""What a policy may know of a job: what every cluster knows of it, and beside that what the policy declares to need."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Job, Profile


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


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job as it was submitted, for a policy to look at; properties are those of `Job`.

    How much ``work`` it is needs "length", its ``profile`` needs "speed", its ``deadline_s`` needs "deadline",
    its ``limit_s`` needs "limit".
    """

    _job: Job
    _needs: frozenset[str]

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
    def name(self) -> str:
        return self._job.name

    @property
    def arrival_s(self) -> float:
        return self._job.arrival_s

    @property
    def num_devices(self) -> int:
        return self._job.num_devices

    @property
    def least_devices(self) -> int:
        return self._job.least_devices

    @property
    def most_devices(self) -> int:
        return self._job.most_devices

    @property
    def device_types(self) -> tuple[str, ...]:
        return self._job.device_types

    @property
    def user(self) -> str:
        return self._job.user

    @property
    def account(self) -> str:
        return self._job.account

    @property
    def virtual_cluster(self) -> str:
        return self._job.virtual_cluster

    @property
    def weight(self) -> float:
        return self._job.weight

    @property
    def guaranteed(self) -> bool:
        return self._job.guaranteed

    @property
    def cpus(self) -> float:
        return self._job.cpus

    @property
    def memory_bytes(self) -> float:
        return self._job.memory_bytes

    @property
    def model(self) -> str:
        return self._job.model

    @property
    def batch_size(self) -> int:
        return self._job.batch_size

    @property
    def busy(self) -> float:
        return self._job.busy

    @property
    def skew(self) -> float | None:
        return self._job.skew

    @property
    def priority(self) -> int:
        return self._job.priority

    @property
    def gang(self) -> tuple[int, ...]:
        return self._job.gang

    @property
    def pinned_cell(self) -> str:
        return self._job.pinned_cell

    @property
    def yields(self) -> bool:
        return self._job.yields

    def share_beside(self, other: KnownJob) -> float:
        """Share of its devices that it has when another job has them, too."""
        return self._job.share_beside(other._job)

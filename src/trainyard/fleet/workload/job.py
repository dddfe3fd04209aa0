"""Jobs: what is submitted, when, and what is known of how fast it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Grant:
    """What a running job has.

    Attributes
    ----------
    devices : numbers of the devices, ascending.
    share : of each device, in (0, 1]; the rest is other jobs'.
    batch_size : samples of a step on all devices together; 0 is the job's own.
    cpus, memory_bytes : of the nodes, in all; 0 is a proportional share.
    partners : names of the jobs that share the devices.
    """

    devices: tuple[int, ...]
    share: float = 1.0
    batch_size: int = 0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    partners: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        return len(self.devices)


@dataclass(frozen=True)
class Spot:
    """Where a grant lies, as far as speed depends on it.

    Attributes
    ----------
    device_type : of its devices; of those on its last node where they differ.
    num_devices, num_nodes : how many, and over how many nodes.
    """

    device_type: str
    num_devices: int
    num_nodes: int


class Profile(Protocol):
    """How fast a job runs: the truth, which the simulator asks, and policies as far as they are entitled to."""

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """Work done in a second, in the unit of ``Job.work``; 0 if it cannot run there."""
        ...


@dataclass(frozen=True)
class Declared:
    """A job of which only the length is known: on its gang it does a second's work in a second.

    Attributes
    ----------
    num_devices : of the gang; on others it runs proportionally.
    """

    num_devices: int

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return grant.share * spot.num_devices / self.num_devices


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes
    ----------
    name : unique in its workload.
    arrival_s : when it is submitted.
    num_devices : that it asks for, as a gang.
    work : to be done, in the unit of its profile: seconds on its gang, steps, or samples.
    profile : how fast it runs.
    min_devices, max_devices : between which it may be resized; by default it may not.
    device_types : that it can run on; all if empty.
    user, virtual_cluster : whose it is.
    weight : of its share in weighted fairness.
    deadline_s : time by which it should end, counted as ``arrival_s``.
    guaranteed : False for an opportunistic job, which runs on what the others leave.
    cpus, memory_bytes : that it asks for, in all.
    model, batch_size : what it trains; samples of one step.
    """

    name: str
    arrival_s: float
    num_devices: int
    work: float
    profile: Profile
    min_devices: int = 0
    max_devices: int = 0
    device_types: tuple[str, ...] = ()
    user: str = ""
    virtual_cluster: str = ""
    weight: float = 1.0
    deadline_s: float | None = None
    guaranteed: bool = True
    cpus: float = 0.0
    memory_bytes: float = 0.0
    model: str = ""
    batch_size: int = 0

    @property
    def least_devices(self) -> int:
        return self.min_devices or self.num_devices

    @property
    def most_devices(self) -> int:
        return self.max_devices or self.num_devices


def declared_job(name: str, arrival_s: float, num_devices: int, length_s: float, **rest: object) -> Job:
    """A job of a given length on its gang."""
    return Job(name, arrival_s, num_devices, length_s, Declared(num_devices), **rest)  # type: ignore[arg-type]


def by_arrival(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Jobs in the order of their arrival; those of one moment in the order given."""
    return tuple(sorted(jobs, key=lambda job: job.arrival_s))

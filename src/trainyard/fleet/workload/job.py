"""Jobs: what is submitted, when, and what is known of how fast it runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.command import Command


class Grant(NamedTuple):
    """Devices of a running job.

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
        """Number of devices."""
        return len(self.devices)


@dataclass(frozen=True)
class Spot:
    """Locality of a grant, as far as speed depends on it.

    Attributes
    ----------
    device_type : of its devices; of those on its last node where they differ.
    num_devices, num_nodes : how many, and over how many nodes.
    per_node : devices on each of its nodes, in the order of the nodes.
    """

    device_type: str
    num_devices: int
    num_nodes: int
    per_node: tuple[int, ...] = ()


@cache
def spot_of(device_type: str, per_node: tuple[int, ...]) -> Spot:
    """Devices of one type, so many on each of some nodes."""
    return Spot(device_type, sum(per_node), len(per_node), per_node)


class Profile(Protocol):
    """True speed of a job, which the simulator reads, and policies as far as they declare the need."""

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """Work done in a second, in the unit of ``Job.work``; 0 if it cannot run there."""
        ...


@dataclass(frozen=True)
class Rate:
    """Rate of a job until it changes that by itself.

    Attributes
    ----------
    work_per_s : work done in a second, in the unit of ``Job.work``.
    until : work, counted from the start of the job, at which it changes its rate.
    report : what it knows of itself after it has run so; it is shown to policies that need "reports".
    batch_size : samples of a step.
    """

    work_per_s: float
    until: float
    report: Any
    batch_size: int = 0


class Adaptive:
    """A profile of a job that changes its rate by itself: its batch size with what it measures, or its work with time.

    Not an abstract base class: every event asks whether a job is of this kind, and for those that takes Python five times
    as long.
    """

    @abstractmethod
    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        """Return the rate from now on.

        Parameters
        ----------
        done : work done so far.
        report : its last one; None before the first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say at which rate it runs")

    @property
    def known(self) -> Any:
        """Report of the job before it first runs, from short trials; None without one."""
        return None

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return self.rate(spot, grant, 0.0, None).work_per_s

    def stints(self, spot: Spot, grant: Grant, done: float, work: float) -> Iterator[tuple[float, float]]:
        """Yield the rest of the work in stints of one rate: the work done at the end of each, and its time."""
        report = None
        while done < work:
            rate = self.rate(spot, grant, done, report)
            if rate.work_per_s <= 0:
                yield work, float("inf")
                return
            until, report = min(rate.until, work), rate.report
            yield until, (until - done) / rate.work_per_s
            done = until

    def rest_s(self, spot: Spot, grant: Grant, done: float, work: float) -> float:
        """Time in which it would do the rest of its work."""
        total_s = 0.0
        for _, stint_s in self.stints(spot, grant, done, work):
            total_s += stint_s
        return total_s


class Placeless:
    """A profile of a job that runs as fast wherever its gang lies, on devices of whatever type, that it has for itself.

    Not an abstract base class, for the same reason as `Adaptive`.
    """

    @abstractmethod
    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """See `Profile`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how fast it runs")


@dataclass(frozen=True)
class Declared(Placeless):
    """A job of which only the length is known: on its gang it does a second's work in a second.

    Attributes
    ----------
    num_devices : of the gang; on others it runs proportionally.
    busy : share of a device that it keeps busy when it is alone, in (0, 1]. With less than that it is slower.
    """

    num_devices: int
    busy: float = 1.0

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return min(1.0, grant.share / self.busy) * spot.num_devices / self.num_devices


@dataclass(frozen=True)
class JobRequest:
    """Attributes of a job that every policy knows.

    Attributes
    ----------
    name : unique in its workload.
    arrival_s : when it is submitted, and could start.
    num_devices : that it asks for, as a gang.
    min_devices, max_devices : between which it may be resized; by default it may not.
    device_types : that it can run on; all if empty.
    user, account, virtual_cluster : whose it is; the virtual cluster of a Slurm job is its partition.
    cpus, memory_bytes : that it asks for, in all; 0 is a proportional share of its nodes.
    model, batch_size : what it trains; samples of one step.
    busy : share of a device that it keeps busy when it is alone, in (0, 1].
    gang : devices of each of its workers, each of which lies on one node; by default as the placement has it. A policy
        that does not support this, or ``pinned_cell``, does not take the job.
    pinned_cell : name of the reserved part of the cluster that it must run in; anywhere if empty.
    """

    __slots__ = ()  # what a policy sees of a job refers to these, and has no room for its own
    name: str
    arrival_s: float
    num_devices: int
    _: KW_ONLY
    min_devices: int = 0
    max_devices: int = 0
    device_types: tuple[str, ...] = ()
    user: str = ""
    account: str = ""
    virtual_cluster: str = ""
    cpus: float = 0.0
    memory_bytes: float = 0.0
    model: str = ""
    batch_size: int = 0
    busy: float = 1.0
    gang: tuple[int, ...] = ()
    pinned_cell: str = ""

    @property
    def least_devices(self) -> int:
        """The fewest devices that it can run on."""
        return self.min_devices or self.num_devices

    @property
    def most_devices(self) -> int:
        """The most devices that it can use."""
        return self.max_devices or self.num_devices

    def share_beside(self, other: JobRequest) -> float:
        """Share of its devices that it has when another job has them, too: they run the kernels of both as they come."""
        return self.busy / max(1.0, self.busy + other.busy)


@dataclass(frozen=True)
class Job(JobRequest):
    """One training job: what is asked for, and what a policy is told only as far as it declares to need it.

    Attributes
    ----------
    work : to be done, in the unit of its profile: seconds on its gang, steps, or samples.
    profile : how fast it runs.
    deadline_s : time by which it should end, counted as ``arrival_s``.
    limit_s : time on its devices after which it would be stopped, as its user set it; None where there is no such limit.
    weight : of its share in weighted fairness, above 0.
    guaranteed : False for an opportunistic job, which runs on what the others leave.
    priority : among the jobs of its virtual cluster; the larger, the more urgent.
    yields : whether it goes on as an opportunistic job, if it can, when one of higher priority takes its guarantee.
    qos : its quality of service, by a name of its cluster.
    killed_after_s : time with devices after which it is ended, whatever it has done; None if it may take its time.
    ran_s : seconds for which it ran before it arrived; it gets devices at once. ``work`` and ``limit_s`` are what is
        left. 0 for other jobs.
    attempts : when it had devices where it was recorded, one after the other; empty where that is not known.
    command : that it runs, as fast as its profile declares; None for other jobs.
    """

    work: float
    profile: Profile
    _: KW_ONLY
    deadline_s: float | None = None
    limit_s: float | None = None
    weight: float = 1.0
    guaranteed: bool = True
    priority: int = 0
    yields: bool = False
    qos: str = ""
    killed_after_s: float | None = None
    ran_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    command: Command | None = None

    def __post_init__(self) -> None:
        # What is compiled for numbers would be compiled for whole numbers once more.
        for name in ("arrival_s", "work", "weight"):
            if type(value := getattr(self, name)) is not float:
                object.__setattr__(self, name, float(value))

    @property
    def started_s(self) -> float | None:
        """When it first had devices where it was recorded; None where that is not known."""
        return self.attempts[0].start_s if self.attempts else None

    @property
    def skew(self) -> float | None:
        """Share of the largest tensor in the parameters of its model, as far as its profile knows these."""
        share: float | None = getattr(self.profile, "skew", None)
        return share


def rate_anywhere(job: Job) -> float:
    """Work per second of a job on its gang, wherever that lies; NaN if that matters."""
    if not isinstance(job.profile, Placeless):
        return float("nan")
    return job.profile.work_per_s(*_gang(job.num_devices))


@cache
def _gang(num_devices: int) -> tuple[Spot, Grant]:
    """Whole devices, and one node that has them."""
    return spot_of("", (num_devices,)), Grant(tuple(range(num_devices)))


def declared_job(
    name: str, arrival_s: float, num_devices: int, length_s: float, busy: float = 1.0, **rest: Any
) -> Job:
    """A job of a given length on its gang."""
    return Job(name, arrival_s, num_devices, length_s, Declared(num_devices, busy), busy=busy, **rest)


def by_arrival(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Jobs in the order of their arrival; those of one moment in the order given."""
    return tuple(sorted(jobs, key=lambda job: job.arrival_s))

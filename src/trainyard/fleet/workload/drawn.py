"""Workloads drawn by chance: from published distributions at a load, or from the jobs of a trace; and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.fair import alone_s
from trainyard.fleet.workload.generate import gavel_jobs, helios_jobs, philly_jobs, tiresias_jobs
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.readers.gavel import read_throughputs
from trainyard.hardware.cluster import Cluster
from trainyard.reading import shown

_SAMPLE = 50_000
WORKLOAD, NUM_JOBS, LOAD = "philly", 300, 0.8
"""Defaults: the workload that is drawn, its jobs and its load."""
Draw = Callable[[int], "list[Job]"]
"""Jobs of a seed."""
PUBLISHED_SLACK = (0.5, 1.5)
"""Between which deadlines are drawn, in lengths of the job: D. Gu et al., "ElasticFlow", ASPLOS 2023."""


@dataclass(frozen=True)
class Generator:
    """Draws jobs of a published distribution.

    Attributes
    ----------
    draw : of a number of jobs and a seed, with ``mean_gap_s`` and ``most_devices``, and ``profiles`` if it needs them.
    profiles : the file of speeds that it needs, in words; none if empty.
    """

    draw: Callable[..., Iterator[Job]]
    profiles: str = ""

    def jobs(
        self, num_jobs: int, seed: int, cluster: Cluster, profiles: Path | None, mean_gap_s: float = 1.0
    ) -> Iterator[Job]:
        """Jobs for a cluster; gangs larger than it are not drawn."""
        more = {"profiles": profiles} if self.profiles else {}
        return self.draw(
            num_jobs, seed, mean_gap_s=mean_gap_s, most_devices=int(cluster.devices_of_type.max()), **more
        )


def _gavel(
    num_jobs: int, seed: int, *, mean_gap_s: float, most_devices: int, profiles: Path
) -> Iterator[Job]:
    throughputs = read_throughputs(profiles)
    return gavel_jobs(
        num_jobs, throughputs, seed, mean_gap_s=mean_gap_s, multi_device=True, most_devices=most_devices
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "philly": Generator(philly_jobs),
        "helios": Generator(helios_jobs),
        "tiresias": Generator(tiresias_jobs),
        "gavel": Generator(_gavel, "throughputs of Gavel, such as simulation_throughputs.json"),
    }
)
"""Generators of jobs with published distributions, by name."""


def drawn_jobs(
    workload: str, num_jobs: int, load: float, cluster: Cluster, seed: int, profiles: Path | None = None
) -> list[Job]:
    """Jobs whose arrivals would keep a share of a cluster busy for ever.

    Parameters
    ----------
    workload : name in ``GENERATORS``; gangs larger than the cluster are not drawn.
    load : devices times time that come in, each job on the type on which it is fastest, over what the cluster has.
    profiles : the speeds that a generator needs.

    Raises
    ------
    FleetError
        If the workload is unknown, none of its jobs runs on the cluster, or the load is not above 0.
    """
    if workload not in GENERATORS:
        raise FleetError(f"unknown workload {shown(workload)}; there are {', '.join(GENERATORS)}")
    if load <= 0 or num_jobs < 1:
        raise FleetError(f"a workload has at least one job and a load above 0, got {num_jobs} and {load}")
    generator = GENERATORS[workload]
    if (profiles is None) == bool(generator.profiles):
        raise FleetError(
            f"workload {workload!r} needs `profiles`: {generator.profiles}"
            if generator.profiles
            else f"workload {workload!r} needs no profiles; leave {profiles} out"
        )
    gap_s = _mean_device_s(workload, cluster, profiles) / (load * cluster.num_devices)
    return list(generator.jobs(num_jobs, seed, cluster, profiles, gap_s))


@cache
def _mean_device_s(workload: str, cluster: Cluster, profiles: Path | None) -> float:
    """Return the distribution's mean device time of jobs that can run, so that all seeds have the same load."""
    sample = GENERATORS[workload].jobs(_SAMPLE, 0, cluster, profiles)
    device_s = np.array([job.num_devices * alone_s(job, cluster) for job in sample])
    device_s = device_s[np.isfinite(device_s)]
    if not len(device_s):
        raise FleetError(
            f"no job of {workload} runs on cluster {cluster.name!r}; it has devices of type "
            f"{', '.join(cluster.device_types)}, which the profiles do not know"
        )
    return float(device_s.mean())


def resampled(jobs: Sequence[Job], seed: int) -> Iterator[Job]:
    """Draw a workload like that of a trace: whenever a job arrives there, any of its jobs, as likely as the others."""
    picks = np.random.default_rng(seed).integers(len(jobs), size=len(jobs))
    for number, (there, pick) in enumerate(zip(jobs, picks, strict=True)):
        job = _from_its_start(jobs[pick])
        deadline_s = None if job.deadline_s is None else job.deadline_s + there.arrival_s - job.arrival_s
        yield replace(
            job, name=f"{number}~{job.name}", arrival_s=there.arrival_s, deadline_s=deadline_s, attempts=()
        )


def _from_its_start(job: Job) -> Job:
    """Return a job that has not run before it arrives."""
    if not job.ran_s:
        return job
    limit_s = None if job.limit_s is None else job.limit_s + job.ran_s
    return replace(job, work=job.work + job.ran_s, limit_s=limit_s, ran_s=0.0)


def with_deadlines(
    jobs: Iterable[Job], cluster: Cluster, seed: int, slack: tuple[float, float] = PUBLISHED_SLACK
) -> Iterator[Job]:
    """Give jobs that have none a deadline: after their arrival, their time alone times a number drawn evenly.

    Parameters
    ----------
    slack : between which that number is; below 1 only more devices than a job asks for can help.

    Raises
    ------
    FleetError
        If these are no two numbers above 0, the smaller one first.
    """
    least, most = slack
    if not 0 < least <= most < float("inf"):
        raise FleetError(f"deadlines are between two numbers of lengths, as 0.5,1.5; got {least:g},{most:g}")
    rng = np.random.default_rng([seed, 1])  # the jobs are the same with and without
    for job in jobs:
        factor, length_s = rng.uniform(least, most), alone_s(job, cluster)
        if job.deadline_s is None and length_s < float("inf"):
            job = replace(job, deadline_s=job.arrival_s + factor * length_s)
        yield job


def draw_of(
    cluster: Cluster,
    jobs: Sequence[Job] | None,
    deadlines: tuple[float, float] | None = None,
    *,
    workload: str = WORKLOAD,
    num_jobs: int = NUM_JOBS,
    load: float = LOAD,
    profiles: Path | None = None,
) -> Draw:
    """Return what draws the jobs of a seed.

    Parameters
    ----------
    jobs : to draw from; None to draw from a published distribution.
    deadlines : give jobs a deadline as `with_deadlines` does.
    workload, num_jobs, load, profiles : of the distribution; see `drawn_jobs`.
    """

    def draw(seed: int) -> list[Job]:
        if jobs is not None:
            drawn = list(resampled(jobs, seed))
        else:
            drawn = drawn_jobs(workload, num_jobs, load, cluster, seed, profiles)
        return drawn if deadlines is None else list(with_deadlines(drawn, cluster, seed, deadlines))

    return draw

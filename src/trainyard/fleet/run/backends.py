"""The backends by name, and what jobs must be to run on one."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from trainyard.distribution import install_command
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.place.nodes import ANYWHERE
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import Recorder
from trainyard.fleet.run.backend import USUAL_LIMITS, USUAL_OPTIONS, BackendOptions, JobLimits
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.level1 import ask
from trainyard.fleet.workload.runnable import runnable_of
from trainyard.fleet.workload.training import Training, cluster_text
from trainyard.hardware.cluster import Cluster
from trainyard.private import make_private

BACKENDS = MappingProxyType(
    {
        "local": "trainyard.fleet.run.local:LocalBackend",
        "slurm": "trainyard.fleet.run.slurm:SlurmBackend",
        "ray": "trainyard.fleet.run.ray_backend:RayBackend",
    }
)
"""Where each backend's factory is, imported only when it is wanted; see `DirectoryBackend` for what it takes."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)


def make_backend(
    name: str, cluster: Cluster, folder: Path, options: BackendOptions = USUAL_OPTIONS
) -> DirectoryBackend:
    """A backend by name.

    Parameters
    ----------
    folder : of the jobs' folders, made if it is not there.
    options : of all jobs.

    Raises
    ------
    FleetError
        If there is none of this name, what it needs is not installed, or it cannot share devices and is to.
    """
    if name not in BACKENDS:
        raise FleetError(f"no backend {name!r}; there are {', '.join(BACKENDS)}")
    module, _, factory = BACKENDS[name].partition(":")
    try:
        make: Callable[..., DirectoryBackend] = getattr(importlib.import_module(module), factory)
    except ModuleNotFoundError as error:
        raise FleetError(
            f"backend {name!r} needs {error.name!r}, which is not installed: {install_command(name)}"
        ) from error
    make_private(folder)
    return make(cluster, folder, options)


def check_runnable(
    jobs: Iterable[Job], cluster: Cluster, policy: Policy, limits: JobLimits = USUAL_LIMITS
) -> None:
    """Whether jobs can run for real on a cluster, under a policy.

    Raises
    ------
    FleetError
        If one has nothing to run, asks for more than there is or for what its strategies have no plan for, has a name
        that no folder can have or that another one has, or its checkpoints would be larger than they may; or if its
        command has no folder, or does not tell what the policy learns from.
    """
    allocator = Allocator(cluster, policy, ANYWHERE, Costs(), Recorder(keep_spans=False))
    seen: set[str] = set()
    for job in jobs:
        if not _NAME.fullmatch(job.name):
            raise FleetError(
                f"a job that runs has a folder of its name: {job.name!r} is not at most 100 letters, digits, and . _ - "
                "after the first"
            )
        if job.name in seen:
            raise FleetError(f"there are two jobs {job.name!r}; give each a name of its own")
        seen.add(job.name)
        # Who could do with fewer may not ask for more than there is, either: policies that do not resize jobs would wait
        # for ever, and let those behind wait, too.
        allocator.enter(replace(job, min_devices=0), job.arrival_s)
        runs = runnable_of(job)
        if isinstance(runs, Command):
            _check_command(job, runs, policy)
        else:
            _check_checkpoints(job, runs, limits)
            _check_plan(job, runs, cluster)


def _check_command(job: Job, command: Command, policy: Policy) -> None:
    """Whether a command has a folder to run in, and tells what its policy learns from."""
    if not Path(command.folder).is_dir():
        raise FleetError(
            f"job {job.name!r}: there is no folder {command.folder} in which its command could run; give it another "
            "folder, one that all nodes see"
        )
    if "reports" in policy.needs and not (command.steps and job.batch_size):
        raise FleetError(
            f"job {job.name!r}: this policy learns from the progress of jobs; give its command steps and batch_size, and "
            "have it report (trainyard.fleet.progress), or take a policy that does not"
        )


def _check_checkpoints(job: Job, training: Training, limits: JobLimits) -> None:
    """Whether the checkpoints of a training are as small as they must be."""
    if math.isinf(limits.max_checkpoint_bytes):
        return
    if problem := ask("checkpoint_problem", training.model, limits.max_checkpoint_bytes):
        raise FleetError(f"job {job.name!r}: {problem}")


def _check_plan(job: Job, training: Training, cluster: Cluster) -> None:
    """Whether a training can be spread over the devices that it asks for, on as few nodes of a type as can hold them."""
    problem = ""
    for kind in job.device_types or cluster.device_types:
        if kind not in cluster.device_types:
            continue
        per_node = cluster.compact(job.num_devices, cluster.device_types.index(kind))
        problem = ask("plan_problem", training.as_fast, cluster_text([(kind, size) for size in per_node]))
        if not problem:
            return
    raise FleetError(f"job {job.name!r}: {problem}")

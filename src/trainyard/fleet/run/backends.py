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
"""Factories of the backends, imported when they are used; `DirectoryBackend` has their parameters."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)


def make_backend(
    name: str, cluster: Cluster, folder: Path, options: BackendOptions = USUAL_OPTIONS
) -> DirectoryBackend:
    """Make a backend by name.

    Parameters
    ----------
    folder : of the jobs' folders, made if it is not there.
    options : of all jobs.

    Raises
    ------
    FleetError
        If there is no such backend, a package that it needs is not installed, or it is to share devices and cannot.
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
    """Check that jobs can run for real on a cluster, under a policy.

    Raises
    ------
    FleetError
        If a job has nothing to run, asks for more devices than there are or for a number without a plan, has a name that
        no folder can have or that another job has, or has larger checkpoints than allowed; or if its command has no
        folder, or reports no progress and the policy learns from progress.
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
        # Also a job that can run on fewer may not ask for more devices than there are: under a policy that does not
        # resize jobs it would wait for ever, and the jobs behind it, too.
        allocator.enter(replace(job, min_devices=0), job.arrival_s)
        runnable = runnable_of(job)
        if isinstance(runnable, Command):
            _check_command(job, runnable, policy)
        else:
            _check_checkpoints(job, runnable, limits)
            _check_plan(job, runnable, cluster)


def _check_command(job: Job, command: Command, policy: Policy) -> None:
    """Check that a command has a folder to run in, and reports progress if the policy learns from it."""
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
    """Check that the checkpoints of a training are as small as they must be."""
    if math.isinf(limits.max_checkpoint_bytes):
        return
    if problem := ask("checkpoint_problem", training.model, limits.max_checkpoint_bytes):
        raise FleetError(f"job {job.name!r}: {problem}")


def _check_plan(job: Job, training: Training, cluster: Cluster) -> None:
    """Check that a training has a plan for the devices that it asks for, on as few nodes of a type as can hold them."""
    problem = ""
    for kind in job.device_types or cluster.device_types:
        if kind not in cluster.device_types:
            continue
        per_node = cluster.compact(job.num_devices, cluster.device_types.index(kind))
        problem = ask("plan_problem", training.as_fast, cluster_text([(kind, size) for size in per_node]))
        if not problem:
            return
    raise FleetError(f"job {job.name!r}: {problem}")

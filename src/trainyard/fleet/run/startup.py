"""Measure how long a start takes on a backend, to predict jobs that run there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.measure import devices_text, endless, first_device, grant_from, one_start
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.training_job import training_job
from trainyard.progress import Progress, no_progress

__all__ = ["measured_start"]

_POLL_S = 0.01
_STAGE, _NAME = "measuring a start", "measured-start"


def measured_start(
    jobs: Sequence[Job],
    backend: DirectoryBackend,
    *,
    tell: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> Costs:
    """Measure one start of each kind of job on an idle backend.

    The training with the median number of devices is started, runs some steps, and is stopped. For commands, a shell that
    does nothing is started: the time of a command until its own first step is not included.

    Parameters
    ----------
    jobs : trainings and commands, at least one.
    tell : gets a line for each time.
    progress : gets the part that is measured.

    Returns
    -------
    One time for all starts and restarts: the mean over the jobs if there are trainings and commands.

    Raises
    ------
    FleetError
        If a job that is started fails.
    """
    kinds = [[job for job in jobs if (job.command is not None) == is_command] for is_command in (False, True)]
    kinds = [kind for kind in kinds if kind]
    took_s: list[float] = []
    for number, kind in enumerate(kinds):
        # On more devices a start takes longer.
        job = sorted(kind, key=lambda job: job.num_devices)[len(kind) // 2]
        size = devices_text(job.num_devices)
        what = f"a command on {size}" if job.command is not None else f"{job.model} on {size}"
        progress(_STAGE, f"{number + 1} of {len(kinds)}, {what}; then the prediction")
        measure = _of_training if job.command is None else _of_command
        try:
            took_s.append(measure(job, backend))
        except FleetError as error:
            raise FleetError(
                f"a start of {what} was not measured: {error}. Give --start and --restart to go on without"
            ) from error
        tell(f"a start of {what} takes {took_s[-1]:.1f} s")
    mean_s = fmean(took_s, weights=[len(kind) for kind in kinds])
    return Costs(mean_s, mean_s)


def _of_training(job: Job, backend: DirectoryBackend) -> float:
    """Measure a start and a stop of a training: a job that ends must stop, too."""
    alone = training_job(_NAME, 0.0, job.num_devices, endless(job), device_types=job.device_types)
    trial = one_start(alone, backend, 0.0)
    return trial.start_s + trial.stop_s


def _of_command(job: Job, backend: DirectoryBackend) -> float:
    """Measure a command that does nothing, from the order to start until it has ended."""
    assert job.command is not None, "the job runs a command"
    nothing = replace(job, name=_NAME, command=replace(job.command, line="true", steps=0))
    folder = backend.directory(_NAME).path
    shutil.rmtree(folder, ignore_errors=True)
    began_s = time.monotonic()
    try:
        backend.start(nothing, grant_from(nothing, first_device(nothing, backend), backend))
        while not (found := backend.progress(_NAME)).ended:
            if found.failure is not None:
                raise FleetError(f"no command can be started by this backend: {found.failure}")
            time.sleep(_POLL_S)
        return time.monotonic() - began_s
    finally:
        backend.stop([_NAME])
        shutil.rmtree(folder, ignore_errors=True)

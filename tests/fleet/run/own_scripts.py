"""Run the example scripts under a policy that takes their devices away again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.compiling import python_first
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.run_fleet import run_fleet
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.cluster import Cluster

FOLDER = Path(__file__).parents[3] / "examples" / "fleet" / "own"
LIMIT_S = 1500.0
TIMES = 2
POLICIES = {"srtf": "srtf", "tiresias": "tiresias(thresholds=(0.01,))"}


def example(name: str) -> Job:
    """Return a job of the examples that arrives at once, runs this Python, and has much time to save."""
    job = next(
        job for job in read_workload(FOLDER / "jobs.yaml", strict=True, own_files=True) if job.name == name
    )
    if job.command is None:
        return replace(job, arrival_s=0.0)
    line = job.command.line.replace("python ", f"{sys.executable} ")
    return replace(job, arrival_s=0.0, command=replace(job.command, line=line, grace_s=LIMIT_S))


def run_undisturbed(job: Job, backend: DirectoryBackend) -> None:
    """Run a job alone, to its end."""
    patience = Patience(max_failures=0, limit_s=LIMIT_S)
    run_fleet([job], backend.cluster, scheduler_of("fifo").policy, backend, patience=patience)


@python_first()
def run_preempted(job: Job, policy: str, backend: DirectoryBackend) -> Sequence[Event]:
    """Run a job that loses its devices twice, each time after it has got on since it got them.

    Returns
    -------
    What happened to it.
    """
    scheduler, told = scheduler_of(policy), list[Event]()
    driver = Driver(
        backend.cluster,
        scheduler.policy,
        backend,
        place=scheduler.place,
        rounds=scheduler.rounds,
        patience=Patience(max_failures=0),
        tell=told.append,
    )
    driver.submit(job, 0.0)
    began_s, num_starts, since, num_others = time.monotonic(), 0, 0, 0
    try:
        while driver.names:
            now_s = time.monotonic() - began_s
            assert now_s < LIMIT_S, told
            driver.step(now_s)
            assert not driver.given_up, driver.given_up
            if not (directory := backend.directory(job.name)).path.exists():
                continue
            steps = directory.progress(is_over=False).steps or 0
            starts = sum(event.job is job and event.what is Happening.RUNS for event in told)
            if starts > num_starts:
                num_starts, since = starts, steps
            if num_others < min(TIMES, num_starts) and steps > since:
                all_devices, runs = backend.cluster.num_devices, Command("true", str(FOLDER))
                other = declared_job(f"other{num_others}", now_s, all_devices, 0.01, command=runs)
                driver.submit(other, now_s)
                num_others += 1
            time.sleep(0.05)
    finally:
        backend.close()
    return [event for event in told if event.job is job]


def check_preempted(events: Sequence[Event]) -> None:
    """Check that a job lost its devices as often as planned, never failed, and ended."""
    happened = [event.what for event in events]
    assert happened.count(Happening.LEAVES) >= TIMES, events
    assert Happening.FAILS not in happened, events
    assert happened[-1] is Happening.ENDS, events


def ddp_weights(directory: JobDirectory) -> Any:
    """Return the weights that the script with DistributedDataParallel has saved."""
    return torch.load(directory.output / "checkpoint.pt")["net"]


def trainer_weights(directory: JobDirectory) -> Any:
    from safetensors.torch import load_file

    return load_file(directory.output / "model" / "model.safetensors")


def squares(directory: JobDirectory) -> Any:
    lines = (directory.output / "squares.txt").read_text().splitlines()
    assert lines[-1] == "40 squared is 1600"
    return torch.tensor([int(line.split()[-1]) for line in lines])


def losses(directory: JobDirectory) -> Any:
    found = directory.losses()
    assert len(found) == directory.training().steps
    return torch.tensor([found[step] for step in sorted(found)])


RESULTS: dict[str, Callable[[JobDirectory], Any]] = {
    "ddp": ddp_weights,
    "trainer": trainer_weights,
    "squares": squares,
    "own": losses,
}


def uninterrupted(job: Job) -> Job:
    """The same job; processes of DDP are started by torchrun."""
    if job.name != "ddp" or job.command is None:
        return job
    line = job.command.line.replace(sys.executable, f"{sys.executable} -m torch.distributed.run")
    return replace(job, command=replace(job.command, line=line, processes="node"))


def check_ends_as_alone(name: str, policy: str, backend: DirectoryBackend, folder: Path) -> None:
    """Check that an example that is preempted twice ends with what it ends with when nobody disturbs it here.

    Parameters
    ----------
    folder : of the undisturbed job.
    """
    if name == "trainer":
        pytest.importorskip("accelerate", reason="the Trainer of Hugging Face needs accelerate")
    job, alone = example(name), LocalBackend(Cluster.uniform(1, 2, "local"), folder)
    alone.warm_up()
    run_undisturbed(uninterrupted(job), alone)
    check_preempted(run_preempted(job, POLICIES[policy], backend))
    found, expected = (RESULTS[name](each.directory(name)) for each in (backend, alone))
    torch.testing.assert_close(found, expected)


def check_ddp_on_nodes(backend: DirectoryBackend, folder: Path) -> None:
    """Check that a script on four devices of a manager's nodes is preempted twice, and ends as on this machine."""
    job = replace(example("ddp"), num_devices=4)
    alone = LocalBackend(Cluster.uniform(1, 4, "local"), folder / "alone")
    run_undisturbed(job, alone)
    check_preempted(run_preempted(job, "srtf", backend))
    found, expected = (ddp_weights(each.directory(job.name)) for each in (backend, alone))
    torch.testing.assert_close(found, expected)

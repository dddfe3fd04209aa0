"""Eight real trainings under real policies: each does to them what it is there for, and no loss is another for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from backend_trials import LIMIT_S, check_losses, trial_training
from checkpoints_kept import logged
from leases import Lending

from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.gandiva import Gandiva
from trainyard.fleet.policies.pollux.policy import Pollux
from trainyard.fleet.policies.tiresias.policy import tiresias
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.run.backend import BackendOptions
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(2, 2, "local")
STEPS = 40


def workload(apart_s: float = 0.0) -> list[Job]:
    """Eight jobs for four devices: narrow and wide, guaranteed and not, and each can do with other numbers of devices."""
    training = trial_training(STEPS)
    speeds = Predicted(training, {1: 10.0, 2: 12.0, 4: 14.0})
    return [
        training_job(
            f"job{i}",
            apart_s * i,
            n,
            training,
            speeds,
            guaranteed=i % 2 == 0,
            busy=0.5,
            min_devices=1,
            max_devices=4,
        )
        for i, n in enumerate((2, 1, 4, 1, 2, 1, 1, 2))
    ]


@dataclass(frozen=True)
class Done:
    """What came of it.

    Attributes
    ----------
    told : what happened to jobs.
    sizes : of every job, on how many devices it trained, one after the other.
    """

    run: FleetRun
    told: Sequence[Event]
    sizes: Sequence[Sequence[int]]


def preempts(done: Done) -> bool:
    """Whether a job makes way for another, and goes on later."""
    return done.run.num_preemptions > 0 and bool(made_way(done.told))


def slices_time(done: Done) -> bool:
    """Whether a job that came in the place of another makes way for a third in turn."""
    leaving, coming = zip(*made_way(done.told), strict=True)
    return bool(set(leaving) & set(coming))


def resizes(done: Done) -> bool:
    """Whether jobs grow, and shrink, while they train."""
    changes = [after - before for sizes in done.sizes for before, after in pairwise(sizes)]
    return min(changes) < 0 < max(changes)


def shares(done: Done) -> bool:
    """Whether devices have two jobs for a good part of the time."""
    return float(done.run.device_s.sum()) > 1.1 * done.run.busy_device_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "round_s", "apart_s", "acts"),
    [
        pytest.param(
            tiresias(thresholds=(float(STEPS),)), None, 0.0, preempts, id="tiresias", marks=pytest.mark.long
        ),
        pytest.param(
            Gandiva(quantum_s=30.0, pack=False), 30.0, 0.0, slices_time, id="gandiva", marks=pytest.mark.long
        ),
        pytest.param(
            Pollux(interval_s=20.0, restart_s=1.0), 20.0, 30.0, resizes, id="pollux", marks=pytest.mark.long
        ),
        pytest.param(AntMan(), None, 0.0, shares, id="antman", marks=pytest.mark.long),
        pytest.param(Lending(30.0), None, 0.0, slices_time, id="leases", marks=pytest.mark.long),
    ],
)
def test_eight_jobs_end_with_the_losses_of_undisturbed_ones(
    policy: Policy,
    round_s: float | None,
    apart_s: float,
    acts: Callable[[Done], bool],
    tmp_path: Path,
    undisturbed: dict[int, float],
) -> None:
    """Each step of each job counts as a second, so that a policy does the same where steps take longer."""
    jobs, told = workload(apart_s), list[Event]()
    local = LocalBackend(CLUSTER, tmp_path, BackendOptions(shares=traits_of(policy).shares))
    rounds = None if round_s is None else Rounds(round_s)
    run = run_by_steps(jobs, policy, local, rounds, told.append)
    assert sorted(run.names) == [job.name for job in jobs]
    sizes = []
    for job in jobs:
        check_losses(local.directory(job.name), undisturbed, STEPS)
        steps, num_processes = zip(*logged(local.directory(job.name)), strict=True)
        assert list(steps) == list(range(STEPS))
        sizes.append([count for count, _ in groupby(num_processes)])
    assert acts(Done(run, told, sizes)), "\n".join(map(str, told))


def run_by_steps(
    jobs: Sequence[Job],
    policy: Policy,
    backend: DirectoryBackend,
    rounds: Rounds | None,
    tell: Callable[[Event], None],
) -> FleetRun:
    """Run a workload by a clock that goes on by a second with every step of any job, however long that takes here."""
    driver = Driver(backend.cluster, policy, backend, rounds=rounds, tell=tell)
    coming, now_s, limit_s = list(jobs), 0.0, time.monotonic() + LIMIT_S
    try:
        while coming or driver.names:
            assert time.monotonic() < limit_s, f"{driver.names} are left"
            while coming and coming[0].arrival_s <= now_s:
                driver.submit(coming.pop(0), now_s)
            driver.step(now_s)
            assert not driver.given_up
            now_s = max(now_s, float(sum(backend.progress(job.name).steps for job in jobs)))
            if not driver.running:  # nothing happens until then
                later_s = min([driver.wake_s, *(job.arrival_s for job in coming[:1])])
                now_s = max(now_s, later_s if later_s < float("inf") else now_s)
            time.sleep(0.01)
        return driver.notes.result("", backend.cluster)
    finally:
        backend.close()


def made_way(told: Sequence[Event]) -> list[tuple[str, str]]:
    """Names of jobs that left, and of those that came to one of their devices at the same moment."""
    return [
        (leaves.job.name, runs.job.name)
        for leaves in told
        for runs in told
        if (leaves.what, runs.what) == (Happening.LEAVES, Happening.RUNS)
        and leaves.job is not runs.job
        and leaves.now_s == runs.now_s
        and set(_devices(leaves)) & set(_devices(runs))
    ]


def _devices(event: Event) -> tuple[int, ...]:
    assert isinstance(event.grant, Grant)
    return event.grant.devices

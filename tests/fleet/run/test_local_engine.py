"""Real trainings under real policies on this machine: all end, and their losses are those of undisturbed runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from engine_trials import (
    check_losses,
    check_shares_change,
    check_sharing,
    check_sharing_is_refused,
    site_of,
    trial_training,
)

from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.gandiva import Gandiva
from trainyard.fleet.policies.pollux import Pollux
from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.policies.tiresias import tiresias
from trainyard.fleet.policy import Policy
from trainyard.fleet.rounds import Rounds
from trainyard.fleet.run.drive import Patience, run_fleet
from trainyard.fleet.run.local import LocalEngine
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job, declared_job
from trainyard.fleet.workload.training import Predicted, Training, training_job

SITE = Site.uniform(2, 2, "local")
TRAINING = trial_training(12)


def workload() -> list[Job]:
    """Eight jobs for four devices; the last ones are guaranteed, short or wide."""
    speeds = Predicted(TRAINING, {1: 10.0, 2: 12.0, 4: 14.0})
    sizes = (2, 1, 4, 1, 2, 1, 1, 2)
    return [
        training_job(
            f"job{i}",
            0.4 * i,
            n,
            TRAINING,
            speeds,
            guaranteed=i % 2 == 0,
            busy=0.5,
            min_devices=1,
            max_devices=4,
        )
        for i, n in enumerate(sizes)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rounds"),
    [
        (tiresias(thresholds=(20.0,)), None),
        (Gandiva(quantum_s=20.0, pack=False), Rounds(20.0)),
        (Pollux(interval_s=20.0, restart_s=5.0), Rounds(20.0)),
        (AntMan(), None),
    ],
    ids=["tiresias", "gandiva", "pollux", "antman"],
)
def test_eight_jobs_end_with_the_losses_of_undisturbed_ones(
    policy: Policy, rounds: Rounds | None, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    jobs = workload()
    local = LocalEngine(SITE, tmp_path)
    run = run_fleet(jobs, SITE, policy, local, rounds=rounds, patience=Patience(limit_s=500))
    assert sorted(run.names) == [job.name for job in jobs]
    for job in jobs:
        check_losses(local.home(job.name), undisturbed, TRAINING.steps)


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    long = Training("gpt-tiny", 4, 300, checkpoint_every=4)
    local = LocalEngine(SITE, tmp_path)
    job = training_job("a", 0.0, 2, long)
    local.start(job, Grant((0, 1)))
    while local.progress("a").steps < 6:
        time.sleep(0.05)
    with pytest.raises(FleetError, match="runs already"):
        LocalEngine(SITE, tmp_path).start(job, Grant((2,)))
    assert LocalEngine(SITE, tmp_path).adopt(job, Grant((0, 1)))
    (group,) = local.home("a").groups()
    os.killpg(group, signal.SIGKILL)
    while not local.is_over("a"):
        time.sleep(0.05)
    assert local.progress("a").failure == "its processes are gone"
    assert local.progress("a").steps >= 4
    local.start(job, Grant((2,)))
    while local.progress("a").steps < 12:
        time.sleep(0.05)
    local.close()
    check_losses(local.home("a"), undisturbed, TRAINING.steps)


@pytest.mark.slow
def test_a_job_that_cannot_run_is_given_up(tmp_path: Path) -> None:
    job = training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8, strategies="gpipe(stages=64)"))
    with pytest.raises(FleetError, match="'a' failed 2 times, the last time with: PlanError"):
        run_fleet(
            [job], SITE, srtf(), LocalEngine(SITE, tmp_path), patience=Patience(max_failures=1, limit_s=60)
        )


@pytest.mark.slow
def test_two_jobs_share_a_device(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_sharing(LocalEngine(SITE, tmp_path), undisturbed)


@pytest.mark.slow
def test_a_share_changes_while_its_job_runs(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_shares_change(LocalEngine(site_of(1), tmp_path), undisturbed)


def test_sharing_can_be_ruled_out(tmp_path: Path) -> None:
    check_sharing_is_refused(LocalEngine(SITE, tmp_path, shares=False))


def test_a_batch_must_divide() -> None:
    with pytest.raises(FleetError, match="4 rows does not divide over 3 devices; ask for one of 1, 2, 4"):
        training_job("a", 0.0, 3, TRAINING)


def test_a_job_of_a_trace_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="'a' has a length and no training"):
        run_fleet([declared_job("a", 0.0, 1, 5.0)], SITE, srtf(), LocalEngine(SITE, tmp_path))


def test_devices_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="as in 2x2xlocal"):
        LocalEngine(Site.parse("2x2xZ9000"), tmp_path)

"""Real trainings under real policies on this machine: all end, and their losses are those of undisturbed runs."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from backend_trials import (
    check_losses,
    check_shares_change,
    check_sharing,
    check_sharing_is_refused,
    nodes_of,
    trial_training,
)
from gang_trials import check_gangs
from guide_commands import follow_guide

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.optimus import work_left
from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.run import local as local_backend
from trainyard.fleet.run.backend import BackendOptions, JobLimits, Progress
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.run.measure import measured_alone, measured_document
from trainyard.fleet.run.node import run
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.run.run_fleet import run_fleet
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Grant, declared_job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job, training_of
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster
from trainyard.job.run.processes.fork_server import WorkerError
from trainyard.processes import ProcessLimits

CLUSTER = Cluster.uniform(2, 2, "local")
TRAINING = trial_training(12)


def test_nodes_divide_the_cores_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2, 10)))
    two_nodes = LocalBackend(Cluster.uniform(2, 2, "local"), tmp_path)
    assert [two_nodes.threads(node) for node in (0, 1)] == [2, 2]
    assert two_nodes.core_part == 1.0
    # With two jobs on a device, or more devices, there are more places than cores; two fifths are left for the rest.
    assert LocalBackend(
        Cluster.uniform(2, 4, "local"), tmp_path, BackendOptions(shares=True)
    ).core_part == pytest.approx(0.3)
    assert LocalBackend(Cluster.uniform(2, 8, "local"), tmp_path).core_part == pytest.approx(0.3)
    unequal = LocalBackend(Cluster.of_pools([("local", 1, 1), ("local", 1, 8)]), tmp_path)
    assert [unequal.threads(node) for node in (0, 1)] == [1, 1]
    many_nodes = LocalBackend(Cluster.uniform(16, 1, "local"), tmp_path)
    assert (many_nodes.threads(0), many_nodes.core_part) == (1, pytest.approx(0.3))


@pytest.mark.slow
@pytest.mark.long
def test_the_command_of_the_guide(tmp_path: Path) -> None:
    assert "off by" in follow_guide("local", "1x2xlocal", tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_trainings_are_measured_while_the_other_devices_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, started = LocalBackend(CLUSTER, tmp_path), []
    local.warm_up()
    start = local.start
    monkeypatch.setattr(local, "start", lambda job, grant: (started.append(grant.devices), start(job, grant)))
    other = replace(TRAINING, steps=7, seed=1)
    jobs = [training_job(name, 0.0, 1, t, max_devices=2) for name, t in (("a", TRAINING), ("b", other))]
    told: list[str] = []
    found, costs = measured_alone(jobs, local, seconds=0.5, tell=told.append)
    *speeds, starts = told
    assert [line.split(":")[0] for line in speeds] == ["gpt-tiny on 1 device", "gpt-tiny on 2 devices"]
    assert starts.startswith(f"a start takes {costs.start_s:.1f} s, and {costs.together_s:.1f} s more")
    assert [training_of(job) for job in found] == [TRAINING, other]
    assert all(
        profile.steps_per_s.keys() == {1, 2} for job in found if isinstance(profile := job.profile, Predicted)
    )
    assert costs.start_s > 0
    document = measured_document(found, costs)
    assert all(min(speeds.values()) > 0 for speeds in document["steps_per_s"].values())
    assert document["start_s"] == costs.start_s
    one_each = [(0,), (1,), (2,), (3,)]
    assert started == [(1,), (2,), (3,), *[(0,)] * 3, (2, 3), *[(0, 1)] * 3, *one_each]
    assert not list(local.folder.glob("measured-*"))


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    long = Training("gpt-tiny", 4, 300, checkpoint_every=4)
    local = LocalBackend(CLUSTER, tmp_path)
    job = training_job("a", 0.0, 2, long)
    local.start(job, Grant((0, 1)))
    while local.directory("a").saved_steps() < 4:
        time.sleep(0.05)
    with pytest.raises(FleetError, match="runs already"):
        LocalBackend(CLUSTER, tmp_path).start(job, Grant((2,)))
    assert LocalBackend(CLUSTER, tmp_path).adopt(job, Grant((0, 1)))
    (group,) = local.directory("a").groups()
    ranks = [child.pid for child in psutil.Process(group).children()]
    assert len(set(map(os.getsid, ranks))) == 2  # each has its own part of a shared core
    os.killpg(group, signal.SIGKILL)
    while not local.is_over("a"):
        time.sleep(0.05)
    progress = local.progress("a")
    assert (progress.failure, progress.killed) == ("its processes are gone", True)
    assert progress.steps >= 4
    local.start(job, Grant((2,)))
    while local.progress("a").steps < 12:
        time.sleep(0.05)
    local.close()
    check_losses(local.directory("a"), undisturbed, TRAINING.steps)


@pytest.mark.slow
def test_a_job_whose_processes_are_stopped_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Nobody ends them, and they answer nothing; meanwhile, they listen on this machine only."""
    local = LocalBackend(CLUSTER, tmp_path, BackendOptions(limits=JobLimits(heartbeat_s=2.0)))
    job = training_job("a", 0.0, 2, Training("gpt-tiny", 4, 100_000, checkpoint_every=4))
    local.start(job, Grant((0, 1)))
    while local.directory("a").saved_steps() < 4:
        time.sleep(0.05)
    (group,) = local.directory("a").groups()
    processes = [psutil.Process(group), *psutil.Process(group).children()]
    for each in processes:
        found = [c.laddr.ip for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert set(found) <= {"127.0.0.1", "::1"}
    for each in processes:
        each.suspend()
    while (progress := local.progress("a")).failure is None:
        time.sleep(0.05)
    assert "gave no heartbeat for" in progress.failure
    assert progress.killed
    while not local.is_over("a"):
        time.sleep(0.05)
    assert local.progress("a") == progress
    local.start(job, Grant((2,)))
    while local.progress("a").steps <= progress.steps:
        time.sleep(0.05)
    local.close()


def test_a_server_of_processes_that_does_not_answer_is_no_failure_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(process: Any) -> None:
        raise WorkerError("the server did not answer")

    monkeypatch.setattr(local_backend, "context", lambda: SimpleNamespace(Process=lambda **_: None))
    monkeypatch.setattr(local_backend, "start", start)
    local = LocalBackend(CLUSTER, tmp_path)
    with pytest.raises(BackendError, match="did not answer"):
        local.start(training_job("a", 0.0, 1, TRAINING), Grant((0,)))
    assert local.is_over("a")


def _sleep(*_: Any, **__: Any) -> None:
    time.sleep(10_000.0)


def test_a_process_that_does_not_begin_is_no_failure_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another is started for it, when it has used no CPU for long."""
    monkeypatch.setattr(local_backend, "run_apart", _sleep)
    local = LocalBackend(CLUSTER, tmp_path)
    local.begin_limits = ProcessLimits(cpu_s=60.0, idle_s=0.5)
    job = training_job("a", 0.0, 1, TRAINING)
    local.start(job, Grant((0,)))
    tickets, processes, seen = set[str](), set[int](), list[Progress]()
    while len(processes) < 3:
        tickets.add((tmp_path / "a" / "ticket").read_text())
        processes.add(local._processes["a"].pid or 0)
        if len(processes) == 1:
            with suppress(BackendError):
                seen.append(local.progress("a"))
        else:
            with pytest.raises(BackendError, match=r"begun: it used no CPU for .*; it is tried again$"):
                local.progress("a")
        time.sleep(0.01)
    assert len(tickets) == 3
    assert not any(progress.failure for progress in seen)
    with local.directory("a").locked(0):  # now it has
        assert local.progress("a").failure is None
    local.kill("a")
    while not local.is_over("a"):
        time.sleep(0.01)
    local.leave("a")
    assert local.has_left("a")
    assert not any((local._known, local._processes, local._beginning, local._losses))


@pytest.mark.slow
def test_a_job_that_cannot_run_is_given_up(tmp_path: Path) -> None:
    job = training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8, strategies="gpipe(stages=64)"))
    with pytest.raises(FleetError, match=r"'a' failed 2 times, the last time with: .*64"):
        run_fleet(
            [job],
            CLUSTER,
            srtf(),
            LocalBackend(CLUSTER, tmp_path),
            patience=Patience(max_failures=1, limit_s=60),
        )


@pytest.mark.slow
def test_gangs_have_all_their_devices_or_none(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_gangs(LocalBackend(CLUSTER, tmp_path), undisturbed)


@pytest.mark.slow
def test_two_jobs_share_a_device(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_sharing(LocalBackend(CLUSTER, tmp_path, BackendOptions(shares=True)), undisturbed)


@pytest.mark.slow
def test_a_share_changes_while_its_job_runs(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_shares_change(LocalBackend(nodes_of(1), tmp_path, BackendOptions(shares=True)), undisturbed)


def test_what_a_backend_started_when_it_died_leaves_before_it_begins(tmp_path: Path) -> None:
    """Its process may come to life after the next backend has looked, who then starts the job elsewhere."""
    backend, job = (
        LocalBackend(Cluster.uniform(1, 2, "local"), tmp_path),
        training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8)),
    )
    directory = backend.directory("a")
    late = Ranks(0, 1, 1, directory.new_meeting(), "")
    directory.set_up(training_of(job))
    first = directory.issue()
    assert directory.admits(first)
    assert not backend.adopt(job, Grant((0,)))
    assert run(directory, late, first) == 0
    assert directory.admits(directory.issue())
    assert run(directory, late, first) == 0
    assert not directory.logs.joinpath("metrics.jsonl").exists()
    assert directory.progress(is_over=True).killed


def test_sharing_can_be_ruled_out(tmp_path: Path) -> None:
    check_sharing_is_refused(LocalBackend(CLUSTER, tmp_path))


def test_a_batch_must_divide() -> None:
    with pytest.raises(FleetError, match="4 rows does not divide over 3 devices; ask for one of 1, 2, 4"):
        training_job("a", 0.0, 3, TRAINING)


def test_a_job_of_a_trace_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="'a' has a length and nothing to run"):
        run_fleet([declared_job("a", 0.0, 1, 5.0)], CLUSTER, srtf(), LocalBackend(CLUSTER, tmp_path))


def test_devices_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="as in 2x2xlocal"):
        LocalBackend(parse_cluster("2x2xZ9000"), tmp_path)


@pytest.mark.slow
def test_optimus_learns_how_much_work_is_left(tmp_path: Path) -> None:
    """Of trainings that run, it reads the losses; of one that has not begun, it knows no end."""
    trainings = [Training("gpt-tiny", 4, 300, checkpoint_every=every) for every in (3, 4)]
    speeds = {1: 10.0, 2: 12.0}
    jobs = [
        training_job(f"job{i}", 0.0, 1, training, Predicted(training, speeds), max_devices=2)
        for i, training in enumerate(trainings)
    ]
    local, scheduler = LocalBackend(CLUSTER, tmp_path), scheduler_of("optimus(interval_s=30)")
    local.warm_up()
    driver = Driver(CLUSTER, scheduler.policy, local, rounds=scheduler.rounds)

    def left() -> list[float | None]:
        rows = driver.table.active.tolist()
        reports = [driver.table.reports[row] for row in rows]
        return [work_left(report.losses, 0.0, 1e-3) if report else None for report in reports]

    began_s = time.monotonic()
    try:
        for job in jobs:
            driver.submit(job, 0.0)
        assert left() == [None, None]
        while None in left():
            assert time.monotonic() - began_s < 300.0, left()
            driver.step(time.monotonic() - began_s)
            time.sleep(0.05)
        told = [driver.table.reports[row].losses for row in driver.table.active.tolist()]
        for job, training, losses in zip(jobs, trainings, told, strict=True):
            by_step = local.directory(job.name).losses()
            every = training.checkpoint_every
            for done, loss in losses:
                mean = sum(by_step[step] for step in range(int(done) - every, int(done))) / every
                assert loss == pytest.approx(mean)
    finally:
        local.close()

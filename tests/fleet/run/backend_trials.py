"""What every backend must be able to do with real trainings on four devices, whatever starts the processes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from checkpoints_kept import Seen, check_done_again

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.run_fleet import run_fleet
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

LIMIT_S = 400.0


LONGEST = 72
"""Steps of which the losses are known."""


def trial_training(steps: int) -> Training:
    """The training of all trials; the longer ones go on where the shorter ones end."""
    return Training("gpt-tiny", 4, steps, checkpoint_every=4)


def five_jobs(longer: int = 1) -> list[Job]:
    """A wide and long job has all devices, and loses them to four shorter ones that come while it starts.

    Parameters
    ----------
    longer : by how many times all are; at most three.
    """
    shape = [(0.0, 4, 24), (1.0, 2, 8), (1.0, 1, 8), (2.0, 1, 12), (2.0, 2, 16)]
    jobs = []
    for number, (arrival_s, num_devices, steps) in enumerate(shape):
        training = trial_training(longer * steps)
        speeds = Predicted(training, {1: 10.0, 2: 12.0, 4: 14.0})
        jobs.append(training_job(f"job{number}", arrival_s, num_devices, training, speeds))
    return jobs


def check_workload(backend: DirectoryBackend, undisturbed: Mapping[int, float]) -> None:
    """Five jobs under a preempting policy end, with the losses of a run that nobody disturbs."""
    jobs = five_jobs()
    told: list[Event] = []
    run = run_fleet(
        jobs, backend.cluster, srtf(), backend, patience=Patience(limit_s=LIMIT_S), tell=told.append
    )
    assert sorted(run.names) == [job.name for job in jobs], told
    assert run.num_preemptions >= 1, told
    assert Happening.FAILS not in {event.what for event in told}
    for job in jobs:
        check_losses(backend.directory(job.name), undisturbed, int(job.work))


def check_disturbed(
    backend: DirectoryBackend,
    undisturbed: Mapping[int, float],
    disturb: Callable[[random.Random], bool],
    times: int,
    *,
    kills: bool = True,
) -> None:
    """Jobs that preempt each other end with the right losses, and do nothing again that they saved, whatever happens.

    Parameters
    ----------
    disturb : does something to a node or a job, at random moments; says whether there was one to do it to.
    times : that something is to be done.
    kills : whether that kills jobs; if not, they do nothing again at all.
    """
    jobs, chance = five_jobs(longer=3), random.Random(0)
    directories = [backend.directory(job.name) for job in jobs]
    seen, told, num_done = list[Seen](), list[Event](), 0
    # The main thread disturbs, for Ray starts its nodes from no other one.
    with ThreadPoolExecutor(1) as pool:
        patience = Patience(limit_s=LIMIT_S)
        running = pool.submit(
            run_fleet, jobs, backend.cluster, srtf(), backend, patience=patience, tell=told.append
        )
        while num_done < times and not running.done():
            time.sleep(chance.uniform(0.2, 2.0))
            seen.extend(map(Seen.now, directories))
            num_done += disturb(chance)
        run = running.result()
    assert num_done == times, "the jobs ended before"
    assert sorted(run.names) == [job.name for job in jobs], told
    assert [event.what for event in told].count(Happening.ENDS) == len(jobs), told
    for each in seen:
        each.check()
    for job, directory in zip(jobs, directories, strict=True):
        check_losses(directory, undisturbed, int(job.work))
        check_done_again(directory, times if kills else 0)


def kill_somebody(folder: Path, chance: random.Random) -> bool:
    """Kill a process of a job of a folder, one that trains or one that waits for those; whether there was any."""
    directories = [JobDirectory(path) for path in sorted(folder.glob("*"))]
    if found := [
        pid for directory in directories for pid in (*directory.groups(), *rank_processes(directory))
    ]:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(chance.choice(found), signal.SIGKILL)
            return True
    return False


def check_lost_node(
    backend: DirectoryBackend,
    undisturbed: Mapping[int, float],
    lose: Callable[[int], None],
    give_back: Callable[[int], None],
) -> None:
    """A job loses its node and waits for it, as no other has as many devices; one that fits elsewhere runs meanwhile.

    Parameters
    ----------
    lose, give_back : make a node go away without notice, and come back.
    """
    told: list[Event] = []
    driver = Driver(backend.cluster, srtf(), backend, tell=told.append)
    began_s, node = time.monotonic(), int(backend.cluster.devices_per_node.argmax())

    def reaches(holds: Callable[[], bool]) -> bool:
        driver.step(time.monotonic() - began_s)
        return holds()

    def heard(what: Happening) -> list[str]:
        return [event.job.name for event in told if event.what is what]

    wide, narrow = (
        training_job(name, 0.0, n, trial_training(s)) for name, n, s in (("a", 2, 20_000), ("b", 1, 16))
    )
    try:
        driver.submit(wide, 0.0)
        wait_for(lambda: reaches(lambda: backend.directory("a").saved_steps() >= 4))
        lose(node)
        wait_for(lambda: reaches(lambda: driver.cluster.away == {node}))
        assert "a" in heard(Happening.LOSES_NODE) + heard(Happening.FAILS), told
        driver.submit(narrow, time.monotonic() - began_s)
        wait_for(lambda: reaches(lambda: heard(Happening.ENDS) == ["b"]))
        assert driver.names == ["a"]
        assert not driver.running, told
        wait_for(lambda: not rank_processes(backend.directory("a")))
        saved = backend.directory("a").saved_steps()
        give_back(node)
        wait_for(lambda: reaches(lambda: backend.directory("a").saved_steps() > saved))
        assert not driver.cluster.away
        assert not driver.given_up
    finally:
        backend.close()
    check_losses(backend.directory("a"), undisturbed, 8)
    check_losses(backend.directory("b"), undisturbed, 16)


def check_recovery(
    backend: DirectoryBackend, another: Callable[[], DirectoryBackend], undisturbed: Mapping[int, float]
) -> None:
    """A job over two nodes cannot run twice, can be adopted, ends as one when a process is killed, and goes on."""
    job = training_job("victim", 0.0, 2, trial_training(400))
    over_two_nodes = Grant((0, backend.cluster.num_devices - 1))
    backend.start(job, over_two_nodes)
    wait_for(lambda: backend.directory("victim").saved_steps() >= 4)
    with pytest.raises(FleetError, match="runs already"):
        another().start(job, Grant((1,)))
    second = another()
    assert second.adopt(job, over_two_nodes)
    assert second.progress("victim").failure is None
    assert not another().adopt(training_job("nobody", 0.0, 1, trial_training(8)), Grant((0,)))
    pids = rank_processes(backend.directory("victim"))
    assert len(pids) == 2
    assert len(set(map(os.getsid, pids))) == 2  # each has its own part of a shared core
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: second.is_over("victim"))
    assert not rank_processes(backend.directory("victim"))
    progress = second.progress("victim")
    assert progress.failure is not None
    assert progress.killed
    assert progress.steps >= 4
    second.start(job, Grant((1,)))
    wait_for(lambda: second.directory("victim").saved_steps() > progress.steps)
    second.close()
    assert not rank_processes(backend.directory("victim"))
    assert second.progress("victim").steps > progress.steps
    check_losses(backend.directory("victim"), undisturbed, 6)


def check_sharing(backend: DirectoryBackend, undisturbed: Mapping[int, float]) -> None:
    """Two jobs have the same two devices, more than their node has for whole ones, and make progress at once."""
    first = int(backend.cluster.first_device[int(backend.cluster.devices_per_node.argmax())])
    devices = (first, first + 1)
    backend.start(training_job("long", 0.0, 2, trial_training(400)), Grant(devices, 0.6, partners=("short",)))
    backend.start(training_job("short", 0.0, 2, trial_training(100)), Grant(devices, 0.4, partners=("long",)))
    wait_for(lambda: min(backend.progress(name).steps for name in ("long", "short")) >= 2)
    seen = backend.progress("long").steps
    wait_for(lambda: backend.progress("long").steps > seen)
    assert not backend.is_over("short")
    wait_for(lambda: backend.is_over("short"))
    assert backend.progress("short").ended
    wait_for(lambda: backend.progress("long").steps >= 24)
    backend.close()
    for name in ("long", "short"):
        check_losses(backend.directory(name), undisturbed, 24)


def check_shares_change(backend: DirectoryBackend, undisturbed: Mapping[int, float]) -> None:
    """Under AntMan on one device, a guaranteed job comes to an opportunistic one, which runs on with a smaller share."""
    jobs = [
        training_job("rest", 0.0, 1, trial_training(400), guaranteed=False, busy=0.9),
        training_job("first", 2.0, 1, trial_training(24), guaranteed=True, busy=0.5),
    ]
    told: list[Event] = []
    run = run_fleet(
        jobs, backend.cluster, AntMan(), backend, patience=Patience(limit_s=LIMIT_S), tell=told.append
    )
    runs = [
        (event.job.name, event.grant.share) for event in told if event.what is Happening.RUNS and event.grant
    ]
    assert runs == [("rest", 0.9), ("first", 0.5)], told
    ended = [event.what for event in told].index(Happening.ENDS)
    assert [event.what for event in told[:ended]].count(Happening.RUNS) == 2, told
    assert sorted(run.names) == ["first", "rest"], told
    for job in jobs:
        check_losses(backend.directory(job.name), undisturbed, 24)


def check_sharing_is_refused(backend: DirectoryBackend) -> None:
    """A backend that was not made for it gives no part of a device."""
    with pytest.raises(
        FleetError, match=r"'half' is to have 0\.5 of each .*\(shares=False\) gives whole devices"
    ):
        backend.start(training_job("half", 0.0, 1, trial_training(8)), Grant((0,), share=0.5))


def check_losses(directory: JobDirectory, undisturbed: Mapping[int, float], steps: int) -> None:
    """The losses of the first steps are those of an undisturbed run."""
    losses = directory.losses()
    expected = {step: undisturbed[step] for step in range(steps)}
    assert {step: losses.get(step) for step in expected} == pytest.approx(expected, rel=1e-5)


def rank_processes(directory: JobDirectory) -> list[int]:
    """Processes that train a job: children of those that backends start on its nodes."""
    found: list[int] = []
    for group in directory.groups():
        with suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(group).children()]
    return found


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait until something is so."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s, "waited in vain"
        time.sleep(0.05)


def nodes_of(*devices_per_node: int) -> Cluster:
    """Nodes of this machine."""
    return Cluster.of_pools([("local", 1, count) for count in devices_per_node])

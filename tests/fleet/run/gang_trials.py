"""What every backend must be able to do with the devices of a job: change their number, and have all of them or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from backend_trials import LIMIT_S, LONGEST, check_losses, trial_training, wait_for
from checkpoints_kept import logged

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.run_fleet import run_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.job import Grant
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class Resizing:
    """Gives the only job other numbers of devices as it gets on.

    Attributes
    ----------
    sizes : steps from which on it has so many devices, ascending.
    """

    sizes: tuple[tuple[int, int], ...]
    needs: frozenset[Need] = frozenset()
    preempts: bool = True

    def start(self, cluster: Cluster) -> None:
        """Nothing is remembered."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Asks again at once."""
        wide = [num_devices for step, num_devices in self.sizes if snapshot.done[0] >= step][-1]
        return Allocation(Queue(np.array([0]), np.array([wide])), ask_again_s=snapshot.now_s), None


def check_resizing(backend: DirectoryBackend, undisturbed: Mapping[int, float]) -> None:
    """A job grows from one device to all, shrinks to two, and does every step once, with the losses of one that stays."""
    training = trial_training(LONGEST)
    job = training_job("a", 0.0, 1, training, Predicted(training, {1: 10.0, 2: 12.0, 4: 14.0}), max_devices=4)
    policy = Resizing(((0, 1), (12, 4), (36, 2)))
    told: list[Event] = []
    run_fleet([job], backend.cluster, policy, backend, patience=Patience(limit_s=LIMIT_S), tell=told.append)
    steps, processes = zip(*logged(backend.directory("a")), strict=True)
    assert list(steps) == list(range(LONGEST)), told
    assert [count for count, _ in groupby(processes)] == [1, 4, 2], told
    check_losses(backend.directory("a"), undisturbed, LONGEST)


def check_gangs(backend: DirectoryBackend, undisturbed: Mapping[int, float]) -> None:
    """Two gangs of all devices find one of these taken: they hold none of the others, and later have all, one by one."""
    told: list[Event] = []
    driver = Driver(backend.cluster, fifo(backfill=True), backend, tell=told.append)
    began_s, gangs = time.monotonic(), [training_job(name, 0.0, 4, trial_training(24)) for name in "ab"]

    def reaches(holds: Callable[[], bool]) -> bool:
        driver.step(time.monotonic() - began_s)
        assert sum(bool(backend.directory(name).groups()) for name in ("blocker", "a", "b")) <= 1, told
        return holds()

    try:
        driver.submit(training_job("blocker", 0.0, 1, trial_training(20_000)), 0.0)
        wait_for(lambda: reaches(lambda: backend.progress("blocker").steps >= 4))
        for gang in gangs:
            driver.submit(gang, time.monotonic() - began_s)
        wait_for(lambda: reaches(lambda: backend.progress("blocker").steps >= 12))
        assert driver.allocator.free.total == 3
        assert not any(backend.directory(gang.name).path.exists() for gang in gangs)
        driver.cancel("blocker", time.monotonic() - began_s)
        wait_for(lambda: reaches(lambda: not driver.names))
    finally:
        backend.close()
    for gang in gangs:
        assert set(logged(backend.directory(gang.name))) == {(step, 4) for step in range(24)}
        check_losses(backend.directory(gang.name), undisturbed, 24)


def check_gangs_of_a_manager(
    backend: DirectoryBackend, undisturbed: Mapping[int, float], num_free: Callable[[], float]
) -> None:
    """The same where nobody but the manager keeps the gangs apart, as it does with jobs of others.

    Parameters
    ----------
    num_free : devices that the manager could give now.
    """
    names = ("blocker", "a", "b")
    backend.start(training_job("blocker", 0.0, 1, trial_training(20_000)), Grant((3,)))
    wait_for(lambda: backend.progress("blocker").steps >= 4)
    for name in names[1:]:
        backend.start(training_job(name, 0.0, 4, trial_training(24)), Grant((0, 1, 2, 3)))

    def reaches(holds: Callable[[], bool]) -> bool:
        assert sum(bool(backend.directory(name).groups()) for name in names) <= 1
        return holds()

    try:
        wait_for(lambda: reaches(lambda: backend.progress("blocker").steps >= 100))
        assert num_free() == 3
        assert not any(backend.is_over(name) for name in names)
        backend.stop(["blocker"])
        wait_for(lambda: reaches(lambda: all(backend.is_over(name) for name in names)))
    finally:
        backend.close()
    for name in names[1:]:
        assert backend.progress(name).ended
        assert set(logged(backend.directory(name))) == {(step, 4) for step in range(24)}
        check_losses(backend.directory(name), undisturbed, 24)

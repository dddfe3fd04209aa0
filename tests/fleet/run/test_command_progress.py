"""Progress of commands in a driver: as they report it, or as it was declared if they report nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from faulty_backend import FaultyBackend

from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.patience import Failures, Patience
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(1, 2, "local")
NOTHING = Progress(None)
JOB = declared_job("a", 0.0, 2, 100.0, command=Command("train", "/", steps=50), batch_size=8)


@dataclass
class Telling(FaultyBackend):
    """A backend whose jobs have the progress that a test sets."""

    told: Progress = NOTHING

    def progress(self, name: str) -> Progress:
        return self.told


def test_work_is_what_the_command_tells_or_what_was_declared() -> None:
    backend = Telling()
    driver = Driver(CLUSTER, fifo(), backend)
    driver.submit(JOB, 0.0)
    driver.step(0.0)
    driver.step(10.0)
    assert driver.done()["a"].work == pytest.approx(10.0)
    backend.told = Progress(25, step_s=0.5, losses=((10.0, 3.0),))
    driver.step(20.0)
    # Half of its steps are half of its work, of which the losses are told, too.
    assert driver.done()["a"].work == 50.0
    (row,) = driver.running
    report = driver.table.reports[row]
    assert report.losses == ((20.0, 3.0),)
    (timing,) = report.timings
    assert (timing.num_devices, timing.local_batch, timing.step_s) == (2, 4, 0.5)
    backend.told = NOTHING
    driver.step(25.0)
    assert driver.done()["a"].work == pytest.approx(55.0)
    driver.step(500.0)  # it takes longer than was declared, which does not end it
    assert driver.done()["a"].work == 100.0
    assert driver.names == ["a"]


def test_failures_are_forgotten_when_steps_are_told() -> None:
    failures, patience = Failures(), Patience(max_failures=2)
    silent, told = Progress(None, failure="it fell"), Progress(3, failure="it fell")
    assert [failures.note(silent, float(now_s), patience) for now_s in range(2)] == [False, False]
    assert not failures.note(told, 3.0, patience)
    given_up = [failures.note(each, 4.0, patience) for each in (silent, told)]
    assert given_up == [False, True]

"""Jobs that share devices under a policy in rounds, driven on a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.directory_backend import require_whole
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.past import Done, Past
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Grant, Job, Rate, Spot
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(1, 1)


class Sociable(Predicted):
    """A training that has three quarters of its speed beside another."""

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        return Rate(0.75 if grant.partners else 1.0, float(self.training.steps), None)

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return self.rate(spot, grant, 0.0, None).work_per_s


@dataclass
class Told:
    """A backend that does what the test says."""

    whole: bool = False
    runs: dict[str, Grant] = field(default_factory=dict)
    over: dict[str, Progress] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    def start(self, job: Job, grant: Grant) -> None:
        if self.whole:
            require_whole(job.name, grant, "this backend")
        self.runs[job.name] = grant

    def adopt(self, job: Job, grant: Grant) -> bool:
        return job.name in self.runs

    def progress(self, name: str) -> Progress:
        return self.over.get(name, Progress(1))

    def away(self) -> frozenset[int]:
        return frozenset()

    def leave(self, name: str, is_lost: bool = False) -> None:
        self.stopped.append(name)
        self.runs.pop(name, None)

    def has_left(self, name: str) -> bool:
        return name not in self.runs

    def held(self, name: str) -> frozenset[int] | None:
        return None

    def close(self) -> None:
        self.runs.clear()


def job(name: str) -> Job:
    training = Training("gpt-tiny", 4, 5000)
    return training_job(name, 0.0, 1, training, Sociable(training))


def driver(backend: Told) -> Driver:
    scheduler = scheduler_of("gavel_max_min(space_sharing=True)", round_s=10.0)
    return Driver(CLUSTER, scheduler.policy, backend, rounds=scheduler.rounds)


def pair(backend: Told) -> Driver:
    found = driver(backend)
    for name in ("a", "b"):
        found.submit(job(name), 0.0)
    found.step(0.0)
    return found


def partners(found: Driver) -> dict[str, tuple[str, ...]]:
    return {found.table.job(row).name: grant.partners for row, grant in found.running.items()}


def test_two_share_a_device_until_one_ends() -> None:
    backend = Told()
    found = pair(backend)
    assert {name: grant.devices for name, grant in backend.runs.items()} == {"a": (0,), "b": (0,)}
    assert partners(found) == {"a": ("b",), "b": ("a",)}
    found.step(10.0)
    backend.over["a"] = Progress(5000, ended=True)
    found.step(12.0)
    assert partners(found) == {"b": ()}
    found.step(20.0)
    assert partners(found) == {"b": ()}
    assert backend.stopped == []


@pytest.mark.parametrize("cancelled", [False, True])
def test_one_that_leaves_leaves_the_other_where_it_is(cancelled: bool) -> None:
    backend = Told()
    found = pair(backend)
    if cancelled:
        found.cancel("a", 3.0)
    else:
        backend.over["a"] = Progress(3, failure="it fell")
        found.step(3.0)
        backend.over.clear()
    assert partners(found) == {"b": ()}
    found.step(10.0)
    assert partners(found) == ({"b": ()} if cancelled else {"a": ("b",), "b": ("a",)})
    assert backend.stopped == ["a"]


def test_partners_are_still_partners_after_a_restart() -> None:
    backend = Told()
    pair(backend)
    after = driver(backend)
    for name in ("a", "b"):
        after.restore(job(name), 5.0, Past(backend.runs[name], Done(attained_device_s=5.0)))
    third = job("c")
    after.submit(third, 6.0)
    for now_s in (10.0, 20.0, 30.0, 40.0):
        after.step(now_s)
        assert len(backend.runs) == 2
        names = set(backend.runs)
        assert partners(after) == {name: tuple(names - {name}) for name in names}


def test_a_backend_that_gives_whole_devices_fails_jobs_that_share() -> None:
    told, scheduler = list[Event](), scheduler_of("gavel_max_min(space_sharing=True)", round_s=10.0)
    found = Driver(CLUSTER, scheduler.policy, Told(whole=True), rounds=scheduler.rounds, tell=told.append)
    for name in ("a", "b"):
        found.submit(job(name), 0.0)
    found.step(0.0)
    why = "it cannot be started: job 'a' is to have 0.5 of each of its devices, but this backend gives whole devices"
    assert next(event.why[: len(why)] for event in told if event.what is Happening.FAILS) == why

"""What the driver does when nodes go away, and what it writes down meanwhile; the backend does what a test says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from test_partners import Told

from trainyard.fleet.mechanism.waiting import _ordinal
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.past import Done, Past
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

CLUSTER = Cluster.uniform(2, 1, "local")
TRAINING = Training("gpt-tiny", 4, 100)


@dataclass
class Nodes(Told):
    """The same with nodes that go away, and jobs that do not leave them at once."""

    gone: frozenset[int] = frozenset()
    leaving: set[str] = field(default_factory=set)

    def away(self) -> frozenset[int]:
        return self.gone

    def leave(self, name: str, is_lost: bool = False) -> None:
        if is_lost:
            self.leaving.add(name)
        super().leave(name)

    def has_left(self, name: str) -> bool:
        return name not in self.leaving


def job(name: str, steps_per_s: float = 1.0, deadline_s: float | None = None) -> Job:
    return training_job(name, 0.0, 1, TRAINING, Predicted(TRAINING, {1: steps_per_s}), deadline_s=deadline_s)


def driver(policy: str, backend: Told, told: list[Event], cluster: Cluster = CLUSTER) -> Driver:
    scheduler = scheduler_of(policy)
    return Driver(
        cluster, scheduler.policy, backend, place=scheduler.place, rounds=scheduler.rounds, tell=told.append
    )


def test_devices_that_are_lost_between_decisions_are_not_in_use() -> None:
    """A job that failed 10 s after its start has them again at the next round, and the same after a cancelled one."""
    scheduler, backend = scheduler_of("srtf", round_s=100.0), Nodes()
    driven = Driver(Cluster.uniform(1, 1, "local"), scheduler.policy, backend, rounds=scheduler.rounds)
    driven.submit(job("a"), 0.0)
    driven.step(0.0)
    del backend.runs["a"]
    backend.over["a"] = Progress(1, failure="gone")
    driven.step(10.0)
    backend.over.clear()
    driven.step(100.0)
    driven.cancel("a", 120.0)
    driven.submit(job("b"), 130.0)
    driven.step(200.0)
    backend.over["b"] = Progress(100, ended=True)
    driven.step(210.0)
    run = driven.allocator.result("")
    moments_s, counts, _ = run.series
    assert dict(zip(moments_s, counts, strict=True)) == {0: 1, 10: 0, 100: 1, 120: 0, 200: 1, 210: 0}
    assert run.busy == pytest.approx(40 / 210)


def test_each_worker_of_a_gang_lies_on_one_node() -> None:
    backend = Nodes()
    driven = driver("fifo", backend, [], Cluster.uniform(3, 3, "local"))
    for name, size, gang in (("first", 2, ()), ("pairs", 4, (2, 2))):
        known = Predicted(TRAINING, {size: 1.0})
        driven.submit(training_job(name, 0.0, size, TRAINING, known, gang=gang), 0.0)
    driven.step(0.0)
    assert backend.runs == {"first": Grant((0, 1)), "pairs": Grant((3, 4, 6, 7))}


def test_a_job_does_no_work_before_it_has_left() -> None:
    backend, told = Nodes(), list[Event]()
    driven = driver("srtf", backend, told)
    driven.submit(job("a"), 0.0)
    driven.step(0.0)
    assert backend.runs == {"a": Grant((0,))}
    backend.gone = frozenset({0})
    driven.step(1.0)
    assert driven.cluster.away == {0}
    assert [event.what for event in told[2:]] == [Happening.LOSES_NODE, Happening.RUNS]
    assert "node 0 cannot be used" in str(told[2])
    driven.step(50.0)
    assert not backend.runs
    assert driven.done()["a"].work == 1.0  # what it said last
    backend.leaving.clear()
    driven.step(60.0)
    assert backend.runs == {"a": Grant((1,))}
    backend.gone = frozenset({0, 1})
    driven.step(61.0)
    assert driven.waiting == {"a": "no node of the cluster can be used now"}
    backend.gone = frozenset()
    backend.leaving.clear()
    driven.step(62.0)
    assert backend.runs == {"a": Grant((0,))}
    assert driven.done()["a"].work == 1.0


def test_a_job_that_has_not_left_is_cancelled() -> None:
    backend, told = Nodes(), list[Event]()
    driven = driver("srtf", backend, told)
    driven.submit(job("a"), 0.0)
    driven.step(0.0)
    backend.gone = frozenset({0})
    driven.step(1.0)
    driven.cancel("a", 2.0)
    driven.step(3.0)
    assert not driven.names
    assert driven.ending == {"a"}  # the backend is asked until it is gone
    backend.leaving.clear()
    driven.step(4.0)
    assert told[-1].what is Happening.CANCELLED
    assert not driven.ending


def test_a_job_that_fails_at_once_again_is_started_later() -> None:
    backend, told = Nodes(), list[Event]()
    driven = driver("srtf", backend, told)
    driven.submit(job("a"), 0.0)
    now_s, started_s = 0.0, []
    while driven.names:
        driven.step(now_s)
        if "a" in backend.runs:
            started_s.append(now_s)
            del backend.runs["a"]
            backend.over["a"] = Progress(3, failure="its processes are gone")
        else:
            backend.over.clear()
        now_s += 1.0
        assert now_s < 300.0
    assert len(started_s) == 5
    waits = [later - earlier for earlier, later in pairwise(started_s)]
    assert [round(wait / 5) * 5 for wait in waits] == [0, 5, 20, 80]
    assert "failed 5 times" in driven.given_up["a"]
    driven.step(now_s)
    assert not any((driven.given_up, driven._running._failures))  # a daemon would remember them for ever


def test_what_a_job_finds_lacking_is_shown_while_it_waits_for_it() -> None:
    """And only then; a run gives up at last."""
    backend, shown = Nodes(), set[tuple[bool, str]]()
    driven, now_s = driver("srtf", backend, []), 0.0
    driven.submit(job("a"), 0.0)
    while driven.names:
        driven.step(now_s)
        shown.add(("a" in backend.runs, driven.trouble))
        if backend.runs.pop("a", None):
            backend.over["a"] = Progress(3, failure="no space on the disk", lacks=True)
        else:
            backend.over.clear()
        now_s += 1.0
        assert now_s < 1000.0
    assert shown - {(False, "")} == {(True, ""), (False, "no space on the disk")}
    assert re.fullmatch(r"job 'a' could not go on for 6\d\d s: no space .*", driven.given_up["a"])


def test_a_job_that_runs_can_be_refused() -> None:
    """By a scheduler that was started anew, when its deadline has come too near."""
    backend, told, cluster = Told(), list[Event](), Cluster.uniform(1, 1, "local")
    driven = driver("elasticflow", backend, told, cluster)
    late = job("a", deadline_s=101.0)
    backend.runs["a"] = Grant((0,))
    driven.restore(late, 60.0, Past(Grant((0,)), Done(20.0, 60.0, 60.0), 0.0))
    driven.step(60.0)
    assert [event.what for event in told] == [Happening.STAYS, Happening.LEAVES, Happening.REFUSED]
    assert not backend.runs
    assert not driven.names


def test_who_waits_is_told_why() -> None:
    backend = Nodes()
    driven = driver("fifo", backend, [])
    wide = training_job("wide", 0.0, 2, TRAINING, Predicted(TRAINING, {2: 1.0}))
    for each in (job("a"), wide, job("b")):
        driven.submit(each, 0.0)
    driven.step(0.0)
    assert driven.waiting == {
        "wide": "asks for 2 devices, 1 is free; it is the 1st of those that wait",
        "b": "asks for 1 device, 1 is free; it is the 2nd of those that wait, and none starts before the one that is "
        "before it",
    }
    backend.over["a"] = Progress(100, ended=True)
    driven.step(1.0)
    assert driven.waiting == {"b": "asks for 1 device, 0 are free; it is the 1st of those that wait"}


def test_who_waits_for_its_turn_is_told_so_in_every_round() -> None:
    """The policy decides once, for several rounds."""
    scheduler, backend = scheduler_of("gavel_max_min", round_s=10.0), Nodes()
    driven = Driver(Cluster.uniform(1, 1, "local"), scheduler.policy, backend, rounds=scheduler.rounds)
    for name in ("a", "b"):
        driven.submit(job(name), 0.0)
    waited = []
    for now_s in (0.0, 10.0, 20.0):
        driven.step(now_s)
        ((name, why),) = driven.waiting.items()
        assert why == "it is to have devices for 50 % of the time, and its turn is in a later round"
        waited.append(name)
    assert set(waited) == {"a", "b"}
    assert driven.notes.num_decisions == 1


def test_what_a_policy_said_holds_in_rounds_without_a_decision() -> None:
    scheduler, backend = scheduler_of("gavel_max_min", round_s=10.0), Nodes(gone=frozenset({1}))
    driven = Driver(parse_cluster("1x1xlocal+1x1xT4"), scheduler.policy, backend, rounds=scheduler.rounds)
    driven.submit(job("a"), 0.0)
    driven.submit(replace(job("b"), device_types=("T4",)), 0.0)
    for now_s in (0.0, 10.0, 20.0):
        driven.step(now_s)
        assert driven.waiting == {"b": "nodes that it needs cannot be used now"}
    assert driven.notes.num_decisions == 1


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (23, "23rd"),
        (112, "112th"),
    ],
)
def test_places_in_words(place: int, said: str) -> None:
    assert _ordinal(place) == said

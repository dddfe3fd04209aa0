"""On whom the blame is put when a policy fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.place.nodes import ANYWHERE
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import Recorder
from trainyard.fleet.run import decision
from trainyard.fleet.run.decision import UndecidedError, decide, look_at
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload import level1
from trainyard.fleet.workload.level1 import ask_through
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(1, 4, "local")


class Failing(Policy):
    """Fails on jobs of some names, and counts how often it is asked."""

    needs = fifo().needs
    preempts = False

    def __init__(self, bad: str, error: Exception) -> None:
        self.bad, self.error, self.num_asked = bad, error, 0

    def start(self, cluster: Cluster) -> Any:
        return fifo().start(cluster)

    def decide(self, snapshot: Snapshot, state: Any) -> Any:
        self.num_asked += 1
        if any(job.name.startswith(self.bad) for job in snapshot.jobs):
            raise self.error
        return fifo().decide(snapshot, state)


def snapshot(*names: str) -> Snapshot:
    allocator = Allocator(CLUSTER, fifo(), ANYWHERE, Costs(), Recorder(keep_spans=False))
    training = Training("gpt-tiny", 4, 10)
    for name in names:
        allocator.enter(training_job(name, 0.0, 1, training, Predicted(training, {1: 1.0})), 0.0)
    table = allocator.table
    return Snapshot(0.0, CLUSTER, np.array([4]), frozenset(), table.active.copy(), table)


@pytest.mark.parametrize("names", [["bad"], ["bad1", "bad2"], [f"job{i}" for i in range(200)] + ["bad"]])
def test_those_on_which_it_fails_are_found(names: list[str]) -> None:
    policy = Failing("bad", OverflowError("too large"))
    with pytest.raises(UndecidedError, match="too large") as found:
        decide(policy, snapshot(*names), policy.start(CLUSTER))
    assert list(found.value.jobs) == [i for i, name in enumerate(names) if name.startswith("bad")]
    assert "too large" in next(iter(found.value.jobs.values()))
    assert policy.num_asked < 25


def test_it_is_not_asked_about_each_of_many() -> None:
    policy = Failing("bad", OverflowError("too large"))
    with pytest.raises(UndecidedError, match="too large") as found:
        decide(policy, snapshot(*(f"bad{i}" for i in range(1000))), policy.start(CLUSTER))
    assert policy.num_asked <= decision._MOST_QUESTIONS + 2
    assert len(found.value.jobs) > 20


@pytest.mark.parametrize(
    ("bad", "error"), [("", ZeroDivisionError("no rest")), ("a", BackendError("no answer"))]
)
def test_no_job_is_to_blame_for_what_fails_on_any(bad: str, error: Exception) -> None:
    policy = Failing(bad, error)
    with pytest.raises(type(error), match=f"^{error}$"):
        decide(policy, snapshot("a", "b"), policy.start(CLUSTER))
    assert policy.num_asked <= 2


@pytest.mark.parametrize("policy", ["srtf", "gavel_max_min"])
def test_what_was_looked_at_is_not_predicted_again(policy: str) -> None:
    asked: list[Any] = []
    ask_through(lambda question, about: asked.append((question, about)) or 1.0)
    scheduler, job = scheduler_of(policy), training_job("a", 0.0, 1, Training("gpt-tiny", 4, 10))
    look_at(scheduler.policy, CLUSTER, job, 0.0)
    seen = list(asked)
    assert seen
    allocator = Allocator(CLUSTER, scheduler.policy, ANYWHERE, Costs(), Recorder(keep_spans=False))
    allocator.enter(job, 5.0)
    rows, free = allocator.table.active.copy(), allocator.free.by_node
    moment = Snapshot(5.0, CLUSTER, free, scheduler.policy.needs, rows, allocator.table)
    decide(scheduler.policy, moment, scheduler.policy.start(CLUSTER))
    assert asked == seen
    ask_through(level1._here)

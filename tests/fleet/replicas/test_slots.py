"""Slots: decisions far enough apart, and starts that are noted one decision late."""

from __future__ import annotations

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.policy import Priority
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.slots import Slots
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster

FIRST = Priority(lambda snapshot: snapshot.arrival_s, preempts=True)
LAST = Priority(lambda snapshot: -snapshot.arrival_s, preempts=True)
FREE = Slots(60.0, start_s=0.0, doubling_s=0.0, renewal_s=0.0)


def simulated(jobs: list[Job], slots: Slots, policy: Priority = FIRST) -> FleetRun:
    return simulate_fleet(jobs, Cluster.uniform(1, 4), policy, rounds=slots)


def finishes(jobs: list[Job], slots: Slots, policy: Priority = FIRST) -> dict[str, float]:
    run = simulated(jobs, slots, policy)
    return dict(zip(run.names, run.finish_s.tolist(), strict=True))


def test_what_happens_in_a_slot_waits_for_its_end() -> None:
    """The first job has the cluster until the slot ends; who comes long after a decision is seen at once."""
    jobs = [
        declared_job("first", 7, 4, 10),
        declared_job("second", 9, 4, 100),
        declared_job("third", 500, 4, 5),
    ]
    assert finishes(jobs, FREE) == {"first": 17, "second": 67 + 100, "third": 505}


def test_a_start_is_noted_at_the_next_decision() -> None:
    """Of four devices it takes 4 + 2 * 2 s; a job that ends before the next decision has lost nothing."""
    slots = Slots(60.0, start_s=4.0, doubling_s=2.0)
    alone = [declared_job("wide", 0, 4, 500)]
    assert finishes(alone, slots) == {"wide": 500}
    assert finishes([*alone, declared_job("late", 100, 1, 50)], slots) == {"wide": 508, "late": 508 + 50}


def test_who_loses_its_devices_before_that_keeps_what_it_did() -> None:
    """The wide job works from 0 to 100 s but for 8 s, and goes on when the other one has ended."""
    jobs = [declared_job("wide", 0, 4, 500), declared_job("small", 100, 1, 90)]
    found = finishes(jobs, Slots(60.0), LAST)
    assert found == {"small": 190, "wide": 190 + 500 - 92}


@pytest.mark.parametrize(("every", "end_s"), [(1, 1000 + 8 + 35 + 35), (2, 1000 + 8 + 35), (3, 1008)])
def test_everything_that_runs_is_renewed(every: int, end_s: float) -> None:
    """At the second and third decision, of which renewals come every so many; they take 8 + 27 s."""
    jobs = [declared_job("wide", 0, 4, 1000), *[declared_job(f"late{i}", 100.0 * i, 1, 5) for i in (1, 2)]]
    assert finishes(jobs, Slots(60.0, renewed_every=every))["wide"] == end_s


def test_a_pause_is_no_service() -> None:
    run = simulated([declared_job("wide", 0, 4, 500), declared_job("late", 100, 1, 50)], Slots(60.0))
    assert run.device_s.tolist() == [4 * 500, 50]


def test_who_takes_nothing_away_is_not_asked_often_enough() -> None:
    with pytest.raises(FleetError, match="takes devices away"):
        simulated([declared_job("wide", 0, 4, 500)], FREE, fifo())

"""When jobs of Tiresias go to other queues, where those that fit by number do not run, or others do."""

from __future__ import annotations

import pytest
from runs import finished

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.policies.tiresias.policy import tiresias
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.parse import parse_cluster


def apart(arrival_s: float, first_s: float) -> list[Job]:
    """Two jobs that come later and take a device of each node, so that the wide one has no place until they ran 100 s."""
    later = [declared_job(name, arrival_s, 1, 1000.0) for name in ("left", "right")]
    return [declared_job("first", 0.0, 1, first_s), declared_job("wide", 1.0, 2, 900.0), *later]


def test_a_job_without_a_place_is_not_looked_at_again_and_again() -> None:
    """Two tenths of a device-second before it would go to the next queue."""
    run = simulate_fleet(apart(500.9, 510.0), parse_cluster("2x2"), tiresias(thresholds=(100.0, 1000.0)))
    assert finished(run)["wide"] == pytest.approx(1001.0)  # it waits from 500.9 s to 600.9 s
    assert run.num_decisions < 30


def test_a_job_that_fits_by_number_and_has_no_place_begins_anew_in_time() -> None:
    """It ran from 1 s to 450 s; and takes devices back once it has waited a tenth of that."""
    policy = tiresias(thresholds=(100.0, 1000.0), promote_knob=0.1)
    run = simulate_fleet(apart(450.0, 460.0), parse_cluster("2x2"), policy)
    assert run.waiting_s[run.names.index("wide")] == pytest.approx(44.9)


def test_a_job_moves_in_time_where_others_are_not_on_the_type_that_they_are_counted_on() -> None:
    jobs = [
        declared_job("before", 0.0, 2, 300.0, device_types=("A",)),
        declared_job("either", 190.0, 1, 500.0),
        declared_job("wide", 200.0, 2, 100.0, device_types=("A",)),
    ]
    run = simulate_fleet(jobs, parse_cluster("1x2xA+1x1xB"), tiresias(thresholds=(100.0,)))
    assert finished(run) == {"before": 350.0, "wide": 400.0, "either": 690.0}


class _Asked(PolicyWrapper):
    """Notes in which queue the first job is."""

    queues: list[int]

    def decide(self, snapshot: Snapshot, state: object) -> tuple[Allocation, object]:
        allocation, line = super().decide(snapshot, state)
        self.queues.append(int(line.jobs[0, 0]))
        return allocation, line


def test_who_loses_a_node_beyond_a_threshold_has_gone_down() -> None:
    """While nobody waits nobody is looked at; when its node is lost, the job is, and then it waits in peace."""
    policy = _Asked(tiresias(thresholds=(100.0,), promote_knob=8.0))
    policy.queues = []
    hazards = Hazards(node_failure_every_s=5e3, node_repair_s=5e3, seed=3)
    run = simulate_fleet([declared_job("one", 0.0, 1, 4e4)], parse_cluster("1x1"), policy, hazards=hazards)
    assert run.num_failures > 2
    assert run.num_decisions < 20 * run.num_failures
    assert policy.queues.count(1) >= run.num_failures

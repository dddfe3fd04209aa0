"""Predicted and measured runs side by side."""

from __future__ import annotations

import pytest

from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.policies.queues import fifo, srtf
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.report.fleet_measured import measured_jobs

JOBS = [
    declared_job("long", 0.0, 2, 100.0),
    declared_job("short", 10.0, 1, 20.0),
    declared_job("next", 12.0, 1, 10.0),
]


def run(policy: Policy, **costs: float) -> FleetRun:
    """A run; one under another policy, or with other costs, stands for what was measured."""
    return simulate_fleet(JOBS, Cluster.uniform(1, 2), policy, costs=Costs(**costs))


def test_jobs_stand_in_the_order_in_which_they_really_ended() -> None:
    predicted, measured = run(fifo()), run(srtf(), start_s=1.0)
    *jobs, mean = measured_jobs(predicted, measured)
    assert [job.name for job in jobs] == ["next", "short", "long"]
    assert [job.place for job in jobs] == [(2, 1), (3, 2), (1, 3)]
    by_name = {job.name: job for job in jobs}
    assert by_name["short"].jct_s == (110.0, 21.0)
    assert by_name["short"].first_wait_s == (90.0, 0.0)
    assert [job.num_starts for job in jobs] == [(1, 1), (1, 1), (1, 2)]
    assert by_name["long"].jct_s[0] == 100.0
    assert by_name["long"].error == pytest.approx(1 - 100.0 / by_name["long"].jct_s[1])
    assert mean.place is None
    assert mean.jct_s == pytest.approx((predicted.completion_s.mean(), measured.completion_s.mean()))
    assert mean.first_wait_s == pytest.approx((predicted.first_wait_s.mean(), measured.first_wait_s.mean()))


def test_nothing_in_common() -> None:
    empty = simulate_fleet([], Cluster.uniform(1, 2), fifo())
    assert measured_jobs(run(fifo()), empty) == ()

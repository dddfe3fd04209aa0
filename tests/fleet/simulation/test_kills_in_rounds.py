"""A job that has had devices for as long as it may ends there, also within a round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.replicas.gavel_rounds import GavelRounds
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

JOBS = [
    replace(declared_job("long", 0.0, 1, 500.0), killed_after_s=130.0),
    replace(declared_job("short", 0.0, 1, 70.0), killed_after_s=130.0),
    declared_job("last", 0.0, 1, 30.0),
]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "gavel_max_min"])
def test_a_job_ends_when_its_time_is_up(policy: str) -> None:
    run = scheduler_of(policy, round_s=60.0).simulate(JOBS, Cluster.uniform(1, 1))
    had_s = dict(zip(run.names, run.device_s.tolist(), strict=True))
    assert had_s == pytest.approx({"long": 130.0, "short": 70.0, "last": 30.0})
    assert dict(zip(run.names, run.is_killed.tolist(), strict=True))["long"]
    assert run.num_killed == 1
    assert any(end_s % 60.0 for end_s in run.finish_s.tolist())


def test_rounds_of_a_published_program_say_why_they_end_no_job() -> None:
    """Their program sets the ends of jobs itself, in whole steps of a round."""
    policy = scheduler_of("gavel_max_min").policy
    with pytest.raises(FleetError, match=r"no time limits .*; simulate these in rounds of your own"):
        simulate_fleet(JOBS, Cluster.uniform(1, 1), policy, rounds=GavelRounds(60.0))
    assert len(simulate_fleet(JOBS, Cluster.uniform(1, 1), policy, rounds=Rounds(60.0)).names) == 3

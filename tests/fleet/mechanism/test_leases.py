"""Devices that jobs have until some moment."""

from __future__ import annotations

import pytest
from leases import Lending

from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster


def simulated(policy: Policy, *lengths_s: float, rounds: Rounds | None = None) -> FleetRun:
    """On one device, jobs that come one second after the other."""
    jobs: list[Job] = [declared_job(f"job{i}", float(i), 1, each) for i, each in enumerate(lengths_s)]
    return simulate_fleet(jobs, Cluster.uniform(1, 1), policy, rounds=rounds, keep_spans=True)


def finishes(run: FleetRun) -> dict[str, float]:
    return dict(zip(run.names, run.finish_s.tolist(), strict=True))


def test_devices_go_back_when_a_lease_ends() -> None:
    """Turns of 10 s: job0 0-10 and 20-25, job1 10-20 and 25-35 and 35-37, for it is alone then."""
    run = simulated(Lending(10.0), 15.0, 22.0)
    assert finishes(run) == {"job0": 25.0, "job1": 37.0}
    assert dict(zip(run.names, run.num_preempted.tolist(), strict=True)) == {"job0": 1, "job1": 2}
    assert [(span.job, span.start_s, span.end_s) for span in run.spans][:2] == [
        ("job0", 0.0, 10.0),
        ("job1", 10.0, 20.0),
    ]


def test_a_lease_that_is_given_anew_in_time_goes_on() -> None:
    """The policy is asked when it ends; whom it names again keeps its devices."""
    run = simulated(Lending(10.0, preempts=True), 25.0, 5.0)
    assert finishes(run) == {"job0": 25.0, "job1": 30.0}
    assert not run.num_preempted.any()
    assert run.num_decisions == 5  # when each comes, when the lease ends at 11 s and 21 s, and when job0 ends


def test_a_lease_is_over_with_its_job() -> None:
    """job1 begins when job0 ends, within the lease of that; its own is not cut short by it."""
    run = simulated(Lending(10.0), 4.0, 9.0, 3.0)
    assert finishes(run) == {"job0": 4.0, "job1": 13.0, "job2": 16.0}
    assert not run.num_preempted.any()


def test_in_rounds_leases_end_when_a_round_does() -> None:
    """The leases of 10 s are over at 16 s and at 32 s; job0 ends at 41 s, and the next round begins at 48 s."""
    run = simulated(Lending(10.0), 25.0, 22.0, rounds=Rounds(8.0))
    assert finishes(run) == {"job0": 41.0, "job1": 54.0}


@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("nan")])
def test_a_lease_ends_after_it_begins(lease_s: float) -> None:
    with pytest.raises(FleetError, match=r"gives job 'job0' devices until .* give a later time"):
        simulated(Lending(lease_s), 1.0)

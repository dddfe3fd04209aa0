"""Devices that jobs have until some moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from leases import Lending

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
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


@dataclass(frozen=True)
class Noting(Lending):
    """Notes when, of every job, the lease ends and how long it would take by an equal share."""

    needs: frozenset[Need] = frozenset({"length", "speed"})
    seen: list[tuple[float, list[float], list[float]]] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        self.seen.append((snapshot.now_s, snapshot.lease_until_s.tolist(), snapshot.fair_s.tolist()))
        return super().decide(snapshot, state)


def test_a_policy_sees_the_leases_that_it_gave() -> None:
    """job0 has the device until 10 s and anew until 20 s, and ends at 15 s; job1 has it until 25 s."""
    policy = Noting(10.0, preempts=True)
    simulated(policy, 15.0, 22.0)
    inf = float("inf")
    ends = [(now_s, leases) for now_s, leases, _ in policy.seen]
    assert ends == [
        (0.0, [inf]),
        (1.0, [10.0, inf]),
        (11.0, [11.0, inf]),
        (15.0, [inf]),
        (25.0, [25.0]),
        (35.0, [35.0]),
    ]


def test_a_policy_sees_what_an_equal_share_would_take() -> None:
    """There is one job until 1 s, and two until 15 s; from then on job1 is alone."""
    policy = Noting(10.0, preempts=True)
    run = simulated(policy, 15.0, 22.0)
    fair = {now_s: times_s for now_s, _, times_s in policy.seen}
    assert fair[0.0] == [15.0]
    assert fair[1.0] == [15.0, 44.0]  # of job0, one job on average so far
    assert fair[11.0] == pytest.approx([15.0 * 21 / 11, 44.0])
    assert fair[25.0] == pytest.approx([22.0 * (2 * 14 + 10) / 24])
    # What the run says of each at its end is the same, on average until then.
    assert dict(zip(run.names, run.fair_s.tolist(), strict=True)) == pytest.approx(
        {"job0": 15.0 * (1 + 2 * 14) / 15, "job1": 22.0 * (2 * 14 + 22) / 36}
    )


def test_a_lease_that_is_taken_back_is_forgotten() -> None:
    """Devices that come back after a wait have the lease of then."""
    policy = Noting(10.0)
    simulated(policy, 15.0, 22.0)
    assert policy.seen
    assert all(np.isinf(leases).all() for _, leases, _ in policy.seen)  # it sees only jobs that wait


def test_what_an_equal_share_would_take_has_to_be_declared() -> None:
    policy = Noting(10.0, needs=frozenset({"length"}))
    with pytest.raises(FleetError, match="must declare it in `needs`; this one has 'length'"):
        simulated(policy, 1.0)

"""Quotas with borrowing: by hand, and beside a simulator of another hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import plain_sharing as plain
import pytest
from runs import finished

import trainyard as ty
from trainyard.fleet.policies.queues import fifo, sjf, srtf
from trainyard.fleet.policy import Policy
from trainyard.fleet.quotas import QuotaPolicy, Quotas
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.what_if import parse_what_if
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

INF = float("inf")
JOBS = [
    declared_job("a1", 0.0, 4, 100.0, account="a"),
    declared_job("a2", 1.0, 4, 100.0, account="a"),
    declared_job("b1", 10.0, 2, 50.0, account="b"),
    declared_job("a3", 11.0, 2, 50.0, account="a"),
    declared_job("b2", 12.0, 6, 50.0, account="b"),
]


def run(what_if: str, policy: str = "fifo") -> FleetRun:
    found = ty.fleet.simulate(JOBS, "1x8", policy, what_if=[what_if])
    assert not found.cannot_run
    return found[f"{policy}, {what_if}"]


def test_what_others_leave_unused_is_borrowed_until_they_have_a_job_that_waits() -> None:
    """Nothing is taken away: b1 gets its devices when jobs of a end. Then a3 borrows what b2, too large, leaves."""
    assert finished(run("quota=a:4,b:4 borrow=all")) == {
        "a1": 100,
        "a2": 101,
        "b1": 150,
        "a3": 150,
        "b2": 200,
    }


def test_a_policy_that_takes_devices_away_takes_back_what_is_borrowed() -> None:
    """a1 has less left, so a2 is the one that borrows: it stops for b1, and a3 borrows what b1 leaves."""
    found = run("quota=a:4,b:4 borrow=all", "srtf")
    assert finished(found) == {"b1": 60, "a3": 61, "a1": 100, "a2": 152, "b2": 202}
    assert dict(zip(found.names, found.num_preempted.tolist(), strict=True))["a2"] == 1


def test_no_more_is_borrowed_than_is_said() -> None:
    """Two devices: a2 never runs beside a1, a3 does; and b2 asks for four and two."""
    found = run("quota=*:4 borrow=2")
    assert finished(found) == {"b1": 60, "a3": 61, "a1": 100, "a2": 200, "b2": 250}
    found = run("quota=*:4 borrow=1")
    assert found.refused == (
        ("b2", "it asks for 6 devices; account 'b' may have 5 at once, 1 of them borrowed"),
    )
    assert finished(run("quota=*:4 borrow=0")) == finished(run("quota=*:4"))


def test_nobody_borrows_more_than_all_have() -> None:
    (refused,) = run("quota=a:4,b:1 borrow=all").refused
    assert refused == ("b2", "it asks for 6 devices; account 'b' may have 5 at once, 4 of them borrowed")
    named = parse_what_if("quota=*:3,a:4 borrow=all").quotas
    assert named is not None
    assert named.naming(JOBS) == Quotas((("a", 4), ("b", 3)), 3, INF)


def test_who_borrows_and_finds_no_place_holds_up_nobody_who_is_within_a_quota() -> None:
    """Where a3 waits for three devices of one node, b1 starts when it comes."""
    sizes = {"a1": 3, "a2": 2, "a3": 3, "b1": 1}
    jobs = [
        declared_job(name, float(second), size, 100.0, account=name[0])
        for second, (name, size) in enumerate(sizes.items())
    ]
    found = ty.fleet.simulate(jobs, "2x4", "fifo", what_if="quota=*:4 borrow=all")[
        "fifo, quota=*:4 borrow=all"
    ]
    assert finished(found) == {"a1": 100, "a2": 101, "b1": 103, "a3": 200}


POLICIES: dict[str, tuple[Policy, bool, bool, Any]] = {
    "fifo": (fifo(), False, False, lambda job: job.number),
    "sjf": (sjf(), False, True, lambda job: (job.length_s, job.number)),
    "srtf": (srtf(), True, True, lambda job: (job.left_s, job.number)),
}


@pytest.mark.parametrize("most", [0.0, 3.0, INF])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_all_jobs_run_when_a_simulator_of_another_hand_runs_them(policy: str, most: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_jobs, quotas = 250, {"vision": 7, "speech": 6, "text": 3}
    arrivals_s = np.cumsum(rng.integers(0, 130, num_jobs)).astype(float).tolist()
    drawn = [
        plain.Ran(
            number,
            arrival_s,
            int(rng.choice([1, 1, 2, 3])),
            float(rng.integers(1, 900)),
            str(rng.choice(list(quotas), p=[0.6, 0.3, 0.1])),
        )
        for number, arrival_s in enumerate(arrivals_s)
    ]
    product, preempts, backfill, key = POLICIES[policy]

    def decide(now_s: float, here: list[plain.Ran], came: list[plain.Ran]) -> list[plain.Ran]:
        for job in here:  # of those that run, what is left now
            if job.since_s is not None:
                plain.stop(job, now_s)
                job.since_s = now_s
        running = [] if preempts else [job for job in here if job.runs]
        in_use = Counter(dict.fromkeys(quotas, 0))
        for job in running:
            in_use[job.account] += job.size
        order = sorted((job for job in here if job not in running), key=key)
        return plain.in_order(plain.counted(order, in_use, quotas, most), running, 16, backfill)

    plain.run(drawn, decide)
    jobs = [
        declared_job(str(job.number), job.arrival_s, job.size, job.length_s, account=job.account)
        for job in drawn
    ]
    done = simulate_fleet(
        jobs, Cluster.uniform(1, 16), QuotaPolicy(product, Quotas(tuple(quotas.items()), borrow=most), policy)
    )
    times_s = dict(zip(done.names, zip(done.first_start_s, done.finish_s, strict=True), strict=True))
    assert times_s == {str(job.number): (job.start_s, job.end_s) for job in drawn}


@pytest.mark.parametrize(
    ("what_if", "said"),
    [
        ("borrow=all", "borrow is for quotas; add quota=ACCOUNT:DEVICES"),
        ("quota=a:4 borrow=some", "borrow is 'some'; allowed is a number of devices, or all"),
        ("quota=a:4 borrow=-1", "borrow is '-1'; allowed is a number of devices, or all"),
        ("quota=a:4 borrow=1 borrow=2", "says borrow twice; keep one"),
    ],
)
def test_what_cannot_be_is_refused_by_name(what_if: str, said: str) -> None:
    with pytest.raises(ty.fleet.FleetError, match=said):
        ty.fleet.simulate(JOBS, "1x8", what_if=[what_if])

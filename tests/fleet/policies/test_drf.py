"""drf: the example of the paper (Ghodsi et al., NSDI 2011), by hand, and beside a simulator of another hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import plain_sharing as plain
import pytest

import trainyard as ty
from trainyard.fleet.policies.drf import drf
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.parse import cluster_from_yaml, parse_cluster

GB = 1e9
# Nine CPUs and 18 GB, with more devices than anybody can use.
PAPER = "1x16@9cpu,18GB"


def tasks(count: int, **rest: Any) -> list[Job]:
    """Tasks of user A, <1 CPU, 4 GB>, and of user B, <3 CPUs, 1 GB>, all at one moment."""
    demands = {"A": (1.0, 4.0), "B": (3.0, 1.0)}
    return [
        declared_job(f"{user}{number}", 0.0, 1, 100.0, user=user, cpus=cpus, memory_bytes=memory * GB, **rest)
        for number in range(count)
        for user, (cpus, memory) in demands.items()
    ]


def first(run: FleetRun) -> list[str]:
    """Names of the jobs that start at once."""
    return [name for name, start_s in zip(run.names, run.first_start_s.tolist(), strict=True) if start_s == 0]


def simulate(jobs: list[Job], cluster: Any, policy: str) -> FleetRun:
    return ty.fleet.simulate(jobs, cluster, policy)[policy]


def test_the_example_of_the_paper() -> None:
    """Sections 4.1 and 4.2: A gets three tasks and B two, so that each has two thirds of its dominant resource."""
    assert sorted(first(simulate(tasks(9), PAPER, "drf"))) == ["A0", "A1", "A2", "B0", "B1"]
    # With a weight of 3, A's next task is always before B's second one, until memory ends it: 16/18/3 is less than 3/9.
    assert sorted(first(simulate(tasks(9), PAPER, "drf(weights=(('A', 3),))"))) == [
        "A0",
        "A1",
        "A2",
        "A3",
        "B0",
    ]
    assert sorted(first(simulate(tasks(9), PAPER, "drf(weights=(('B', 2),))"))) == ["A0", "A1", "B0", "B1"]


def test_accounts_have_shares_of_their_own() -> None:
    """Two users of an account share what one of another account has."""
    jobs = [
        declared_job(f"{account}{user}{number}", 0.0, 1, 100.0, account=account, user=user)
        for number in range(8)
        for account, user in (("x", "a"), ("x", "b"), ("y", "c"))
    ]
    assert sorted(name[:2] for name in first(simulate(jobs, "1x8", "drf(by='account')"))) == (
        ["xa"] * 2 + ["xb"] * 2 + ["yc"] * 4
    )
    assert (
        sorted(name[:2] for name in first(simulate(jobs, "1x9", "drf")))
        == ["xa"] * 3 + ["xb"] * 3 + ["yc"] * 3
    )


def test_devices_count_where_nodes_do_not_say_what_else_they_have() -> None:
    wide = [declared_job(f"w{number}", 0.0, 4, 100.0, user="w") for number in range(4)]
    thin = [declared_job(f"t{number}", 0.0, 1, 100.0, user="t") for number in range(8)]
    assert sorted(first(simulate([*wide, *thin], "1x8", "drf"))) == ["t0", "t1", "t2", "t3", "w0"]


@pytest.mark.parametrize("arrival_s", [0.0, 1.0])
def test_processors_that_nobody_asked_for_go_with_devices(arrival_s: float) -> None:
    """Ann holds 12 CPUs that she asked for and 12 with four devices, half of all; Bob 18 with six devices, 3/8."""
    jobs = [
        declared_job("a1", 0.0, 1, 100.0, user="ann", cpus=12.0),
        declared_job("b1", 0.0, 6, 100.0, user="bob"),
        declared_job("a2", 0.0, 4, 100.0, user="ann"),
        declared_job("a3", arrival_s, 1, 100.0, user="ann", cpus=6.0),
        declared_job("b2", arrival_s, 1, 100.0, user="bob", cpus=6.0),
    ]
    run = simulate(jobs, "1x16@48cpu", "drf")
    assert {name for name, start_s in zip(run.names, run.first_start_s, strict=True) if start_s < 100} == {
        "a1", "b1", "a2", "b2"
    }  # fmt: skip


def test_a_job_without_a_place_holds_up_those_that_could_have_its_nodes() -> None:
    jobs = [
        declared_job("a", 0.0, 3, 100.0, user="a", device_types=("V100",)),
        declared_job("wide", 0.0, 2, 100.0, user="b", device_types=("V100",)),
        declared_job("small", 0.0, 1, 100.0, user="c", device_types=("V100",)),
        declared_job("other", 0.0, 1, 100.0, user="d", device_types=("A100",)),
        declared_job("either", 0.0, 1, 100.0, user="e"),
    ]
    cluster = "1x4xV100+1x4xA100"
    assert first(simulate(jobs, cluster, "drf")) == ["a", "other"]
    assert sorted(first(simulate(jobs, cluster, "drf(backfill=True)"))) == ["a", "either", "other", "small"]


def test_shares_are_of_the_whole_cluster_in_all_partitions() -> None:
    parts = cluster_from_yaml("cluster: 2x2\npartitions: {one: 0, two: 1}")
    jobs = [declared_job("a", 0.0, 2, 100.0, user="ann", virtual_cluster="one")]
    jobs += [
        declared_job(name, 1.0, 2, 10.0, user=user, virtual_cluster="two")
        for name, user in (("b", "ann"), ("c", "bob"))
    ]
    run = simulate(jobs, parts, "drf")
    assert dict(zip(run.names, run.first_start_s.tolist(), strict=True)) == {"a": 0, "c": 1, "b": 11}


@pytest.mark.parametrize("seed", range(4))
def test_all_jobs_run_when_a_simulator_of_another_hand_runs_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    node, num_jobs = (16.0, 48.0, 256 * GB), 250
    arrivals_s = np.cumsum(rng.integers(0, 150, num_jobs)).astype(float).tolist()
    drawn = [
        plain.Ran(
            number,
            arrival_s,
            size := int(rng.choice([1, 2, 4, 8])),
            float(rng.integers(1, 900)),
            user=str(rng.choice(["ann", "bob", "cat", "dan"], p=[0.5, 0.3, 0.15, 0.05])),
            # Nothing is asked for, or whole numbers with every device, so that no sum is rounded.
            cpus=size * float(rng.choice([0, 1, 4, 6])),
            memory=size * float(rng.choice([0, 4, 32])) * GB,
        )
        for number, arrival_s in enumerate(arrivals_s)
    ]
    weights = {"bob": 2.0}
    plain.run(
        drawn,
        lambda now_s, here, came: plain.fill(
            [each for each in here if not each.runs], [each for each in here if each.runs], node, weights
        ),
    )
    jobs = [
        declared_job(
            str(each.number), each.arrival_s, each.size, each.length_s, user=each.user, cpus=each.cpus,
            memory_bytes=each.memory,
        )
        for each in drawn
    ]  # fmt: skip
    run = simulate_fleet(jobs, parse_cluster("1x16@48cpu,256GB"), drf(weights=tuple(weights.items())))
    times_s = dict(zip(run.names, zip(run.first_start_s, run.finish_s, strict=True), strict=True))
    assert times_s == {str(each.number): (each.start_s, each.end_s) for each in drawn}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("by='team'", "option by of drf must be 'user' or 'account'"),
        ("weights=3", "weights of drf: 3 is no pair of a user and a weight from 1e-9 to 1e9"),
        (
            "by='account', weights=(('a', -1),)",
            "('a', -1) is no pair of an account and a weight from 1e-9 to 1e9",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ty.fleet.FleetError) as error:
        simulate(tasks(1), PAPER, f"drf({text})")
    assert said in str(error.value)

"""fair_share: the order of Slurm's Fair Tree (Cox and Morrison 2014), by hand and beside a simulator of another hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plain_sharing as plain
import pytest
from runs import finished

import trainyard as ty
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.policies.fair_share import fair_share
from trainyard.fleet.policy import Priority
from trainyard.fleet.records import FleetRun, Recorder
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import cluster_from_yaml

ONE = Cluster.uniform(1, 1)
INF = float("inf")


def job(name: str, arrival_s: float, length_s: float, owner: str = "", size: int = 1, **rest: Any) -> Job:
    """A job whose owner is written as account/user."""
    account, _, user = owner.partition("/")
    return declared_job(name, arrival_s, size, length_s, account=account, user=user, **rest)


def starts(run: FleetRun) -> list[str]:
    """Names of the jobs in the order in which they started."""
    return [name for _, name in sorted(zip(run.first_start_s.tolist(), run.names, strict=True))]


def test_the_account_with_less_usage_for_its_shares_goes_first_and_then_its_user_with_less() -> None:
    jobs = [
        job("a", 0, 100, "vision/ann"),
        job("b", 1, 50, "speech/bob"),
        job("c", 2, 10, "speech/cat"),
        job("d", 3, 10, "vision/ann"),
        job("e", 4, 10, "vision/dan"),
        job("f", 5, 10, "speech/bob"),
    ]
    # Vision has used 100 s and speech none: b before c by arrival, then c, whose user has used none. Then speech has
    # used 60 s of 160 s and goes on. At 170 s both have 70 s and 100 s, and e's user has used none.
    found = ty.fleet.simulate(jobs, "1x1", "fair_share(half_life_s=None)")
    assert starts(found.runs[0]) == ["a", "b", "c", "f", "e", "d"]
    # With twice the shares, vision's 100 s are as 50 s: after b it is vision's turn.
    double = ty.fleet.simulate(jobs, "1x1", "fair_share(half_life_s=None, account_shares=(('vision', 2),))")
    assert starts(double.runs[0]) == ["a", "b", "c", "e", "d", "f"]


def test_usage_of_a_half_life_ago_counts_half() -> None:
    """At 1,000 s, ann's 100 s of devices from 0 s to 100 s count less than bob's 60 s that have just ended."""
    jobs = [
        job("a", 0, 100, "x/ann"),
        job("b", 940, 60, "x/bob"),
        job("c", 950, 10, "x/bob"),
        job("d", 960, 10, "x/ann"),
    ]
    runs = [
        ty.fleet.simulate(jobs, "1x1", f"fair_share(half_life_s={half_life_s})").runs[0]
        for half_life_s in (500, 1e6)
    ]
    assert [starts(run) for run in runs] == [["a", "b", "d", "c"], ["a", "b", "c", "d"]]


def test_users_of_accounts_that_are_equal_are_put_in_one_order() -> None:
    """Neither account has used anything; of each, one user has half the shares of the other: all have used nothing."""
    jobs = [job("first", 0, 10)] + [
        job(f"{number}", 1, 10, owner) for number, owner in enumerate(("x/a", "y/b", "x/c", "y/d"))
    ]
    assert starts(ty.fleet.simulate(jobs, "1x1", "fair_share").runs[0]) == ["first", "0", "1", "2", "3"]


def test_of_equal_accounts_the_user_with_less_of_the_usage_of_its_account_goes_first() -> None:
    """Of twice the shares, x has used twice as much: its user b 80 s of 200 s, and c of y 45 s of 100 s."""
    used = (("x/a", 0, 120), ("x/b", 120, 80), ("y/c", 200, 45), ("y/d", 245, 55))
    jobs = [job(f"{owner} used", start_s, length_s, owner) for owner, start_s, length_s in used]
    jobs += [job(f"{owner} next", 250, 1000, owner) for owner in ("y/d", "x/a", "y/c", "x/b")]
    policy = "fair_share(half_life_s=None, account_shares=(('x', 2),))"
    assert starts(ty.fleet.simulate(jobs, "1x1", policy).runs[0])[4] == "x/b next"


@pytest.mark.parametrize("by", ["user", "account"])
@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("half_life_s", [2000.0, None])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_jobs_run_when_a_simulator_of_another_hand_runs_them(
    by: str, backfill: bool, half_life_s: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    num_jobs, num_devices = 220, 8
    arrivals_s = np.cumsum(rng.integers(0, 220, num_jobs)).astype(float).tolist()
    drawn = [
        plain.Ran(
            number,
            arrival_s,
            int(rng.choice([1, 1, 2, 3, 5, 8])),
            float(rng.integers(1, 800)),
            str(rng.choice(["vision", "speech", "text"], p=[0.6, 0.3, 0.1])),
            str(rng.choice(["ann", "bob", "cat", "dan"], p=[0.5, 0.3, 0.15, 0.05])),
        )
        for number, arrival_s in enumerate(arrivals_s)
    ]
    accounts, users = {"vision": 3.0, "speech": 0.5}, {"bob": 4.0} if by == "user" else {}

    def decide(now_s: float, here: list[plain.Ran], came: list[plain.Ran]) -> list[plain.Ran]:
        owned = came if by == "user" else [anonymous(each) for each in came]
        ranks = plain.fair_tree(now_s, owned, half_life_s or INF, accounts, users)
        waiting = sorted(
            (each for each in here if not each.runs),
            key=lambda each: (ranks[each.account, each.user if by == "user" else ""], each.number),
        )
        return plain.in_order(waiting, [each for each in here if each.runs], num_devices, backfill)

    plain.run(drawn, decide, INF if backfill else 300.0)
    policy = fair_share(
        by=by,  # type: ignore[arg-type]
        half_life_s=half_life_s,
        account_shares=tuple(accounts.items()),
        user_shares=tuple(users.items()),
        backfill=backfill,
    )
    jobs = [
        job(str(each.number), each.arrival_s, each.length_s, f"{each.account}/{each.user}", each.size)
        for each in drawn
    ]
    run = simulate_fleet(jobs, Cluster.uniform(1, num_devices), policy)
    times_s = dict(zip(run.names, zip(run.first_start_s, run.finish_s, strict=True), strict=True))
    assert times_s == {str(each.number): (each.start_s, each.end_s) for each in drawn}


def anonymous(ran: plain.Ran) -> plain.Ran:
    """A job whose user does not count."""
    found = plain.Ran(ran.number, ran.arrival_s, ran.size, ran.length_s, ran.account)
    found.spans, found.since_s = ran.spans, ran.since_s
    return found


def test_partitions_count_usage_together() -> None:
    """What bob used in one partition counts against him in the other, which is scheduled apart."""
    parts = cluster_from_yaml("cluster: 2x1\npartitions: {one: 0, two: 1}")
    jobs = [job("a", 0, 100, "/bob", virtual_cluster="one"), job("b", 0, 50, "/eve", virtual_cluster="two")]
    jobs += [
        job(name, 10, 10, owner, virtual_cluster="two") for name, owner in (("c", "/bob"), ("d", "/ann"))
    ]
    run = ty.fleet.simulate(jobs, parts, "fair_share").runs[0]
    assert finished(run) == {"a": 100, "b": 50, "d": 60, "c": 70}


def test_usage_is_taken_over_with_the_time_in_which_nobody_counted() -> None:
    policy, jobs = fair_share(half_life_s=100.0), [job("a", 0, 1e6, "x/ann"), job("b", 0, 1e6, "x/bob")]

    def begun() -> Allocator:
        allocator = Allocator(Cluster.uniform(1, 2), policy, 0, Costs(), Recorder(keep_spans=False))
        for each in jobs:
            allocator.enter(each, 0.0)
        return allocator

    first = begun()
    first.take_over(0, Grant((0,)), 0.0)
    usage = first.table.usage
    assert usage is not None
    usage.advance(50.0)
    text = usage.text()
    usage.advance(200.0)
    second = begun()
    other = second.table.usage
    assert other is not None
    other.restore(text, 200.0)
    second.take_over(0, Grant((0,)), 200.0)
    assert other.device_s.tolist() == pytest.approx(usage.device_s.tolist())
    assert usage.device_s.tolist() == pytest.approx([100 / math.log(2) * (1 - 0.5**2), 0.0])
    other.restore(text, 40.0)  # a clock that was set back gives and takes no time
    assert other.at_s == 40.0


def test_usage_is_for_policies_that_give_a_half_life() -> None:
    policy = Priority(lambda snapshot: snapshot.usage_device_s[snapshot.owner])
    with pytest.raises(ty.fleet.FleetError, match="must give `usage_half_life_s` in its traits"):
        simulate_fleet([job("a", 0, 1)], ONE, policy)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("by='team'", "option by of fair_share must be 'user' or 'account'"),
        ("half_life_s=0", "a half-life of fair_share lasts from"),
        ("period_s=-1", "a period of fair_share lasts from"),
        (
            "account_shares=3",
            "account_shares of fair_share: 3 is no pair of an account and a weight from 1e-9 to 1e9",
        ),
        ("user_shares=(('ann', 0),)", "('ann', 0) is no pair of a user and a weight from 1e-9 to 1e9"),
        (
            "user_shares=(('ann', 1e308),)",
            "('ann', 1e+308) is no pair of a user and a weight from 1e-9 to 1e9",
        ),
        ("user_shares=(('ann', 1), ('ann', 2))", "user 'ann' is there twice; give each once"),
        ("by='account', user_shares=(('ann', 1),)", "user_shares of fair_share are for by='user'"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ty.fleet.FleetError) as error:
        ty.fleet.simulate([job("a", 0, 1)], "1x1", f"fair_share({text})")
    assert said in str(error.value)

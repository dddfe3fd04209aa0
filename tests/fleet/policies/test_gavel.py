"""Gavel: the worked examples of its paper, and properties of its allocations.

The claims of gavel_max_min, gavel_water_filling, gavel_hierarchical, gavel_makespan, gavel_finish_time, gavel_fifo,
gavel_cost and gavel_throughput.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from trainyard.fleet.allocation import Allocation, TimeFractions
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.policies.gavel.objectives import (
    GavelFifo,
    LeastCost,
    LeastMakespan,
    MaxMinFairness,
    MostThroughput,
)
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.policies.gavel.water_filling import Hierarchical, WaterFilling
from trainyard.fleet.rounds.accounts import Accounts, credited, opened, priorities, turn
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster
from trainyard.hardware.prices import Prices

Floats = NDArray[np.float64]


# Section 4.1: three jobs on one V100 and one K80, and their shares.
PAPER_SPEED = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
PAPER_SHARES = np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]])


def problem(speed: Floats, room: list[int], **given: object) -> Problem:
    jobs, kinds = speed.shape
    standard: dict[str, object] = {
        "scale_factors": np.ones(jobs),
        "weight": np.ones(jobs),
        "serial": np.arange(jobs),
        "device_types": ("v100", "p100", "k80")[:kinds],
        "able": speed > 0,
        "left": np.full(jobs, 1000.0),
        "age_s": np.zeros(jobs),
        "time_left_s": np.full(jobs, np.inf),
    }
    return Problem(throughputs=speed, devices_of_type=np.array(room), **(standard | given))  # type: ignore[arg-type]


def drawn(seed: int) -> Problem:
    """A cluster of three types with some of its jobs on several devices, and two jobs that are alike."""
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(3, 12))
    speed = rng.uniform(0.5, 20.0, (jobs, 3))
    speed[-1] = speed[-2]
    gang = rng.choice([1.0, 1.0, 2.0, 4.0], jobs)
    gang[-1] = gang[-2]
    return problem(
        speed,
        [4, 6, 8],
        scale_factors=gang,
        left=rng.uniform(100, 1e5, jobs),
        age_s=rng.uniform(0, 1e4, jobs),
    )


def fractions(policy: Gavel, given: Problem) -> Floats:
    return policy.fractions(given, policy.start_with)[0].alone


def assert_feasible(given: Problem, fraction: Floats) -> None:
    assert (fraction >= 0).all()
    assert (fraction.sum(axis=1) <= 1 + 1e-6).all()
    assert (given.scale_factors @ fraction <= given.devices_of_type * (1 + 1e-6)).all()


def rates(given: Problem, fraction: Floats) -> Floats:
    found: Floats = (given.throughputs * fraction).sum(axis=1)
    return found


def best(given: Problem, reward: Floats, rows: Floats, need: Floats) -> float:
    """The optimum of the program of section 3.1 with other rows, by SciPy, as a check from outside.

    Rows are of the fractions and a level, and at least ``need``.
    """
    jobs, kinds = given.throughputs.shape
    size = jobs * kinds
    time, devices = np.zeros((jobs, size + 1)), np.zeros((kinds, size + 1))
    for job in range(jobs):
        time[job, job * kinds : (job + 1) * kinds] = 1
        for kind in range(kinds):
            devices[kind, job * kinds + kind] = given.scale_factors[job]
    found = linprog(
        -reward,
        A_ub=np.vstack((time, devices, -rows)),
        b_ub=np.concatenate((np.ones(jobs), given.devices_of_type, -need)),
        bounds=[(0, None)] * size + [(None, None)],
    )
    assert found.status == 0
    return -float(found.fun)


def by_job(values: Floats, level: Floats) -> Floats:
    """A row for every job: its values at its own fractions, and at the level."""
    jobs, kinds = values.shape
    rows = np.zeros((jobs, jobs * kinds + 1))
    for job in range(jobs):
        rows[job, job * kinds : (job + 1) * kinds] = values[job]
    rows[:, -1] = level
    return rows


def only_level(given: Problem) -> Floats:
    return np.append(np.zeros(given.throughputs.size), 1.0)


# Section 4.1: max-min fairness


def test_the_example_of_section_4_1() -> None:
    given = problem(PAPER_SPEED, [1, 1])
    fraction = fractions(MaxMinFairness(), given)
    np.testing.assert_allclose(fraction, PAPER_SHARES, atol=0.01)
    gain = rates(given, fraction) / (PAPER_SPEED.sum(axis=1) / 3)
    assert (gain > 1.08).all(), "the paper: about a tenth more than types that are taken for alike"
    alike = fractions(MaxMinFairness(aware=False), replace(given, throughputs=np.ones((3, 2))))
    np.testing.assert_allclose(alike.sum(axis=1), 2 / 3, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_max_min_is_the_optimum_and_an_incentive_to_share(seed: int) -> None:
    given = drawn(seed)
    fraction = fractions(MaxMinFairness(), given)
    assert_feasible(given, fraction)
    level = (given.scaled_throughputs * fraction).sum(axis=1).min()
    rows = by_job(given.scaled_throughputs, np.full(given.num_jobs, -1.0))
    assert level == pytest.approx(best(given, only_level(given), rows, np.zeros(given.num_jobs)), rel=1e-6)
    # With one device each, an n-th of the cluster is never better than sharing all of it (section 4.4).
    single = replace(given, scale_factors=np.ones(given.num_jobs))
    shared = rates(single, fractions(MaxMinFairness(), single))
    part = single.equal_throughput * min(1.0, single.devices_of_type.sum() / single.num_jobs)
    assert (shared >= part * (1 - 1e-6)).all()


def test_weights_divide_one_pool() -> None:
    given = problem(np.ones((2, 1)), [1], weight=np.array([1.0, 3.0]))
    np.testing.assert_allclose(fractions(MaxMinFairness(), given)[:, 0], [0.25, 0.75], atol=1e-9)


# Section 4.2: other policies


@pytest.mark.parametrize("seed", range(6))
def test_makespan_is_the_least(seed: int) -> None:
    given = drawn(seed)
    fraction = fractions(LeastMakespan(), given)
    assert_feasible(given, fraction)
    rows = by_job(given.throughputs / given.left[:, None], np.full(given.num_jobs, -1e-4))
    least_s = 1e4 / best(given, only_level(given), rows, np.zeros(given.num_jobs))
    reached_s = (given.left / rates(given, fraction)).max()
    assert reached_s == pytest.approx(least_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_slowed_more_than_alone_and_no_fractions_are_fairer(seed: int) -> None:
    given = replace(drawn(seed), age_s=np.zeros(drawn(seed).num_jobs))
    fraction = fractions(FinishTimeFairness(), given)
    assert_feasible(given, fraction)
    rho = (given.isolated_throughput / rates(given, fraction)).max()
    assert rho <= 1 + 1e-4
    rows = by_job(given.throughputs / given.isolated_throughput[:, None], np.full(given.num_jobs, -1.0))
    assert 1 / rho == pytest.approx(best(given, only_level(given), rows, np.zeros(given.num_jobs)), rel=1e-4)


def test_finish_time_fairness_counts_the_time_that_passed() -> None:
    # One device: who has waited longer with the same work left gets more of it, until both are slowed alike.
    given = problem(np.ones((2, 1)), [1], left=np.array([100.0, 100.0]), age_s=np.array([300.0, 0.0]))
    speed = rates(given, fractions(FinishTimeFairness(), given))
    rho = (given.age_s + given.left / speed) / (given.left / given.isolated_throughput)
    assert speed[0] > speed[1]
    assert rho[0] == pytest.approx(rho[1], rel=1e-3)


def test_fifo_gives_the_first_jobs_their_fastest_type() -> None:
    speed = np.array([[4.0, 2.0], [4.0, 1.0], [3.0, 3.0]])
    fraction = fractions(GavelFifo(), problem(speed, [1, 1]))
    np.testing.assert_allclose(fraction[0], [1.0, 0.0], atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_cost_is_least_and_deadlines_are_kept(seed: int) -> None:
    given = drawn(seed)
    price = np.array([2.48, 1.46, 0.45])
    fraction = fractions(LeastCost(), given)
    gained = (given.throughputs / given.equal_throughput[:, None] * fraction).sum()
    spent = (given.scale_factors @ fraction) @ price
    # Without needs no ratio can beat the best single pair of job and type.
    single = given.throughputs / given.equal_throughput[:, None] / (given.scale_factors[:, None] * price)
    assert gained / spent == pytest.approx(single.max(), rel=1e-4)
    slowest = int(np.argmin(given.scale_factors))
    time_left_s = np.full(given.num_jobs, np.inf)
    time_left_s[slowest] = given.left[slowest] / given.throughputs[slowest].max() * 1.5
    urgent = replace(given, time_left_s=time_left_s)
    kept = rates(urgent, fractions(LeastCost(slo=True), urgent))[slowest]
    assert kept >= given.left[slowest] / time_left_s[slowest] * (1 - 1e-6)
    hopeless = replace(given, time_left_s=time_left_s / 2)
    np.testing.assert_allclose(fractions(LeastCost(slo=True), hopeless), fraction, atol=1e-6)


def test_a_type_without_a_price_is_named() -> None:
    with pytest.raises(FleetError, match="no price above 0 for devices of type p100"):
        fractions(LeastCost(prices=(("v100", 1.0),)), problem(np.ones((1, 2)), [1, 1]))


OF_CLUSTER: Prices = (("V100", 1.0), ("P100", 9.0))


@pytest.mark.parametrize(
    ("given", "of_cluster", "cheapest"),
    [((), (), 1), ((), OF_CLUSTER, 0), ((("v100", 9.0), ("p100", 1.0)), OF_CLUSTER, 1)],
)
def test_prices_are_those_given_else_of_the_cluster_else_of_the_paper(
    given: Prices, of_cluster: Prices, cheapest: int
) -> None:
    fraction = fractions(LeastCost(prices=given), problem(np.ones((1, 2)), [1, 1], prices=of_cluster))
    np.testing.assert_allclose(fraction[0], np.eye(2)[cheapest], atol=1e-6)


def test_prices_of_the_cluster_reach_the_policy() -> None:
    cluster = replace(parse_cluster("1x1xV100+1x1xP100"), prices=OF_CLUSTER)
    done = scheduler_of("gavel_cost").simulate([declared_job("a", 0.0, 1, 100.0)], cluster, keep_spans=True)
    assert {span.devices for span in done.spans} == {(0,)}


def test_most_throughput_leaves_no_device_idle() -> None:
    given = problem(PAPER_SPEED, [1, 1])
    np.testing.assert_allclose(fractions(MostThroughput(), given).sum(axis=0), 1.0, atol=1e-9)


# Section 4.3: water filling


@pytest.mark.parametrize("seed", range(6))
def test_water_filling_is_pareto_efficient_and_no_less_fair(seed: int) -> None:
    given = drawn(seed)
    fraction = fractions(WaterFilling(), given)
    assert_feasible(given, fraction)
    scaled = given.scaled_throughputs
    had = (scaled * fraction).sum(axis=1)
    fairest = (scaled * fractions(MaxMinFairness(), given)).sum(axis=1).min()
    assert had.min() == pytest.approx(fairest, rel=1e-6)
    # Nobody can have more unless somebody else has less.
    reward = np.append(scaled.ravel(), 0.0)
    rows = by_job(scaled, np.zeros(given.num_jobs))
    assert best(given, reward, rows, had * (1 - 1e-9)) == pytest.approx(had.sum(), rel=1e-5)


def test_entities_share_by_weight_and_within_by_their_own_rule() -> None:
    given = problem(np.ones((4, 1)), [1], entity=("a", "a", "b", "b"))
    fair = Hierarchical(weights=(("b", 3.0),))
    np.testing.assert_allclose(fractions(fair, given)[:, 0], [0.125, 0.125, 0.375, 0.375], atol=1e-6)
    fifo = Hierarchical(inners=(("b", "fifo"),), weights=(("b", 3.0),))
    np.testing.assert_allclose(fractions(fifo, given)[:, 0], [0.125, 0.125, 0.75, 0.0], atol=1e-6)


def test_what_a_full_job_leaves_goes_to_its_entity() -> None:
    # Three devices for two entities: 1.5 each. The first job of b can use one, and the second has the rest.
    given = problem(np.ones((4, 1)), [3], entity=("a", "a", "b", "b"))
    found = fractions(Hierarchical(inner="fifo"), given)[:, 0]
    np.testing.assert_allclose(found, [1.0, 0.5, 1.0, 0.5], atol=1e-6)


# Section 5: the mechanism


def test_priorities_of_section_5() -> None:
    wanted = np.array([[0.6, 0.4, 0.0], [0.2, 0.6, 0.2], [0.2, 0.0, 0.8]])
    rounds = np.array([[3.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 4.0]])
    accounts = Accounts(0.0, np.arange(3), wanted, rounds, np.zeros((3, 3)), True)
    # Wanted over rounds had; the program's clock runs in rounds here.
    expected = np.array([[0.2, 0.4, 0.0], [0.2, 0.2, np.inf], [np.inf, 0.0, 0.2]])
    np.testing.assert_allclose(priorities(accounts, 1.0), expected)
    jobs, types = turn(accounts, priorities(accounts, 1.0), np.ones(3, np.int64), np.ones(3, np.int64))
    assert sorted(zip(jobs.tolist(), types.tolist(), strict=True)) == [(0, 1), (1, 2), (2, 0)]


def test_over_rounds_everybody_gets_what_was_decided() -> None:
    given = problem(PAPER_SPEED, [1, 1])
    wanted = fractions(MaxMinFairness(), given)
    jobs, types = np.nonzero(np.ones_like(wanted))
    accounts = opened(None, np.arange(3), TimeFractions(jobs, types, wanted[jobs, types]), 2, 0.0)
    for number in range(400):
        found, kinds = turn(
            accounts, priorities(accounts, float(number)), np.ones(3, np.int64), given.devices_of_type
        )
        assert len(set(found.tolist())) == len(found) == 2
        accounts = credited(accounts, found, kinds, np.ones(2))
    np.testing.assert_allclose(accounts.received_s / 400, wanted, atol=0.02)


def test_a_gang_that_does_not_fit_lets_a_smaller_one_run() -> None:
    accounts = Accounts(0.0, np.arange(2), np.array([[0.9], [0.1]]), np.zeros((2, 1)), np.zeros((2, 1)), True)
    found, _ = turn(accounts, priorities(accounts, 1.0), np.array([4, 1]), np.array([3]))
    assert found.tolist() == [1]


def test_jobs_that_run_nowhere_are_refused() -> None:
    cluster = Cluster.of_pools([("v100", 1, 1), ("k80", 1, 1)])
    jobs = [
        declared_job("gone", 0.0, 1, 100.0, device_types=("tpu", "v100")),
        declared_job("runs", 0.0, 1, 720.0),
    ]
    stuck = replace(jobs[0], profile=_Never())
    run = simulate_fleet([stuck, jobs[1]], cluster, MaxMinFairness())
    assert run.names == ("runs",)
    assert run.refused == (("gone", "it runs at no speed on v100, k80"),)
    assert run.makespan_s == 720.0


class _Never:
    def work_per_s(self, spot: object, grant: object) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class _Lasting(MaxMinFairness):
    preempts: bool = field(default=False, init=False)


def test_a_policy_that_takes_nothing_away_may_divide_time_too() -> None:
    jobs = [declared_job(name, 0.0, 1, 500.0) for name in "abcde"]
    run = simulate_fleet(jobs, Cluster.uniform(1, 2), _Lasting())
    assert dict(zip(run.names, run.finish_s.tolist(), strict=True)) == {
        "a": 500.0, "b": 500.0, "c": 1220.0, "d": 1220.0, "e": 1940.0,
    }  # fmt: skip


class _Half:
    """Half of the time for everybody; it does not say that it means rounds."""

    needs: frozenset[Need] = frozenset()
    preempts = True

    def start(self, cluster: Cluster) -> None:
        return None

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        order = np.arange(snapshot.num_jobs)
        return Allocation(TimeFractions(order, np.zeros_like(order), np.full(len(order), 0.5))), None


def test_fractions_want_rounds() -> None:
    with pytest.raises(FleetError, match="give the run rounds"):
        simulate_fleet([declared_job("a", 0.0, 1, 1.0)], Cluster.uniform(1, 1), _Half())

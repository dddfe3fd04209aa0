"""Gavel's programs that come apart by jobs: they find what linear programs find.

The claims of gavel_max_min, gavel_cost, gavel_makespan, gavel_finish_time, gavel_water_filling and gavel_hierarchical,
where no two jobs share devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.policies.gavel.objectives import (
    GavelFifo,
    LeastCost,
    LeastMakespan,
    MaxMinFairness,
    MostThroughput,
)
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.policies.gavel.solver import Entities, fill_water, solve
from trainyard.fleet.policies.gavel.solver.prices import costs
from trainyard.fleet.policies.gavel.solver.program import solve_in_highs
from trainyard.fleet.policies.gavel.solver.simplex import least_part, most_reward
from trainyard.fleet.policies.gavel.solver.slowdown import _by_prices, _in_highs
from trainyard.fleet.policies.gavel.solver.water import _filled_in_highs
from trainyard.fleet.policies.gavel.water_filling import Hierarchical, WaterFilling
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.fleet.workload.speeds import Speeds
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

Floats = NDArray[np.float64]


def drawn(seed: int) -> Problem:
    """Jobs of several devices and weights, some alike and some that cannot run everywhere, on one to five types."""
    rng = np.random.default_rng(seed)
    jobs, kinds = int(rng.integers(2, 30)), int(rng.integers(1, 6))
    room, gang = rng.integers(4, 12, kinds), rng.choice([1.0, 1.0, 2.0, 4.0], jobs)
    like = rng.integers(0, min(6, jobs), jobs) if seed % 2 else np.arange(jobs)
    whole = rng.integers(0, 4, (jobs, kinds)).astype(float)
    speed = (whole if seed % 3 else rng.uniform(0.5, 20.0, (jobs, kinds)))[like]
    speed[~(speed > 0).any(axis=1)] = 1.0
    return Problem(
        speed,
        gang,
        room,
        rng.choice([0.5, 1.0, 2.0], jobs),
        np.arange(jobs),
        tuple("abcde"[:kinds]),
        able=speed > 0,
        left=rng.uniform(100, 1e5, jobs),
        age_s=rng.choice([0.0, 300.0, 1e4], jobs),
    )


def assert_feasible(given: Problem, fraction: Floats) -> None:
    assert (fraction >= 0).all()
    assert (fraction[~given.able] == 0).all()
    assert (fraction.sum(axis=1) <= 1 + 1e-8).all()
    assert (given.scale_factors @ fraction <= given.devices_of_type * (1 + 1e-8)).all()


def least_by_scipy(rate: Floats, held: Floats, need: Floats) -> float:
    jobs, kinds = rate.shape
    time = np.hstack((np.repeat(np.eye(jobs), kinds, axis=1), np.zeros((jobs, 1))))
    rates = np.hstack((time[:, :-1] * rate.ravel(), np.zeros((jobs, 1))))
    devices = np.hstack((np.tile(np.eye(kinds), jobs) * held.ravel(), -np.ones((kinds, 1))))
    found = linprog(
        np.append(np.zeros(rate.size), 1.0),
        A_ub=np.vstack((time, devices, -rates)),
        b_ub=np.concatenate((np.ones(jobs), np.zeros(kinds), -need)),
    )
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("seed", range(40))
def test_the_least_part_is_an_optimum_and_its_prices_prove_it(seed: int) -> None:
    given, rng = drawn(seed), np.random.default_rng(seed)
    rate, held = given.throughputs, given.scale_factors[:, None] / given.devices_of_type
    # Some need nothing, some all that they can have, and some just what one type gives.
    parts = rng.choice([0.0, 1 / 3, 0.5, 1.0], given.num_jobs)
    need = rate.max(axis=1) * np.where(rng.random(given.num_jobs) < 0.5, parts, rng.random(given.num_jobs))
    price = np.full(len(given.devices_of_type), 1 / len(given.devices_of_type))
    part, prices, fraction = least_part(rate, held, need, price, 0.0)
    assert part == pytest.approx(least_by_scipy(rate, held, need), rel=1e-6, abs=1e-9)
    assert prices.sum() == pytest.approx(1.0)
    assert costs(rate, held, need, prices)[0] == pytest.approx(part, rel=1e-9)
    assert ((rate * fraction).sum(axis=1) >= need * (1 - 1e-8)).all()
    assert (held * fraction).sum(axis=0).max(initial=0.0) == pytest.approx(part, rel=1e-9)


def test_costs_rise_as_the_hull_of_types_does() -> None:
    # Rest, and types of 1, 2 and 4 at costs of 1, 1 and 3: the first is no corner of the hull.
    rate, held, price = np.array([[1.0, 2.0, 4.0]]), np.array([[1.0, 1.0, 3.0]]), np.ones(3)
    for need, expected in ((0.0, (0, 0, 0.5)), (1.0, (0.5, 0.5, 0.5)), (2.0, (1, 0.5, 1)), (3.0, (2, 1, 1))):
        cost, less, more = costs(rate, held, np.array([need]), price)
        assert (cost, less[0], more[0]) == pytest.approx(expected)
    cost, _, more = costs(rate, held, np.array([4.0]), price)
    assert cost == pytest.approx(3.0)
    assert more[0] == np.inf


@pytest.mark.parametrize("seed", range(40))
def test_what_needs_leave_brings_as_much_as_in_the_linear_program(seed: int) -> None:
    given, rng = drawn(seed), np.random.default_rng(seed)
    held, price = (
        given.scale_factors[:, None] / given.devices_of_type,
        np.full(len(given.devices_of_type), 1 / len(given.devices_of_type)),
    )
    reward = given.throughputs * rng.uniform(0.0, 1.0, given.throughputs.shape) / given.throughputs.sum()
    if seed % 4 == 3:
        # What running costs may be more than it brings.
        reward = np.where(given.able, reward - rng.uniform(0.0, 1.0) * reward.max(), 0.0)
    # Some need nothing, and together they need some part of the cluster.
    need = given.throughputs.max(axis=1) * rng.choice([0.0, 0.5, 1.0], given.num_jobs)
    need /= max(1.0, least_by_scipy(given.throughputs, held, need) / rng.uniform(0.1, 1.0))
    found = most_reward(given.throughputs, held, need, reward, price)
    assert_feasible(given, found)
    assert ((given.throughputs * found).sum(axis=1) >= need * (1 - 1e-8)).all()
    program = solve_in_highs(given, given.throughputs, need=need * (1 - 1e-9), reward=reward)
    assert program is not None
    assert (reward * found).sum() == pytest.approx((reward * program[0].alone).sum(), rel=1e-6)


def cheapest_by_scipy(given: Problem, spent: Floats, need: Floats) -> float:
    """Best ratio of throughput to cost, as one linear program (Charnes and Cooper), in parts of the cost."""
    rate, (jobs, kinds) = given.relative_throughputs, given.throughputs.shape
    time = np.hstack((np.repeat(np.eye(jobs), kinds, axis=1), -np.ones((jobs, 1))))
    devices = np.hstack(
        (
            np.tile(np.eye(kinds), jobs) * np.repeat(given.scale_factors, kinds),
            -given.devices_of_type[:, None],
        )
    )
    rates = np.hstack((-np.repeat(np.eye(jobs), kinds, axis=1) * given.throughputs.ravel(), need[:, None]))
    found = linprog(
        -np.append(rate.ravel(), 0.0),
        A_ub=np.vstack((time, devices, rates)),
        b_ub=np.zeros(2 * jobs + kinds),
        A_eq=np.append(spent.ravel(), 0.0)[None],
        b_eq=[1.0],
    )
    assert found.status == 0
    return -float(found.fun)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_cheaper_though_deadlines_are_kept(seed: int) -> None:
    given, rng = drawn(seed), np.random.default_rng(seed)
    prices = tuple(zip(given.device_types, rng.uniform(0.5, 5.0, len(given.device_types)), strict=True))
    spent = given.scale_factors[:, None] * (
        np.array([price for _, price in prices]) if len(prices) > 1 else 1.0
    )
    need = given.throughputs.max(axis=1) * rng.choice([0.0, 0.5, 1.0], given.num_jobs)
    held = given.scale_factors[:, None] / given.devices_of_type
    need /= max(1.0, least_by_scipy(given.throughputs, held, need) / rng.uniform(0.1, 0.99))
    time_left_s = np.where(need > 0, given.left / np.maximum(need, 1e-12), np.inf)
    found, _ = LeastCost(prices=prices, slo=True).fractions(replace(given, time_left_s=time_left_s), None)
    assert_feasible(given, found.alone)
    assert ((given.throughputs * found.alone).sum(axis=1) >= need * (1 - 1e-8)).all()
    ratio = (given.relative_throughputs * found.alone).sum() / (spent * found.alone).sum()
    assert ratio == pytest.approx(cheapest_by_scipy(given, spent, need), rel=3e-6)


@pytest.mark.parametrize("seed", range(40))
def test_the_highest_level_is_that_of_the_linear_program_with_most_throughput(seed: int) -> None:
    given = drawn(seed)
    rate = given.throughputs / given.left[:, None]
    found = solve(given, rate, highest_level=True)
    assert_feasible(given, found.alone)
    level = (rate * found.alone).sum(axis=1).min()
    program = solve_in_highs(given, rate, share=np.ones(given.num_jobs), reward=given.relative_throughputs)
    assert program is not None
    assert level == pytest.approx(program[1].level, rel=1e-6)
    ours, theirs = ((given.relative_throughputs * x.alone).sum() for x in (found, program[0]))
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_water_comes_to_the_levels_of_the_linear_programs(seed: int) -> None:
    given, rng = drawn(seed), np.random.default_rng(seed)
    entities = Entities(rng.integers(0, 3, given.num_jobs), np.array([1.0, 2.0, 0.5]), rng.random(3) < 0.4)
    scaled = given.scaled_throughputs
    found = fill_water(given, entities)
    assert_feasible(given, found.alone)
    programs = _filled_in_highs(given, entities)
    ours, theirs = ((scaled * x.alone).sum(axis=1) for x in (found, programs))
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * theirs.max())


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_slowed_more_than_by_the_linear_programs(seed: int) -> None:
    given = drawn(seed)
    whole_s = given.left / given.isolated_throughput
    (ours, rho), (theirs, near) = _by_prices(given, whole_s), _in_highs(given, whole_s)
    assert_feasible(given, ours.alone)
    reached = ((given.age_s + given.left / given.effective_throughput(ours)) / whole_s).max()
    assert reached == pytest.approx(rho, rel=1e-8)
    # Theirs is known to a hundred thousandth.
    assert near * (1 - 1e-5) <= rho <= near * (1 + 1e-8)
    throughputs = [(given.relative_throughputs * x.alone).sum() for x in (ours, theirs)]
    assert throughputs[0] == pytest.approx(throughputs[1], rel=1e-4)


def test_a_job_with_next_to_nothing_left_after_a_long_time_does_not_hold_up_the_search() -> None:
    ones = np.ones(3)
    given = Problem(
        np.ones((3, 1)), ones, np.array([1]), ones, np.arange(3), ("a",), np.ones((3, 1), np.bool_),
        left=np.array([1e-9, 1e3, 1e9]), age_s=np.array([1e9, 1e9, 0.0]),
    )  # fmt: skip
    found, rho = _by_prices(given, np.array([2e8, 1e3, 3e9]))
    assert_feasible(given, found.alone)
    assert np.isfinite(rho)


@dataclass(frozen=True)
class OnTypes:
    """A job whose speed is one of three."""

    v100: float
    p100: float
    k80: float

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        found: float = getattr(self, spot.device_type)
        return found


@pytest.mark.parametrize(
    "make",
    [
        *(MaxMinFairness, LeastMakespan, FinishTimeFairness, GavelFifo, LeastCost, MostThroughput),
        *(WaterFilling, Hierarchical),
    ],
)
def test_highs_may_solve_what_prices_do(make: type[Gavel], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = make.fractions, list[bool]()

    def both(self: Gavel, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        found, following = plain(self, problem, kept)
        same, _ = plain(self, replace(problem, in_highs=False), kept)
        reward = problem.relative_throughputs
        if make is GavelFifo:
            places = np.arange(problem.num_jobs, 0, -1)
            reward = problem.throughputs / problem.throughputs.max(axis=1, keepdims=True) * places[:, None]
        throughputs = [(reward * x.alone).sum() for x in (found, same)]
        assert throughputs[0] == pytest.approx(throughputs[1], rel=1e-4)
        asked.append(problem.in_highs)
        return found, following

    rng = np.random.default_rng(0)
    jobs = [
        Job(str(i), 200.0 * i, int(rng.choice([1, 1, 2])), work, OnTypes(*rng.uniform(0.5, 4.0, 3)))
        for i, work in enumerate(rng.uniform(500.0, 10_000.0, 24))
    ]
    cluster = Cluster.of_pools([("v100", 1, 2), ("p100", 1, 3), ("k80", 1, 4)])
    monkeypatch.setattr(make, "fractions", both)
    run = simulate_fleet(jobs, cluster, make(solver="highs"))
    assert len(run.names) == len(jobs)
    assert len(asked) > 20
    assert all(asked)


@pytest.mark.parametrize("seed", [83, 1335, 2949])
def test_no_step_ends_at_what_is_rounding(seed: int) -> None:
    """Of four thousand drawn workloads, in these a basis became singular."""
    rng = np.random.default_rng(seed)
    cluster = ("2x4xA+2x4xB+1x4xC", "1x1xA+1x1xB+1x1xC", "4x2xA+1x2xB+1x4xC", "1x4xA+2x2xB+4x1xC")[seed % 4]
    cluster, jobs = parse_cluster(cluster), []
    num_jobs = int(rng.integers(2, 25))
    arrivals_s = np.sort(rng.integers(0, [1, 100, 3000][int(rng.integers(3))], num_jobs)).astype(float)
    for number, arrival_s in enumerate(arrivals_s.tolist()):
        speeds = []
        for kind, most in zip("ABC", cluster.devices_of_type.tolist(), strict=True):
            if rng.random() < 0.7:
                sizes = [size for size in (1, 2, 4) if size <= most]
                speeds += [
                    (kind, size, float(rng.choice([0.1, 1, 1, 2, 3.3, 10, 1e3]) * size)) for size in sizes
                ]
        speeds = speeds or [("A", 1, 1.0)]
        size = int(rng.choice(sorted({size for _, size, _ in speeds})))
        work = float(rng.choice([0.0, 1.0, 50.0, 1e3, float(rng.integers(1, 9999)), 3e3]))
        jobs.append(Job(str(number), arrival_s, size, work, Speeds(tuple(speeds))))
    assert len(scheduler_of("gavel_finish_time").simulate(jobs, cluster).names) == num_jobs

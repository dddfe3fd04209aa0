"""Gavel with space sharing: examples by hand, programs over all pairs, and rounds of combinations.

Variants of gavel_max_min, gavel_water_filling, gavel_hierarchical, gavel_makespan, gavel_finish_time, gavel_fifo,
gavel_cost and gavel_throughput.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from trainyard.fleet.allocation import TimeFractions
from trainyard.fleet.catalog import CATALOG
from trainyard.fleet.errors import FleetError
from trainyard.fleet.place.together import seats
from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.policies.gavel.objectives import LeastCost, LeastMakespan, MaxMinFairness, MostThroughput
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Pairs, Problem
from trainyard.fleet.policies.gavel.solver import program
from trainyard.fleet.rounds.accounts import credited, opened, priorities, turn
from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]

SHARING = [entry.factory for entry in CATALOG if "space sharing" in entry.variants]


def problem(speed: Floats, room: list[int], like: list[int], part: Floats, **rest: object) -> Problem:
    jobs, kinds = speed.shape
    standard: dict[str, object] = {
        "scale_factors": np.ones(jobs),
        "weight": np.ones(jobs),
        "left": np.full(jobs, 1000.0),
        "age_s": np.zeros(jobs),
        "time_left_s": np.full(jobs, np.inf),
        "entity": tuple("ab"[i % 2] for i in range(jobs)),
    }
    return Problem(
        throughputs=speed,
        devices_of_type=np.array(room),
        serial=np.arange(jobs),
        device_types=("v100", "p100", "k80")[:kinds],
        able=speed > 0,
        pairs=Pairs(np.array(like), part),
        **(standard | rest),  # type: ignore[arg-type]
    )


def drawn(seed: int, equal: bool = False) -> tuple[Problem, Floats]:
    """Jobs of four kinds with gangs of one or two; and their parts of speed beside others before any pair is left out."""
    rng = np.random.default_rng(seed)
    jobs, kinds = int(rng.integers(4, 11)), 4
    like = rng.integers(0, kinds, jobs)
    gang = np.array([1.0, 1.0, 1.0, 2.0])[like]
    measured = rng.uniform(0.1, 1.0, (kinds, kinds, 3)) * (rng.random((kinds, kinds, 3)) < 0.9)
    can = (measured > 0) & (measured.transpose(1, 0, 2) > 0)
    can[3, :3] = can[:3, 3] = False
    measured = np.where(can, measured, 0.0)
    gains = measured + measured.transpose(1, 0, 2) > 1
    speed = rng.uniform(0.5, 20.0, (kinds, 3))[like]
    left = np.full(jobs, 1000.0) if equal else rng.uniform(100, 1e5, jobs)
    found = problem(
        speed, [1, 2, 2], like.tolist(), np.where(gains, measured, 0.0), scale_factors=gang, left=left
    )
    return found, measured


def fractions(policy: Gavel, asked: Problem) -> Fractions:
    return policy.fractions(asked, policy.start_with)[0]


def assert_feasible(asked: Problem, found: Fractions) -> None:
    time, devices = found.alone.sum(axis=1), asked.scale_factors @ found.alone
    assert (found.alone >= 0).all()
    assert (found.together >= 0).all()
    np.add.at(time, found.first, found.together)
    np.add.at(time, found.second, found.together)
    np.add.at(devices, found.device_type, found.together * asked.scale_factors[found.first])
    assert (time <= 1 + 1e-6).all()
    assert (devices <= asked.devices_of_type * (1 + 1e-6)).all()
    assert (found.first != found.second).all()
    assert (asked.scale_factors[found.first] == asked.scale_factors[found.second]).all()


def brute(asked: Problem, part: Floats, rate: Floats, reward: Floats | None = None) -> float:
    """The best level, or the most of a reward, over all combinations, by SciPy: nothing grouped, nothing left out.

    Parameters
    ----------
    part : of all pairs that run at all.
    rate : of every job on every type, alone.
    reward : the same.
    """
    jobs, kinds = rate.shape
    assert asked.pairs is not None
    like, columns = asked.pairs.like, []
    for one, other in combinations_with_replacement(range(jobs), 2):
        for kind in range(kinds):
            column, gain = np.zeros(2 * jobs + kinds), 0.0
            for own, beside in {(one, other), (other, one)}:
                share = 1.0 if one == other else part[like[own], like[beside], kind]
                column[own], column[jobs + kinds + own] = 1.0, -share * rate[own, kind]
                gain += 0.0 if reward is None else share * reward[own, kind]
            column[jobs + kind] = asked.scale_factors[one]
            if one == other or part[like[one], like[other], kind] > 0:
                columns.append((column, gain))
    level = np.concatenate((np.zeros(jobs + kinds), np.ones(jobs)))
    found = linprog(
        np.array([*(-gain for _, gain in columns), -1.0 if reward is None else 0.0]),
        A_ub=np.column_stack([column for column, _ in columns] + [level]),
        b_ub=np.concatenate((np.ones(jobs), asked.devices_of_type, np.zeros(jobs))),
        bounds=[(0, None)] * (len(columns) + 1),
    )
    assert found.status == 0
    return -float(found.fun)


# The program


def one_device() -> Problem:
    """Two jobs, one device: beside the other, one has nine tenths of its speed and the other four."""
    part = np.zeros((2, 2, 1))
    part[0, 1], part[1, 0] = 0.9, 0.4
    return problem(np.ones((2, 1)), [1], [0, 1], part)


def test_an_example_by_hand() -> None:
    # With p of the time together and the rest for the second job, 0.9 p = 0.4 p + (1 - p) where p = 2/3.
    found = fractions(MaxMinFairness(space_sharing=True), one_device())
    np.testing.assert_allclose(found.alone, [[0.0], [1 / 3]], atol=1e-9)
    assert (found.first.tolist(), found.second.tolist(), found.device_type.tolist()) == ([0], [1], [0])
    np.testing.assert_allclose(found.together, [2 / 3])
    np.testing.assert_allclose(one_device().effective_throughput(found), 0.6)
    # Work of 300 and 100, the rest for the first job: (0.9 p + (1 - p)) / 300 = 0.4 p / 100 where p = 10/13.
    skewed = replace(one_device(), left=np.array([300.0, 100.0]))
    speed = skewed.effective_throughput(fractions(LeastMakespan(space_sharing=True), skewed))
    assert (skewed.left / speed).max() == pytest.approx(325.0)


def test_equal_jobs_share_in_turns() -> None:
    # Three alike, one device, pairs at 0.8 each: 1.6 in all, and 1.6 / 3 for everybody.
    found = fractions(
        MaxMinFairness(space_sharing=True),
        problem(np.ones((3, 1)), [1], [0, 0, 0], np.full((1, 1, 1), 0.8)),
    )
    np.testing.assert_allclose(found.together, [1 / 3, 1 / 3, 1 / 3])
    assert {frozenset(p) for p in zip(found.first.tolist(), found.second.tolist(), strict=True)} == {
        frozenset((0, 1)), frozenset((1, 2)), frozenset((0, 2))
    }  # fmt: skip


def test_nobody_shares_where_devices_are_idle() -> None:
    asked = replace(one_device(), devices_of_type=np.array([2]))
    for make in SHARING:
        if make is not LeastCost:  # To share is cheaper, though slower.
            assert not len(fractions(make(space_sharing=True), asked).together)


@pytest.mark.parametrize("make", SHARING)
@pytest.mark.parametrize("seed", range(6))
def test_fractions_are_feasible(make: Callable[..., Gavel], seed: int) -> None:
    for equal in (False, True):
        asked, _ = drawn(seed, equal)
        assert_feasible(asked, fractions(make(space_sharing=True), asked))


@pytest.mark.parametrize("at_once", [0, 10_000])
@pytest.mark.parametrize("seed", range(10))
def test_optima_over_all_pairs(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether all columns are passed to the solver or only those that are worth it.
    monkeypatch.setattr(program, "_LOOKED_AT", at_once)
    for equal in (False, True):
        asked, part = drawn(seed, equal)
        shared = {make: fractions(make(space_sharing=True), asked) for make in SHARING}
        speed = {make: asked.effective_throughput(found) for make, found in shared.items()}
        fair = asked.scaled_throughputs
        reached = (speed[MaxMinFairness] * (fair / asked.throughputs)[:, 0]).min()
        assert reached == pytest.approx(brute(asked, part, fair), rel=1e-6)
        rate = asked.throughputs / asked.left[:, None] * 1e4
        least = (speed[LeastMakespan] / asked.left).min() * 1e4
        assert least == pytest.approx(brute(asked, part, rate), rel=1e-6)
        isolated = asked.throughputs / asked.isolated_throughput[:, None]
        rho = (asked.isolated_throughput / speed[FinishTimeFairness]).max()
        assert 1 / rho == pytest.approx(brute(asked, part, isolated), rel=1e-4)
        gained = asked.throughputs / asked.equal_throughput[:, None]
        most = (speed[MostThroughput] / asked.equal_throughput).sum()
        assert most == pytest.approx(brute(asked, part, fair, gained), rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_cost_counts_shared_devices_once(seed: int) -> None:
    asked, part = drawn(seed)
    assert asked.pairs is not None
    price, like = np.array([2.48, 1.46, 0.45]), asked.pairs.like
    found = fractions(LeastCost(space_sharing=True), asked)
    spent = (asked.scale_factors @ found.alone) @ price
    spent += (asked.scale_factors[found.first] * price[found.device_type] * found.together).sum()
    gained = (asked.effective_throughput(found) / asked.equal_throughput).sum()
    # No ratio of sums is larger than that of the best combination.
    unit = asked.throughputs / asked.equal_throughput[:, None] / (asked.scale_factors[:, None] * price)
    ratios = [unit.max()]
    for one in range(asked.num_jobs):
        for other in range(one):
            both = part[like[one], like[other]] * unit[one] + part[like[other], like[one]] * unit[other]
            ratios.append(both.max())
    assert gained / spent == pytest.approx(max(ratios), rel=1e-4)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(FleetError, match="space_sharing needs the speeds"):
        MaxMinFairness(aware=False, space_sharing=True)
    with pytest.raises(FleetError, match=r'solver is "prices" or "highs", got \'ecos\''):
        MaxMinFairness(solver="ecos")  # type: ignore[arg-type]


# Rounds


def test_rounds_come_to_the_fractions_of_combinations() -> None:
    found = fractions(MaxMinFairness(space_sharing=True), one_device())
    jobs, kinds = np.nonzero(np.ones_like(found.alone))
    given = TimeFractions(
        np.append(jobs, found.first),
        device_type=np.append(kinds, found.device_type),
        fraction=np.append(found.alone[jobs, kinds], found.together),
        partner=np.append(np.full(2, -1), found.second),
    )
    accounts = opened(None, np.array([5, 9]), given, 1, 0.0)
    assert accounts.jobs.tolist() == [5, 9]
    for number in range(300):
        rows, types = turn(accounts, priorities(accounts, float(number)), np.ones(3, np.int64), np.array([1]))
        assert len(rows) == 1
        accounts = credited(accounts, accounts.serial[rows], types, np.ones(1))
    np.testing.assert_allclose(accounts.received_s[:, 0] / 300, [0.0, 1 / 3, 2 / 3], atol=0.01)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_in_no_round_anybody_runs_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, kinds = int(rng.integers(2, 9)), 2
    gang, room = rng.integers(1, 3, jobs), rng.integers(1, 5, kinds)
    pairs = [(a, b) for a in range(jobs) for b in range(a) if gang[a] == gang[b] and rng.random() < 0.5]
    entries = [(a, -1, kind) for a in range(jobs) for kind in range(kinds)]
    entries += [(*pair, int(rng.integers(kinds))) for pair in pairs]
    order, partner, types = (np.array(column, np.int64) for column in zip(*entries, strict=True))
    serial = np.sort(rng.choice(1000, jobs, replace=False))
    given_s = rng.random(len(entries)) * (rng.random(len(entries)) < 0.7)
    accounts = opened(None, serial, TimeFractions(order, types, given_s, partner), kinds, 0.0)
    assert accounts.members is not None
    first, second = accounts.members
    wanted = gang[first]
    held: list[tuple[int, ...]] = [()] * jobs
    cluster = Cluster.of_pools([("v100", 1, int(room[0])), ("k80", 1, int(room[1]))])
    for now_s in range(8):
        rows, where = turn(accounts, priorities(accounts, float(now_s)), wanted, room)
        running = [*first[rows].tolist(), *(job for job in second[rows].tolist() if job >= 0)]
        assert len(set(running)) == len(running)
        assert (np.bincount(where, wanted[rows], kinds) <= room).all()
        had = [
            [held[job] for job in (first[row], second[row]) if job >= 0 and held[job]]
            for row in rows.tolist()
        ]
        devices = seats(cluster, 0, wanted[rows], where, had)
        assert all(len(own) == count for own, count in zip(devices, wanted[rows].tolist(), strict=True))
        assert max(Counter(device for own in devices for device in own).values(), default=0) <= 1
        held = [()] * jobs
        for row, own in zip(rows.tolist(), devices, strict=True):
            held[first[row]] = own
            if second[row] >= 0:
                held[second[row]] = own
        accounts = credited(accounts, accounts.serial[rows], where, np.ones(len(rows)))


def test_who_can_keep_its_devices_does() -> None:
    cluster = Cluster.uniform(2, 2)
    kind, one = np.zeros(3, np.int64), np.ones(3, np.int64)
    # Partners part: the more urgent one stays. Two that come together lie where the first of them was.
    found = seats(cluster, 0, one, kind, [[(2,)], [(2,), (3,)], []])
    assert found == [(2,), (3,), (0,)]

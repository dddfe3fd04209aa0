"""The least worst slowdown, rho: linear programs for one after the other, by prices of the types or in HiGHS."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.problem import Fractions, Problem, alike
from trainyard.fleet.policies.gavel.solver.prices import costs, even, rewarded
from trainyard.fleet.policies.gavel.solver.program import Solution, solve_in_highs
from trainyard.fleet.policies.gavel.solver.simplex import ALL, least_part

Floats = NDArray[np.float64]

_EXACT = 1e-5
"""Relative width to which rho is known where two jobs may share devices."""


def least_slowed(problem: Problem, whole_s: Floats) -> tuple[Fractions, float]:
    """Fractions with the least worst slowdown; and that, rho.

    Parameters
    ----------
    whole_s : that every job would take on its own part of the cluster.
    """
    return _by_prices(problem, whole_s) if problem.by_prices else _in_highs(problem, whole_s)


def _by_prices(problem: Problem, whole_s: Floats) -> tuple[Fractions, float]:
    """Best fractions and their rho, where no two jobs share devices.

    At prices of the types, what all need costs at most as much as there is. That is convex in rho, so Newton's method
    comes from below to the least rho that these prices allow; the program says that all can have it, or which prices
    allow only more (`solver.prices`).
    """
    seen = problem.throughputs, problem.left, problem.age_s, whole_s
    first, member, count, held = alike(problem, *seen)
    speed, left, age_s, whole_s = (v[first] for v in seen)
    least_s = left / speed.max(axis=1)

    def need(rho: float) -> Floats:
        found: Floats = left / np.maximum(rho * whole_s - age_s, least_s)
        return found

    def allowed(rho: float, price: Floats) -> float:
        while True:
            wanted = need(rho)
            cost, less, _ = costs(speed, held, wanted, price)
            ahead = rho
            if cost > ALL:
                ahead += (cost - 1) / float((less * whole_s * wanted**2 / left).sum())
            if ahead == rho:
                return rho
            rho = ahead

    rho, before, part = float(((age_s + least_s) / whole_s).max()), 0.0, float("inf")
    price = even(len(problem.devices_of_type))
    while part > ALL:
        rho = allowed(rho, price)
        if rho == before:
            # By rounding errors, prices allow what is a little too much.
            break
        before = rho
        part, price, _ = least_part(speed, held, need(rho), price, ALL)
    reward = problem.relative_throughputs[first] * count[:, None]
    fraction = rewarded(speed, held, need(rho), reward)
    return Fractions.without_pairs(fraction[member] / max(1.0, part)), rho


def _in_highs(problem: Problem, whole_s: Floats) -> tuple[Fractions, float]:
    """The same, also where two jobs share devices: regula falsi between a rho that is too small and one that is not.

    What a solution that is not enough comes to is one that all can have, and often the least: so there it looks next.
    """
    best_s, near = problem.age_s + problem.left / problem.fastest_throughput, None
    low, high = float((best_s / whole_s).max()), float("inf")
    rho, under, above = low * (1 + _EXACT), 0.0, (0.0, 0.0)
    while True:
        fraction, near = _highest(problem, whole_s, rho, None, near)
        speed = problem.effective_throughput(fraction)
        reached = float(((problem.age_s + problem.left / speed) / whole_s).max())
        if near.level < 1:
            low, under = rho, near.level - 1
        else:
            above, reached = (rho, near.level - 1), min(reached, rho)
        high = min(high, reached)
        if high - low <= _EXACT * high:
            return _highest(problem, whole_s, high, problem.relative_throughputs, near)[0], high
        if not above[0]:
            rho = high * (1 - _EXACT / 2)
        else:
            # Not nearer to an end than that: else one of them would hardly ever move.
            margin = 0.05 * (high - low)
            chord = low + (above[0] - low) * under / (under - above[1])
            rho = min(max(chord, low + margin), high - margin)


def _highest(
    problem: Problem, whole_s: Floats, rho: float, reward: Floats | None, near: Solution | None
) -> tuple[Fractions, Solution]:
    """The highest part that all can have of what they need for a rho."""
    rate, share = rates_for(problem, whole_s, rho), np.ones(problem.num_jobs)
    found = solve_in_highs(problem, rate, share=share, reward=reward, near=near)
    assert found is not None, "no time at all for anybody is a solution"
    return found


def rates_for(problem: Problem, whole_s: Floats, rho: float) -> Floats:
    """Speeds in parts of what every job needs for a rho."""
    left_s = np.maximum(rho * whole_s - problem.age_s, problem.left / problem.fastest_throughput)
    found: Floats = problem.throughputs * (left_s / problem.left)[:, None]
    return found

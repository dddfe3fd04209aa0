"""Gavel, finish-time fairness: nobody is slowed much more by the others than by an n-th of the cluster.

Narayanan et al., OSDI 2020, section 4.2, after Themis (NSDI 2020)::

    minimise X  max over m  rho_m = (t_m + num_steps_m / throughput(m, X)) / T_m

where t_m is the time since the job came and T_m the time that it would take on its own part of the cluster, 1 of n:
what its steps so far would have taken on the parts that it had, and the rest on the part of now. For a given rho every
job needs ``num_steps_m / (rho T_m - t_m)``; a linear program says whether all can have that, and if not, leads to the
next rho: by what its devices are worth, or, in HiGHS, by how far from it they are. Then, of the best fractions, those
with most throughput are taken.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem, alike
from trainyard.fleet.policies.gavel.solver.prices import costs, rewarded
from trainyard.fleet.policies.gavel.solver.program import Solution, solve_in_highs
from trainyard.fleet.policies.gavel.solver.simplex import ALL, least_part
from trainyard.fleet.snapshot import Need

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_EXACT = 1e-5
"""Relative width to which rho is known where two jobs may share devices."""


@dataclass(frozen=True, eq=False)
class _Alone:
    """What jobs would have had on their own parts.

    Attributes
    ----------
    serial, left : of the jobs that were ever decided on, as they were then.
    speed : of each on its part since then.
    past_s : what its steps before would have taken.
    """

    serial: Ints
    left: Floats
    speed: Floats
    past_s: Floats


@dataclass(frozen=True, kw_only=True)
class FinishTimeFairness(Gavel):
    """Least worst slowdown."""

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and how much work is left."""
        return frozenset({"speed", "length"})

    @property
    def start_with(self) -> _Alone:
        """Nobody was ever there."""
        return _Alone(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))

    def fractions(self, problem: Problem, kept: _Alone) -> tuple[Fractions, _Alone]:
        alone, own = _reckoned(problem, kept), slice(problem.num_jobs)
        return self.best(problem, alone.past_s[own] + problem.left / alone.speed[own]), alone

    def best(self, problem: Problem, whole_s: Floats) -> Fractions:
        """Fractions with the least worst slowdown.

        Parameters
        ----------
        whole_s : that every job would take on its own part of the cluster.
        """
        return least_slowed(problem, whole_s)[0]


def least_slowed(problem: Problem, whole_s: Floats) -> tuple[Fractions, float]:
    """Best fractions and their rho."""
    return _by_prices(problem, whole_s) if problem.by_prices else _in_highs(problem, whole_s)


def _reckoned(problem: Problem, kept: _Alone) -> _Alone:
    past_s = np.zeros(problem.num_jobs)
    _, own, old = np.intersect1d(problem.serial, kept.serial, assume_unique=True, return_indices=True)
    if len(own):
        past_s[own] = kept.past_s[old] + (kept.left[old] - problem.left[own]) / kept.speed[old]
    # Jobs that wait for nodes that are away are not in this decision, and will be in a later one.
    others = ~np.isin(kept.serial, problem.serial) & np.isin(kept.serial, problem.waiting)
    serial = np.concatenate((problem.serial, kept.serial[others]))
    left = np.concatenate((problem.left, kept.left[others]))
    speed = np.concatenate((problem.isolated_throughput, kept.speed[others]))
    return _Alone(serial, left, speed, np.concatenate((past_s, kept.past_s[others])))


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
    price = np.full(len(problem.devices_of_type), 1 / len(problem.devices_of_type))
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

"""Gavel's objectives that are one linear program, or a few of them in turn.

Narayanan et al., OSDI 2020, sections 4.1 and 4.2. X are fractions of time; jobs m are numbered from 0 in the order of
their arrival, M in all::

    max-min fairness  maximise X  min over m  scale_factor_m / w_m * throughput(m, X) / throughput(m, X^equal)
    makespan          minimise X  max over m  num_steps_m / throughput(m, X)
    FIFO              maximise X  sum over m  throughput(m, X) / throughput(m, X^fastest) * (M - m)
    throughput        maximise X  sum over m  throughput(m, X)
    cost              maximise X  sum over m  throughput(m, X)  /  sum over m, j of cost_j * X_mj * scale_factor_m

With SLOs, cost has ``throughput(m, X) >= num_steps_m / SLO_m`` for every job; deadlines that cannot all be kept are left
out, all of them. Sums are of throughputs in parts of those with equal shares, since jobs count work in different units; a
ratio of sums is maximised by Dinkelbach's method. Of many fractions that are as good, those with most throughput are
taken: then nobody shares devices without need, and what is to spare goes where it does most.

The other objectives are in `finish_time` and `water_filling`.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.

References
----------
W. Dinkelbach. "On Nonlinear Fractional Programming", Management Science 13(7), 1967.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.policies.gavel.solver import can_have, solve
from trainyard.fleet.snapshot import Need
from trainyard.hardware.prices import Prices

Floats = NDArray[np.float64]

CLOUD_PRICES: Prices = (("v100", 2.48), ("p100", 1.46), ("k80", 0.45))
"""Dollars per hour of one device on demand at Google Cloud."""


@dataclass(frozen=True, kw_only=True)
class MaxMinFairness(Gavel):
    """Max-min fairness, by weights."""

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and weights."""
        return frozenset({"speed", "weight"})

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        rate = problem.scaled_throughputs / problem.weight[:, None]
        return solve(problem, rate, highest_level=True), None


@dataclass(frozen=True, kw_only=True)
class LeastMakespan(Gavel):
    """Least makespan."""

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and how much work is left."""
        return frozenset({"speed", "length"})

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        # The level is 1 / makespan, in parts of the longest job's time, so that it is near to 1.
        longest_s = (problem.left / problem.throughputs.max(axis=1)).max()
        rate = problem.throughputs * (longest_s / problem.left)[:, None]
        return solve(problem, rate, highest_level=True), None


@dataclass(frozen=True, kw_only=True)
class GavelFifo(Gavel):
    """First in, first out."""

    leftovers: bool = field(default=False, init=False)

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        rate = problem.throughputs / problem.throughputs.max(axis=1, keepdims=True)
        places = np.arange(problem.num_jobs, 0, -1) / problem.num_jobs
        reward = rate * places[:, None]
        return solve(problem, reward, reward=reward), None


@dataclass(frozen=True, kw_only=True)
class MostThroughput(Gavel):
    """Most throughput of all jobs together, each in parts of its speed with equal shares of the cluster."""

    aware: bool = field(default=True, init=False)

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        return solve(problem, problem.relative_throughputs), None


@dataclass(frozen=True, kw_only=True)
class LeastCost(Gavel):
    """Most throughput per dollar; devices that two jobs share are paid for once.

    Attributes
    ----------
    prices : (device type, price of one device for an hour), in any currency; by default those of the cluster's file, else
        `CLOUD_PRICES`. A cluster of one type needs none.
    slo : meet the deadlines of jobs that have one.
    """

    prices: Prices = ()
    slo: bool = False
    aware: bool = field(default=True, init=False)

    @property
    def needs(self) -> frozenset[Need]:
        """Lengths only for deadlines."""
        return frozenset({"speed", "length", "deadline"} if self.slo else {"speed"})

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        need = None
        if len(problem.time_left_s):
            has_time = np.isfinite(problem.time_left_s) & (problem.time_left_s > 0)
            need = np.where(has_time, problem.left / np.where(has_time, problem.time_left_s, 1.0), -np.inf)
            # In parts of equal shares, as solvers take small numbers for none.
            need = need / problem.equal_throughput
            need = need if can_have(problem, problem.relative_throughputs, need) else None
        prices = self.prices or problem.prices or CLOUD_PRICES
        return self.best(problem, _by_type(problem.device_types, prices), need), None

    def best(self, problem: Problem, price: Floats, need: Floats | None) -> Fractions:
        """Fractions with most throughput per dollar (Dinkelbach).

        Of throughput - ratio * cost the best is found, and from it the next ratio, until it grows no more.

        Parameters
        ----------
        price : of one device of every type.
        need : that every job has, in parts of its throughput with equal shares; None for none.
        """
        gained, spent = problem.relative_throughputs, problem.scale_factors[:, None] * price
        # Without needs, the best job alone on its best type is a solution, and without pairs no other has a better ratio.
        ratio = float((gained / spent).max(initial=0.0)) if need is None else 0.0
        while True:
            # A little less than the ratio, so that of equally cheap fractions those with most throughput win.
            found = solve(problem, gained, reward=gained, cost=ratio * (1 - 1e-6) * spent, need=need)
            paid = (spent * found.alone).sum() + (
                spent[found.first, found.device_type] * found.together
            ).sum()
            reached = float(((gained * found.alone).sum() + problem.beside(gained, found).sum()) / paid)
            if reached <= ratio * (1 + 1e-9):
                return found
            ratio = reached


def _by_type(device_types: tuple[str, ...], prices: Prices) -> Floats:
    if len(device_types) == 1:
        return np.ones(1)
    known = {name.lower(): price for name, price in prices}
    missing = [kind for kind in device_types if not known.get(kind.lower(), 0.0) > 0]
    if missing:
        raise FleetError(
            f"no price above 0 for devices of type {', '.join(missing)}; prices are given for "
            f"{', '.join(name for name, _ in prices)}. Add, say, prices=(({missing[0]!r}, 1.0), ...)"
        )
    return np.array([known[kind.lower()] for kind in device_types])

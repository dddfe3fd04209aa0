"""Gavel, cost: most throughput for the money, with or without deadlines; and most throughput regardless.

Narayanan et al., OSDI 2020, section 4.2::

    maximise X  sum over m of throughput(m, X)  /  sum over m, j of cost_j * X_mj * scale_factor_m

and with SLOs, every job gets ``throughput(m, X) >= num_steps_m / SLO_m``. Throughputs are in parts of a job's speed with
equal shares, since jobs count work in different units. A ratio of linear functions is maximised by Dinkelbach's method;
of the fractions with the best ratio, those with most throughput are taken. Deadlines that cannot all be kept are left
out, all of them.

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

from trainyard.fleet.policies.gavel.best import can_have, with_most_reward
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.site import FleetError
from trainyard.fleet.snapshot import Need

Floats = NDArray[np.float64]
Prices = tuple[tuple[str, float], ...]

CLOUD_PRICES: Prices = (("v100", 2.48), ("p100", 1.46), ("k80", 0.45))
"""Dollars per hour of one device on demand at Google Cloud."""


@dataclass(frozen=True, kw_only=True)
class LeastCost(Gavel):
    """Most throughput per dollar; devices that two jobs share are paid for once.

    Attributes
    ----------
    prices : (device type, dollars per hour of one device); any unit will do, and a cluster of one type needs none.
    slo : meet the deadlines of jobs that have one.
    """

    prices: Prices = CLOUD_PRICES
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
            need = need if can_have(problem, need) else None
        return self.best(problem, _by_type(problem.kinds, self.prices), need), None

    def best(self, problem: Problem, price: Floats, need: Floats | None) -> Fractions:
        """Fractions with most throughput per dollar.

        Parameters
        ----------
        price : of one device of every type.
        need : speed that every job needs; None for none.
        """
        return _best_ratio(problem, problem.gang[:, None] * price, need)


@dataclass(frozen=True, kw_only=True)
class MostThroughput(Gavel):
    """Most throughput of all jobs together, each in parts of its speed with equal shares of the cluster."""

    aware: bool = field(default=True, init=False)

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        return with_most_reward(problem, problem.spare), None


def _best_ratio(problem: Problem, spent: Floats, need: Floats | None) -> Fractions:
    """Dinkelbach: the best of throughput - ratio * cost, and from it the next ratio, until it grows no more."""
    gained = problem.spare
    # Without needs, the best job alone on its best type is a solution, and without pairs no other has a better ratio.
    ratio = float((gained / spent).max(initial=0.0)) if need is None else 0.0
    while True:
        # A little less than the ratio, so that of equally cheap fractions those with most throughput win.
        best = with_most_reward(problem, gained, cost=ratio * (1 - 1e-6) * spent, need=need)
        paid = (spent * best.alone).sum() + (spent[best.first, best.device_type] * best.together).sum()
        reached = float(((gained * best.alone).sum() + problem.beside(gained, best).sum()) / paid)
        if reached <= ratio * (1 + 1e-9):
            return best
        ratio = reached


def _by_type(kinds: tuple[str, ...], prices: Prices) -> Floats:
    if len(kinds) == 1:
        return np.ones(1)
    known = {name.lower(): price for name, price in prices}
    missing = [kind for kind in kinds if not known.get(kind.lower(), 0.0) > 0]
    if missing:
        raise FleetError(
            f"no price above 0 for devices of type {', '.join(missing)}; prices are given for "
            f"{', '.join(name for name, _ in prices)}. Add, say, prices=(({missing[0]!r}, 1.0), ...)"
        )
    return np.array([known[kind.lower()] for kind in kinds])

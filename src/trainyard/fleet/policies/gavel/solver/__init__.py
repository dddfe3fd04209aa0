"""Linear programs of fractions of time, solved by HiGHS (`program`, `highs`) or by prices of the types (`prices`).

`solve` finds the best of one program, `fill_water` and `least_slowed` what takes several in turn.

Where no two jobs share devices, only the devices couple jobs, and programs come apart: with some ten or a hundred jobs,
the simplex method that uses that (`simplex`, `basis`) takes a fourth to a twentieth of HiGHS's time, and a whole run a
tenth to two thirds. HiGHS solves all others, and any if asked to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.policies.gavel.solver.prices import can_have_by_prices, solve_by_prices
from trainyard.fleet.policies.gavel.solver.program import solve_in_highs
from trainyard.fleet.policies.gavel.solver.slowdown import least_slowed, rates_for
from trainyard.fleet.policies.gavel.solver.water import Entities, fill_water

__all__ = ["Entities", "can_have", "fill_water", "least_slowed", "rates_for", "solve"]

Floats = NDArray[np.float64]


def solve(
    problem: Problem,
    rate: Floats,
    *,
    highest_level: bool = False,
    need: Floats | None = None,
    reward: Floats | None = None,
    cost: Floats | None = None,
) -> Fractions:
    """The best fractions: X in the paper.

    Parameters
    ----------
    rate : of every job (row) on every type, alone; beside another one it has the part of both that it has of its speed.
    highest_level : make the least rate of all jobs as high as can be, before any reward.
    need : rate that every job needs at least, which all can have; minus infinity for none.
    reward : of every job that runs on a type all the time, alone, which is maximised, 0 where it cannot; by default its
        throughput in parts of that with equal shares.
    cost : of every job's devices on every type, all the time, taken off the reward; once for all who share them.
    """
    reward = problem.relative_throughputs if reward is None else reward
    if problem.by_prices:
        return solve_by_prices(problem, rate, highest_level, need, reward if cost is None else reward - cost)
    share = np.ones(problem.num_jobs) if highest_level else None
    found = solve_in_highs(problem, rate, share=share, need=need, reward=reward, cost=cost)
    assert found is not None, "what all jobs need they can have"
    return found[0]


def can_have(problem: Problem, rate: Floats, need: Floats) -> bool:
    """Whether all jobs can have what they need.

    Parameters
    ----------
    rate, need : as for `solve`.
    """
    if problem.by_prices:
        return can_have_by_prices(problem, rate, need)
    return solve_in_highs(problem, rate, need=need) is not None

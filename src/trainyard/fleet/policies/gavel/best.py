"""Best fractions where the aim is one number: the least rate of all jobs, or a reward.

Where no two jobs share devices, they follow from prices of the types (`burden`); else, or if that is asked for, from a
linear program in HiGHS.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.filling import raised_alone, rewarded_alone, suffices_alone
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.problem import Problem, alike, solve

Floats = NDArray[np.float64]


def with_highest_level(problem: Problem, rate: Floats) -> Fractions:
    """Fractions with which the least rate of all jobs is as high as can be; of those, the ones with most throughput.

    Parameters
    ----------
    rate : of every job on every type, alone.
    """
    if problem.by_prices:
        first, member, count, held = alike(problem, rate, problem.spare)
        reward = problem.spare[first] * count[:, None]
        return Fractions.without_pairs(raised_alone(rate[first], held, reward)[member])
    found = solve(problem, rate, share=np.ones(problem.num_jobs), reward=problem.spare)
    assert found is not None, "no time at all for anybody is a solution"
    return found[0]


def can_have(problem: Problem, need: Floats) -> bool:
    """Whether all jobs can have the speeds that they need.

    Parameters
    ----------
    need : of every job, at least; minus infinity for none.
    """
    rate, need = problem.spare, need / problem.equal_speed
    if problem.by_prices:
        first, _, _, held = alike(problem, rate, need)
        return suffices_alone(rate[first], held, np.maximum(need[first], 0.0))
    return solve(problem, rate, need=need) is not None


def with_most_reward(
    problem: Problem, reward: Floats, cost: Floats | None = None, need: Floats | None = None
) -> Fractions:
    """Fractions with most reward, or most of it less what the devices cost.

    Parameters
    ----------
    reward : of every job that runs on a type all the time, alone; 0 where it cannot.
    cost : of every job's devices on every type, all the time; once for all who share them.
    need : speed that every job needs at least, which all can have; minus infinity for none.
    """
    # What is needed is seen in parts of equal shares, as solvers take small numbers for none.
    rate, need = (reward, None) if need is None else (problem.spare, need / problem.equal_speed)
    if not problem.by_prices:
        found = solve(problem, rate, reward=reward, cost=cost, need=need)
        assert found is not None, "what all jobs need they can have"
        return found[0]
    gain = reward if cost is None else reward - cost
    if need is None:
        # What only costs is as good as what a job cannot run on.
        rate = gain = np.maximum(gain, 0.0)
    needed = np.zeros(problem.num_jobs) if need is None else np.maximum(need, 0.0)
    first, member, count, held = alike(problem, rate, gain, needed)
    fraction = rewarded_alone(rate[first], held, needed[first], gain[first] * count[:, None])
    return Fractions.without_pairs(fraction[member])

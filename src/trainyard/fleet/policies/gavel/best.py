"""Best fractions where the aim is one number: the least rate of all jobs, or a reward.

Where no two jobs share devices, they follow from prices of the types (`burden`); else from a linear program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.filling import raised_alone, rewarded_alone
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.problem import Problem, alike, solve

Floats = NDArray[np.float64]


def with_highest_level(problem: Problem, rate: Floats) -> Fractions:
    """Fractions with which the least rate of all jobs is as high as can be; of those, the ones with most throughput.

    Parameters
    ----------
    rate : of every job on every type, alone.
    """
    if problem.pairs is None:
        first, member, count, held = alike(problem, rate, problem.spare)
        reward = problem.spare[first] * count[:, None]
        return Fractions.without_pairs(raised_alone(rate[first], held, reward)[member])
    found = solve(problem, rate, share=np.ones(problem.num_jobs), reward=problem.spare)
    assert found is not None, "no time at all for anybody is a solution"
    return found[0]


def with_most_reward(problem: Problem, reward: Floats) -> Fractions:
    """Fractions with most reward, where nobody needs anything.

    Parameters
    ----------
    reward : of every job that runs on a type all the time, alone; 0 where it cannot.
    """
    if problem.pairs is None:
        first, member, count, held = alike(problem, reward)
        return Fractions.without_pairs(rewarded_alone(reward[first], held, count)[member])
    found = solve(problem, reward, reward=reward)
    assert found is not None, "no time at all for anybody is a solution"
    return found[0]

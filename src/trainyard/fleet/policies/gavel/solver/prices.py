"""Levels, needs and rewards at prices of the types, where no two jobs share devices.

At any prices all jobs have cheapest vertices (`simplex`). What these cost together is a lower bound of the part of the
cluster that needs take, the best of which is the part itself. It is convex in how far needs grow, so that Newton's method
comes from above to the most that these prices allow. The program then says that all can have it, or at which prices less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled
from trainyard.fleet.policies.gavel.problem import Fractions, Problem, alike
from trainyard.fleet.policies.gavel.solver.simplex import ALL, ENOUGH, least_part, most_reward

Floats = NDArray[np.float64]


def solve_by_prices(
    problem: Problem, rate: Floats, highest_level: bool, need: Floats | None, gain: Floats
) -> Fractions:
    """Return the same as `solve`.

    Parameters
    ----------
    gain : the reward less the cost.
    """
    if need is None and not highest_level:
        # What only costs is as good as what a job cannot run on.
        rate = gain = np.maximum(gain, 0.0)
    needed = np.zeros(problem.num_jobs) if need is None else np.maximum(need, 0.0)
    first, member, count, held = alike(problem, rate, gain, needed)
    rate, gain = rate[first], gain[first] * count[:, None]
    if highest_level:
        fraction = _highest(rate, held, gain / gain.max(axis=1).sum())
    else:
        fraction = rewarded(rate, held, needed[first], gain)
    return Fractions.without_pairs(fraction[member])


def can_have_by_prices(problem: Problem, rate: Floats, need: Floats) -> bool:
    """Return the same as `can_have`, with its parameters."""
    first, _, _, held = alike(problem, rate, need)
    rate, need = rate[first], np.maximum(need[first], 0.0)
    if (need > rate.max(axis=1) * (1 + ENOUGH)).any():
        return False
    part: float = least_part(rate, held, need, even(rate.shape[1]), ALL)[0]
    return part <= ALL


def rewarded(rate: Floats, held: Floats, need: Floats, reward: Floats) -> Floats:
    """Find the fractions with the most reward among those that give each job the rate it needs.

    Parameters
    ----------
    rate : of every job (row) on every type, 0 where it cannot run.
    held : part of every type that a job and its equals hold when they run there all the time.
    need : rate of every job, which all can have.
    reward : of a job and its equals when they run on a type all the time; what they lose is a reward below 0.
    """
    # All that there can be, or, where all only lose, what they lose.
    whole = np.maximum(reward, 0.0).max(axis=1).sum() or np.abs(reward).sum() or 1.0
    found: Floats = most_reward(rate, held, need, reward / whole, even(rate.shape[1]))
    return found


@only_compiled
def even(kinds):  # type: ignore[no-untyped-def]
    """Prices to begin with."""
    return np.full(kinds, 1.0 / kinds)


@only_compiled
def _highest(rate, held, reward):  # type: ignore[no-untyped-def]
    """Find the fractions with the most reward among those whose least rate is as high as can be."""
    jobs, kinds = rate.shape
    most = np.zeros(jobs)
    for job in range(jobs):
        most[job] = rate[job].max()
    price = even(kinds)
    level, price, _ = raised(rate, held, most, np.zeros(jobs), np.ones(jobs), price, most.min())
    return most_reward(rate, held, np.full(jobs, level), reward, price)


@only_compiled
def raised(rate, held, most, level, share, price, rise):  # type: ignore[no-untyped-def]
    """Return how far levels can rise, up to a given rise; prices that prove it, and fractions that reach it."""
    before, part, following, fraction = np.inf, np.inf, price, np.zeros(rate.shape)
    while part > ALL:
        rise = _affordable(rate, held, most, level, share, following, rise)
        if rise == before:
            # By rounding errors, prices allow what is a little too much.
            break
        price, before = following, rise
        need = needed(most, level, share, rise)
        part, following, fraction = least_part(rate, held, need, price, ALL)
    for job in range(len(fraction)):
        for kind in range(len(price)):
            fraction[job, kind] /= max(1.0, part)
    return rise, price, fraction


@only_compiled
def needed(most, level, share, rise):  # type: ignore[no-untyped-def]
    found = np.zeros(len(level))
    for job in range(len(level)):
        found[job] = min(most[job], level[job] + share[job] * rise) if share[job] > 0 else level[job]
    return found


@only_compiled
def _affordable(rate, held, most, level, share, price, rise):  # type: ignore[no-untyped-def]
    """The most that levels can rise at these prices, up to a given rise (Newton's method)."""
    while rise > 0.0:
        cost, less, _ = costs(rate, held, needed(most, level, share, rise), price)
        slope = 0.0
        for job in range(len(level)):
            slope += share[job] * less[job]
        if cost <= ALL or slope <= 0.0:
            break
        lower = max(0.0, rise - (cost - 1.0) / slope)
        if lower == rise:
            break
        rise = lower
    return rise


@only_compiled
def costs(rate, held, need, price):  # type: ignore[no-untyped-def]
    """Return the cost of needs at prices.

    The cost of a job as a function of its rate is the lower hull of rest, which costs nothing, and of all types.

    Parameters
    ----------
    rate, held, need, price : as in `least_part`.

    Returns
    -------
    The cost of all jobs; and of every job, by unit of rate, what a little less would save and a little more would cost,
    infinite where there is no more.
    """
    jobs, kinds = rate.shape
    total, less, more = 0.0, np.zeros(jobs), np.full(jobs, np.inf)
    for job in range(jobs):
        want, cost = need[job], 0.0
        below, above = want * (1 - ENOUGH), want * (1 + ENOUGH)
        if want > 0:
            cost = np.inf
            for fast in range(kinds):
                if rate[job, fast] < below:
                    continue
                dear = held[job, fast] * price[fast]
                cost = min(cost, dear * min(1.0, want / rate[job, fast]))
                for slow in range(kinds):
                    if 0 < rate[job, slow] < below:
                        cheap = held[job, slow] * price[slow]
                        part = min(1.0, (want - rate[job, slow]) / (rate[job, fast] - rate[job, slow]))
                        cost = min(cost, cheap + part * (dear - cheap))
            less[job] = cost / want
        for kind in range(kinds):
            at, whole = rate[job, kind], held[job, kind] * price[kind]
            if at > above:
                more[job] = min(more[job], max(0.0, whole - cost) / (at - want))
            elif 0 < at < below:
                less[job] = max(less[job], (cost - whole) / (want - at))
        total += cost
    return total, less, more

"""Water filling where no two jobs share devices: levels rise to what the cluster can bear, bottleneck by bottleneck.

How far all levels can rise is found by prices (`burden`): at any prices the needs of all jobs cost at most as much as
there is. What they cost is convex in how far the levels rise, so that Newton's method comes from above to the most that
these prices allow; the program says that all jobs can have it, or which prices allow less. A job to which more would cost
something can have no more, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.policies.gavel.burden import ALL, ENOUGH, costs, least_part, most_reward

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Entities:
    """Who the jobs belong to.

    Attributes
    ----------
    entity : of every job, by number.
    weight : of every entity.
    is_fifo : whether in an entity all goes to the first job that can still grow.
    """

    entity: Ints
    weight: Floats
    is_fifo: Bools

    def split(self, grows: Bools, weight: Floats) -> Floats:
        """Parts of all jobs in what comes next.

        Parameters
        ----------
        grows : which jobs can still grow, in the order of arrival.
        weight : of every job.
        """
        order = np.arange(len(weight))
        found: Floats = _split(
            grows, weight, np.ones(len(weight)), order, self.entity, self.weight, self.is_fifo
        )
        return found


def filled_alone(
    rate: Floats, held: Floats, weight: Floats, count: Floats, order: Ints, of: Entities
) -> Floats:
    """Fractions by water filling.

    Parameters
    ----------
    rate : of every job (row) on every type, 0 where it cannot run.
    held : part of every type that a job and its equals hold when they run there all the time.
    weight, count : of every job, and how many equal ones it stands for.
    order : of arrival of every job.
    """
    found: Floats = _filled(rate, held, weight, count, order, of.entity, of.weight, of.is_fifo)
    return found


def raised_alone(rate: Floats, held: Floats, reward: Floats) -> Floats:
    """Of the fractions with which the least rate of all is as high as can be, the ones with most reward.

    Parameters
    ----------
    rate, held : as for `filled_alone`.
    reward : of a job and its equals when they run on a type all the time.
    """
    found: Floats = _raised_alone(rate, held, reward / reward.max(axis=1).sum())
    return found


def rewarded_alone(rate: Floats, held: Floats, need: Floats, reward: Floats) -> Floats:
    """Of the fractions with which all have what they need, the ones with most reward.

    Parameters
    ----------
    rate, held, reward : as for `raised_alone`; what a job loses where it runs is a reward below 0.
    need : rate of every job, which all can have.
    """
    # All that there can be, or, where all only lose, what they lose.
    whole = np.maximum(reward, 0.0).max(axis=1).sum() or np.abs(reward).sum() or 1.0
    found: Floats = most_reward(rate, held, need, reward / whole, _even(rate.shape[1]))
    return found


def suffices_alone(rate: Floats, held: Floats, need: Floats) -> bool:
    """Whether the cluster suffices for what all jobs need.

    Parameters
    ----------
    rate, held, need : as for `rewarded_alone`.
    """
    if (need > rate.max(axis=1) * (1 + ENOUGH)).any():
        return False
    part: float = least_part(rate, held, need, _even(rate.shape[1]), ALL)[0]
    return part <= ALL


@compiled
def _even(kinds):  # type: ignore[no-untyped-def]
    """Prices to begin with."""
    return np.full(kinds, 1.0 / kinds)


@compiled
def _raised_alone(rate, held, reward):  # type: ignore[no-untyped-def]
    jobs, kinds = rate.shape
    most = np.zeros(jobs)
    for job in range(jobs):
        most[job] = rate[job].max()
    price = _even(kinds)
    level, price, _ = _raised(rate, held, most, np.zeros(jobs), np.ones(jobs), price, most.min())
    return most_reward(rate, held, np.full(jobs, level), reward, price)


@compiled
def _split(grows, weight, count, order, entity, entity_weight, is_fifo):  # type: ignore[no-untyped-def]
    """Weights of entities, divided among their jobs that can still grow or given to the first of them."""
    first, total = np.full(len(entity_weight), -1), np.zeros(len(entity_weight))
    for job in range(len(grows)):
        whose = entity[job]
        if grows[job]:
            total[whose] += weight[job] * count[job]
            if first[whose] < 0 or order[job] < order[first[whose]]:
                first[whose] = job
    found = np.zeros(len(grows))
    for job in range(len(grows)):
        whose = entity[job]
        if grows[job] and is_fifo[whose]:
            found[job] = entity_weight[whose] if job == first[whose] else 0.0
        elif grows[job]:
            found[job] = entity_weight[whose] * weight[job] / total[whose]
    return found


@compiled
def _filled(rate, held, weight, count, order, entity, entity_weight, is_fifo):  # type: ignore[no-untyped-def]
    jobs, kinds = rate.shape
    most, level = np.zeros(jobs), np.zeros(jobs)
    for job in range(jobs):
        most[job] = rate[job].max()
    grows, price, fraction = np.ones(jobs, np.bool_), _even(kinds), np.zeros(rate.shape)
    while grows.any():
        share = _split(grows, weight, count, order, entity, entity_weight, is_fifo)
        top = np.inf
        for job in range(jobs):
            if share[job] > 0:
                top = min(top, (most[job] - level[job]) / share[job])
        rise, price, fraction = _raised(rate, held, most, level, share, price, top)
        level = _needs(most, level, share, rise)
        if not _stop(grows, share, costs(rate, held, level, price)[2], rise < top):
            break
    return fraction


@compiled
def _stop(grows, share, more, tight):  # type: ignore[no-untyped-def]
    """Let jobs grow no more that can have no more; whether there are any.

    Parameters
    ----------
    more : what a little more would cost each, at prices that are right if devices are the limit (``tight``); infinite
        for those that have all that they can have.
    """
    total, found = 0.0, False
    for job in range(len(share)):
        if share[job] > 0 and more[job] < np.inf:
            total += share[job] * more[job]
    for job in range(len(share)):
        dear = more[job] == np.inf or (tight and share[job] * more[job] > ENOUGH * total)
        if share[job] > 0 and dear:
            grows[job], found = False, True
    return found


@compiled
def _raised(rate, held, most, level, share, price, rise):  # type: ignore[no-untyped-def]
    """How far levels can rise, up to a given rise; prices that prove it, and fractions that reach it."""
    before, part, following, fraction = np.inf, np.inf, price, np.zeros(rate.shape)
    while part > ALL:
        rise = _affordable(rate, held, most, level, share, following, rise)
        if rise == before:
            # By rounding errors, prices allow what is a little too much.
            break
        price, before = following, rise
        need = _needs(most, level, share, rise)
        part, following, fraction = least_part(rate, held, need, price, ALL)
    for job in range(len(fraction)):
        for kind in range(len(price)):
            fraction[job, kind] /= max(1.0, part)
    return rise, price, fraction


@compiled
def _needs(most, level, share, rise):  # type: ignore[no-untyped-def]
    found = np.zeros(len(level))
    for job in range(len(level)):
        found[job] = min(most[job], level[job] + share[job] * rise) if share[job] > 0 else level[job]
    return found


@compiled
def _affordable(rate, held, most, level, share, price, rise):  # type: ignore[no-untyped-def]
    """The most that levels can rise at these prices, up to a given rise (Newton's method)."""
    while rise > 0.0:
        cost, less, _ = costs(rate, held, _needs(most, level, share, rise), price)
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

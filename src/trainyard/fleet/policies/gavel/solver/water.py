"""Water filling: levels rise bottleneck by bottleneck, by prices of the types or by a linear program for each.

All levels rise as far as they can, and a job to which more would cost something can have no more, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled
from trainyard.fleet.policies.gavel.problem import Fractions, Problem, alike
from trainyard.fleet.policies.gavel.solver.prices import costs, even, needed, raised
from trainyard.fleet.policies.gavel.solver.program import solve_in_highs
from trainyard.fleet.policies.gavel.solver.simplex import ENOUGH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_PRICED = 1e-9
"""Prices below count as none: the prices of one program sum to about 1."""


@dataclass(frozen=True, eq=False)
class Entities:
    """Owners of the jobs.

    Attributes
    ----------
    entity : of every job, by number.
    weight : of every entity.
    is_fifo : whether in an entity all goes to the first job that can still grow.
    """

    entity: Ints
    weight: Floats
    is_fifo: Bools


def fill_water(problem: Problem, of: Entities) -> Fractions:
    """Water filling (algorithm 1 of the appendix)."""
    if not problem.by_prices:
        return _filled_in_highs(problem, of)
    order, rate = np.arange(problem.num_jobs), problem.scaled_throughputs
    # Jobs are one where all else is equal, unless the first of them comes first.
    come = np.where(of.is_fifo[of.entity], order, -1)
    first, member, count, held = alike(problem, rate, problem.weight, of.entity, come)
    found = _filled(
        rate[first], held, problem.weight[first], count.astype(float), first, of.entity[first], of.weight, of.is_fifo
    )  # fmt: skip
    return Fractions.without_pairs(found[member])


def _filled_in_highs(problem: Problem, of: Entities) -> Fractions:
    """The same also where two jobs may share devices: a linear program for every bottleneck."""
    rate, ones, order = problem.scaled_throughputs, np.ones(problem.num_jobs), np.arange(problem.num_jobs)
    level, grows = np.zeros(problem.num_jobs), np.ones(problem.num_jobs, np.bool_)
    fraction = Fractions.without_pairs(np.zeros_like(problem.throughputs))
    while grows.any():
        share = _split(grows, problem.weight, ones, order, of.entity, of.weight, of.is_fifo)
        found = solve_in_highs(problem, rate, share=share, need=level)
        if found is None:
            # What was reached is no longer feasible by a rounding error: it is the end.
            break
        fraction, solution = found
        level = np.where(share > 0, level + share * solution.level, level) * (1 - 1e-9)
        stuck = grows & (share > 0) & (solution.price > _PRICED)
        if not stuck.any():
            break
        grows &= ~stuck
    return fraction


@only_compiled
def _filled(rate, held, weight, count, order, entity, entity_weight, is_fifo):  # type: ignore[no-untyped-def]
    """Fractions by water filling.

    Parameters
    ----------
    rate, held : as for `prices.rewarded`.
    weight, count, order : of every job: its weight, how many equal ones it stands for, and when it came.
    entity, entity_weight, is_fifo : as for `_split`.
    """
    jobs, kinds = rate.shape
    most, level = np.zeros(jobs), np.zeros(jobs)
    for job in range(jobs):
        most[job] = rate[job].max()
    grows, price, fraction = np.ones(jobs, np.bool_), even(kinds), np.zeros(rate.shape)
    while grows.any():
        share = _split(grows, weight, count, order, entity, entity_weight, is_fifo)
        top = np.inf
        for job in range(jobs):
            if share[job] > 0:
                top = min(top, (most[job] - level[job]) / share[job])
        rise, price, fraction = raised(rate, held, most, level, share, price, top)
        level = needed(most, level, share, rise)
        if not _stop(grows, share, costs(rate, held, level, price)[2], rise < top):
            break
    return fraction


@only_compiled
def _split(grows, weight, count, order, entity, entity_weight, is_fifo):  # type: ignore[no-untyped-def]
    """Weights of entities, divided among their jobs that can still grow or given to the first of them.

    Parameters
    ----------
    grows, weight, count, order : of every job: whether it can still grow, and as for `_filled`.
    entity : of every job, by number.
    entity_weight, is_fifo : of every entity: its weight, and whether all goes to its first job that can still grow.
    """
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


@only_compiled
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

"""The program where no two jobs share devices, by the simplex method: what is fast about it is that jobs come apart.

A job has the rate that it needs at the least expense where it divides its time between two types, one at least as fast as
that and one slower, or between one type and rest: the vertices of what it can do. The program is to choose among them::

    minimise  part
    sum of w over the vertices of a job                          = 1                   for every job
    sum of devices * X(vertex) * w over the vertices of all jobs <= part * its devices for every type

That is one row for every job and only a few that they share, which the simplex method can use (`basis`). Where needs
leave some of the cluster, steps go on from there to the fractions with most reward.
"""

from __future__ import annotations

import numpy as np

from trainyard.compiling import only_compiled
from trainyard.fleet.policies.gavel.solver.basis import (
    EXACT,
    PART,
    STEEP,
    begun,
    exchanged,
    fill,
    fractions_of,
    inverse_of,
    leaving,
    priced,
    times,
)  # fmt: skip

ALL = 1 + 2 * EXACT
"""The part of the cluster that jobs may have: all of it, and the relative distance from the least part at which the
method ends."""
ENOUGH = 1e-9
"""Relative difference of rates that counts as none."""
_WORTH = 1e-10
"""Reward that is not worth a step, in parts of all that there can be."""
_STALLED = 50
"""Steps without progress after which any column that promises some is as good as the best: so that it ends."""


@only_compiled
def least_part(rate, held, need, price, enough):  # type: ignore[no-untyped-def]
    """The least part of the devices of every type on which all jobs have what they need.

    Parameters
    ----------
    rate : of every job (row) on every type, 0 where it cannot run.
    held : part of every type that a job, or all that it stands for, holds when it runs there all the time.
    need : rate of every job, at most its largest.
    price : of the types, to begin with.
    enough : a part below which none is looked for.

    Returns
    -------
    The part; prices at which needs cost it, which are those of all devices of every type and sum to 1; and fractions.
    """
    takes, count = _vertices(rate, held, need, rate, False)
    basis = begun(takes, count, price)
    part, found, value = _stepped(takes, count, basis, np.inf, enough)
    prices = np.where(found[:-1] <= EXACT, 0.0, found[:-1])
    return part, prices / _total(prices), fractions_of(takes, held, basis, value)


@only_compiled
def most_reward(rate, held, need, reward, price):  # type: ignore[no-untyped-def]
    """Find the fractions with the most reward among those that give each job the rate it needs.

    From the first that suffice, at the least part of the cluster, steps go on with the reward as the aim, while the part
    may grow to all of it.

    Parameters
    ----------
    rate, held, need, price : as in `least_part`; all can have what they need.
    reward : of every job, or of all that it stands for, when it runs on a type all the time; 1 for all together, or less.
    """
    takes, count = _vertices(rate, held, need, reward, True)
    basis = begun(takes, count, price)
    part = _stepped(takes, count, basis, np.inf, ALL)[0]
    most = max(1.0, part)
    value = _stepped(takes, count, basis, most, -np.inf)[2]
    return fractions_of(takes, held, basis, value) / most


@only_compiled
def _vertices(rate, held, need, reward, more):  # type: ignore[no-untyped-def]
    """Return the part of each type that each vertex of each job takes, then its cost: 0, or less by its reward.

    Parameters
    ----------
    more : whether jobs may have more than they need, for a reward.

    Returns
    -------
    Those, and how many vertices every job has.
    """
    jobs, kinds = rate.shape
    most = (kinds + 1) ** 2 // 4 + (kinds if more else 0)
    takes, count = np.zeros((jobs, most, kinds + 1)), np.zeros(jobs, np.int64)
    for job in range(jobs):
        want = need[job]
        if want <= 0:
            # To rest all the time.
            count[job] = 1
        below, above = want * (1 - ENOUGH), max(0.0, want) * (1 + ENOUGH)
        for fast in range(kinds):
            if more and rate[job, fast] > above:
                takes[job, count[job], fast] = held[job, fast]
                count[job] += 1
            if want <= 0 or rate[job, fast] < below:
                continue
            takes[job, count[job], fast] = held[job, fast] * min(1.0, want / rate[job, fast])
            count[job] += 1
            for slow in range(kinds):
                at = rate[job, slow]
                if 0 < at < below:
                    time = min(1.0, (want - at) / (rate[job, fast] - at))
                    takes[job, count[job], fast] = held[job, fast] * time
                    takes[job, count[job], slow] = held[job, slow] * (1.0 - time)
                    count[job] += 1
        for place in range(count[job] if more else 0):
            for kind in range(kinds):
                if takes[job, place, kind] > 0:
                    takes[job, place, kinds] -= reward[job, kind] * takes[job, place, kind] / held[job, kind]
    return takes, count


@only_compiled
def _stepped(takes, count, basis, most, enough):  # type: ignore[no-untyped-def]
    """Steps to the least part, down to one that is enough; or, if the part has a bound (``most``), to the least cost.

    Returns
    -------
    The part or the cost; prices of the types, and of the cost; and values of the columns. The basis is changed.
    """
    kinds, by_cost, grows = len(basis.owner), most < np.inf, True
    price, value, step, entering = np.zeros(kinds + 1), np.zeros(kinds), np.zeros(kinds), np.zeros(kinds)
    price[kinds] = 1.0 if by_cost else 0.0
    least, now, stalled = np.inf, np.inf, 0
    # Far more steps than it ever takes; where they end it, fractions suffice and are nearly the best.
    for left in range(999 + 50 * len(takes), -1, -1):
        inverse = inverse_of(takes, basis)
        at = np.argmax(basis.owner == PART)
        price[:kinds] = 0.0
        for column in range(kinds):
            cost = _more_cost(takes, basis, column) if by_cost else 1.0 if column == at else 0.0
            for kind in range(kinds):
                price[kind] -= cost * inverse[column, kind]
        taken, saved, job, place = priced(takes, count, basis.key, price, stalled > _STALLED)
        times(inverse, (0.0 if grows else most) - taken[:kinds], value)
        now = taken[kinds] if by_cost else value[at]
        for column in range(kinds if by_cost else 0):
            now += value[column] * _more_cost(takes, basis, column)
        stalled, least = stalled + 1 if now >= least else 0, min(least, now)
        small = _WORTH if by_cost else EXACT * now
        if now <= enough or job == PART or (job >= 0 and saved <= small) or left == 0:
            break
        fill(entering, takes, basis.key, job, place)
        times(inverse, entering, step)
        far, leaves = leaving(basis.owner, value, step, job)
        if grows and step[at] < -STEEP and (most - value[at]) / -step[at] < far:
            far, leaves, grows = max(0.0, most - value[at]) / -step[at], at, False
        for column in range(kinds):
            value[column] -= far * step[column]
        exchanged(basis, value, far, leaves, job, place)
    return now, price, value


@only_compiled
def _more_cost(takes, basis, column):  # type: ignore[no-untyped-def]
    """Return by how much a column of the basis costs more than the key of its job; 0 for a column of no job."""
    job, last = basis.owner[column], takes.shape[2] - 1
    return takes[job, basis.place[column], last] - takes[job, basis.key[job], last] if job >= 0 else 0.0


@only_compiled
def _total(values):  # type: ignore[no-untyped-def]
    found = 0.0
    for value in values:
        found += value
    return found

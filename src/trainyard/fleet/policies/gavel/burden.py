"""What a cluster can bear: the least part of it on which all jobs have the rates that they need.

Where no two jobs share devices, only the devices couple jobs, and the program of section 3.1 comes apart. A job has the
rate that it needs at the least expense where it divides its time between two types, one at least as fast as that and one
slower, or between one type and rest: the vertices of what it can do. The program is to choose among them::

    minimise  part
    sum of w over the vertices of a job                          = 1                   for every job
    sum of devices * X(vertex) * w over the vertices of all jobs <= part * its devices for every type

That is one row for every job and only a few that they share, which the simplex method can use (`steps`).

At any prices of the types all jobs have cheapest vertices. What these cost together is a lower bound of the part, the
best of which is the part itself. So how far needs can grow is found at prices, which takes no program, and then proved by
the program, or it tells the prices at which they can grow less.

Where needs leave some of the cluster, steps go on from there to the fractions with most reward (`most_reward`).
"""

from __future__ import annotations

import numpy as np

from trainyard.compiling import compiled
from trainyard.fleet.policies.gavel.steps import (
    EXACT,
    PART,
    STALLED,
    STEEP,
    begun,
    exchanged,
    fill,
    fractions_of,
    inverse_of,
    leaving,
    priced,
    times,
)

ENOUGH = 1e-9
"""Relative difference of rates that counts as none."""

ALL = 1 + 2 * EXACT
"""The part of the cluster that jobs may have: all of it, and the relative distance from the least part at which the
method ends."""

_WORTH = 1e-10
"""Reward that is not worth a step, in parts of all that there can be."""


@compiled
def costs(rate, held, need, price):  # type: ignore[no-untyped-def]
    """What needs cost at prices.

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


@compiled
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
    takes, count = _vertices(rate, held, need, False)
    part, price, basis, value = _least(takes, count, price, enough)
    _clean(price)
    return part, price, fractions_of(takes, held, basis, value)


@compiled
def _least(takes, count, price, enough):  # type: ignore[no-untyped-def]
    """The part and prices, and the basis with its values."""
    jobs, kinds = len(takes), len(price)
    basis, price = begun(takes, count, price), price.copy()
    part, stalled = np.inf, 0
    value, step, entering = np.zeros(kinds), np.zeros(kinds), np.zeros(kinds)
    most_steps = _most_steps(jobs)
    for number in range(most_steps):
        inverse = inverse_of(takes, basis)
        at = np.argmax(basis.owner == PART)
        for kind in range(kinds):
            price[kind] = -inverse[at, kind]
        taken, saved, job, place = priced(takes, count, basis.key, price, stalled > STALLED)
        times(inverse, taken, -1.0, value)
        stalled = stalled + 1 if value[at] >= part else 0
        part = value[at]
        done = part <= enough or job == PART or (job >= 0 and saved <= EXACT * part)
        if done or number == most_steps - 1:
            break
        fill(entering, takes, basis.key, job, place)
        times(inverse, entering, 1.0, step)
        far, leaves = leaving(basis.owner, value, step, job)
        for column in range(kinds):
            value[column] -= far * step[column]
        exchanged(basis, value, far, leaves, job, place)
    return part, price, basis, value


@compiled
def most_reward(rate, held, need, reward, price):  # type: ignore[no-untyped-def]
    """Of the fractions with which all jobs have what they need, the ones with most reward.

    From the first that suffice, at the least part of the cluster, steps go on with the reward as the aim, while the part
    may grow to all of it.

    Parameters
    ----------
    rate, held, need, price : as in `least_part`; all can have what they need.
    reward : of every job, or of all that it stands for, when it runs on a type all the time; 1 for all together, or less.
    """
    jobs, kinds = rate.shape
    plain, count = _vertices(rate, held, need, True)
    takes = _with_cost(plain, held, reward)
    part, price, basis, value = _least(takes, count, price, ALL)
    most, grows, stalled, least = max(1.0, part), True, 0, np.inf
    paid, step, entering = np.ones(kinds + 1), np.zeros(kinds), np.zeros(kinds)
    most_steps = _most_steps(jobs)
    for number in range(most_steps):
        inverse = inverse_of(takes, basis)
        paid[:kinds] = 0.0
        for column in range(kinds):
            job, place = basis.owner[column], basis.place[column]
            if job >= 0:
                cost = takes[job, place, kinds] - takes[job, basis.key[job], kinds]
                for kind in range(kinds):
                    paid[kind] -= cost * inverse[column, kind]
        taken, saved, job, place = priced(takes, count, basis.key, paid, stalled > STALLED)
        times(inverse, (0.0 if grows else most) - taken[:kinds], 1.0, value)
        cost = _cost_of(takes, basis, value, taken[kinds])
        stalled = stalled + 1 if cost >= least else 0
        least = min(least, cost)
        if job == PART or (job >= 0 and saved <= _WORTH) or number == most_steps - 1:
            break
        fill(entering, takes, basis.key, job, place)
        times(inverse, entering, 1.0, step)
        far, leaves = leaving(basis.owner, value, step, job)
        at = np.argmax(basis.owner == PART)
        if grows and step[at] < -STEEP and (most - value[at]) / -step[at] < far:
            far, leaves, grows = max(0.0, most - value[at]) / -step[at], at, False
        for column in range(kinds):
            value[column] -= far * step[column]
        exchanged(basis, value, far, leaves, job, place)
    return fractions_of(plain, held, basis, value) / most


@compiled
def _most_steps(jobs):  # type: ignore[no-untyped-def]
    """Far more than it ever takes; where they end it, fractions suffice and are nearly the best."""
    return 1000 + 50 * jobs


@compiled
def _with_cost(takes, held, reward):  # type: ignore[no-untyped-def]
    """What vertices take of every type; and after that what they cost, which is less than nothing by their reward."""
    jobs, most, kinds = takes.shape
    found = np.zeros((jobs, most, kinds + 1))
    for job in range(jobs):
        for place in range(most):
            for kind in range(kinds):
                found[job, place, kind] = takes[job, place, kind]
                if takes[job, place, kind] > 0:
                    found[job, place, kinds] -= reward[job, kind] * takes[job, place, kind] / held[job, kind]
    return found


@compiled
def _cost_of(takes, basis, value, keys):  # type: ignore[no-untyped-def]
    """What a basis costs, of which the keys cost so much."""
    found, last = keys, takes.shape[2] - 1
    for column in range(len(value)):
        job = basis.owner[column]
        if job >= 0:
            more = takes[job, basis.place[column], last] - takes[job, basis.key[job], last]
            found += value[column] * more
    return found


@compiled
def _clean(price):  # type: ignore[no-untyped-def]
    """Without the rounding errors of types that have devices to spare."""
    total = 0.0
    for kind in range(len(price)):
        if price[kind] <= EXACT:
            price[kind] = 0.0
        total += price[kind]
    for kind in range(len(price)):
        price[kind] /= total


@compiled
def _vertices(rate, held, need, more):  # type: ignore[no-untyped-def]
    """What every vertex of every job takes of every type, and how many vertices a job has.

    Parameters
    ----------
    more : whether jobs may have more than they need.
    """
    jobs, kinds = rate.shape
    most = (kinds + 1) ** 2 // 4 + (kinds if more else 0)
    takes, count = np.zeros((jobs, most, kinds)), np.zeros(jobs, np.int64)
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
    return takes, count

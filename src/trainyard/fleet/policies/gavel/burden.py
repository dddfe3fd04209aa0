"""What a cluster can bear: the least part of it on which all jobs have the rates that they need.

Where no two jobs share devices, only the devices couple jobs, and the program of section 3.1 comes apart. A job has the
rate that it needs at the least expense where it divides its time between two types, one at least as fast as that and one
slower, or between one type and rest: the vertices of what it can do. The program is to choose among them::

    minimise  part
    sum of w over the vertices of a job                          = 1                   for every job
    sum of devices * X(vertex) * w over the vertices of all jobs <= part * its devices for every type

That is one row for every job and only a few that they share, so the simplex method needs a matrix no larger than there
are types: every job has a key, a vertex that takes all of its weight that its others do not take (generalised upper
bounds). Nothing is carried from step to step but the basis, so that errors do not add up.

At any prices of the types all jobs have cheapest vertices. What these cost together is a lower bound of the part, the
best of which is the part itself. So how far needs can grow is found at prices, which takes no program, and then proved by
the program, or it tells the prices at which they can grow less.

References
----------
G. B. Dantzig, R. M. Van Slyke. "Generalized Upper Bounding Techniques", Journal of Computer and System Sciences 1, 1967.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ENOUGH = 1e-9
"""Relative difference of rates that counts as none."""

_EXACT = 1e-11
"""Relative distance from the least part at which the method ends."""
ALL = 1 + 2 * _EXACT
"""The part of the cluster that jobs may have: all of it, and what that distance adds."""
_STEEP = 1e-12
"""What is not steeper than that does not end a step."""
_STALLED = 50
"""Steps without progress after which any column that promises some is as good as the best: so that it ends."""

_PART, _SPARE = -1, -2
"""Instead of the job, in columns of none: the part of the cluster, and devices of a type that are to spare."""


class _Basis(NamedTuple):
    """Columns whose values the rows decide: the keys of all jobs, and one for every type.

    Attributes
    ----------
    key : vertex of every job.
    owner, place : of the others, whose they are and which vertex; of spare devices, which type.
    """

    key: Ints
    owner: Ints
    place: Ints


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
    jobs, kinds = rate.shape
    takes, count = _vertices(rate, held, need)
    basis, price = _begun(takes, count, price), price.copy()
    part, stalled = np.inf, 0
    value, step, entering = np.zeros(kinds), np.zeros(kinds), np.zeros(kinds)
    matrix = np.zeros((kinds, kinds))
    # Far more steps than it ever takes; where it ends, fractions are right and the part is nearly so.
    for _ in range(1000 + 50 * jobs):
        for column in range(kinds):
            _fill(entering, takes, basis.key, basis.owner[column], basis.place[column])
            matrix[:, column] = entering
        inverse = _inverse(matrix)
        at = np.argmax(basis.owner == _PART)
        for kind in range(kinds):
            price[kind] = -inverse[at, kind]
        taken, saved, job, place = _priced(takes, count, basis.key, price, stalled > _STALLED)
        _times(inverse, taken, -1.0, value)
        stalled = stalled + 1 if value[at] >= part else 0
        part = value[at]
        if part <= enough or job == _PART or (job >= 0 and saved <= _EXACT * part):
            break
        _fill(entering, takes, basis.key, job, place)
        _times(inverse, entering, 1.0, step)
        far, leaves = _leaving(basis.owner, value, step, job)
        for column in range(kinds):
            value[column] -= far * step[column]
        _exchange(basis, value, far, leaves, job, place)
    _clean(price)
    return part, price, _fractions(takes, held, basis, value)


@compiled
def _clean(price):  # type: ignore[no-untyped-def]
    """Without the rounding errors of types that have devices to spare."""
    total = 0.0
    for kind in range(len(price)):
        if price[kind] <= _EXACT:
            price[kind] = 0.0
        total += price[kind]
    for kind in range(len(price)):
        price[kind] /= total


@compiled
def _vertices(rate, held, need):  # type: ignore[no-untyped-def]
    """What every vertex of every job takes of every type, and how many vertices a job has."""
    jobs, kinds = rate.shape
    takes, count = np.zeros((jobs, (kinds + 1) ** 2 // 4, kinds)), np.zeros(jobs, np.int64)
    for job in range(jobs):
        want = need[job]
        if want <= 0:
            # Only one, to rest all the time.
            count[job] = 1
            continue
        below = want * (1 - ENOUGH)
        for fast in range(kinds):
            if rate[job, fast] < below:
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


@compiled
def _begun(takes, count, price):  # type: ignore[no-untyped-def]
    """A basis to begin with: everybody's cheapest vertex.

    The type of which most is taken says which part it is; of the others there are devices to spare.
    """
    jobs, _, kinds = takes.shape
    key, taken = np.zeros(jobs, np.int64), np.zeros(kinds)
    for job in range(jobs):
        key[job] = _cheapest(takes, count, price, job)[0]
        for kind in range(kinds):
            taken[kind] += takes[job, key[job], kind]
    owner = np.full(kinds, _SPARE)
    owner[np.argmax(taken)] = _PART
    return _Basis(key, owner, np.arange(kinds))


@compiled
def _cost(takes, price, job, place):  # type: ignore[no-untyped-def]
    found = 0.0
    for kind in range(len(price)):
        found += takes[job, place, kind] * price[kind]
    return found


@compiled
def _cheapest(takes, count, price, job):  # type: ignore[no-untyped-def]
    """The vertex of a job that costs least, and its cost."""
    best, least = 0, _cost(takes, price, job, 0)
    for other in range(1, count[job]):
        cost = _cost(takes, price, job, other)
        if cost < least:
            best, least = other, cost
    return best, least


@compiled
def _fill(out, takes, key, job, place):  # type: ignore[no-untyped-def]
    """A column of the matrix: what more of it takes of every type when its job's key makes room for it."""
    for kind in range(len(out)):
        if job >= 0:
            out[kind] = takes[job, place, kind] - takes[job, key[job], kind]
        else:
            out[kind] = -1.0 if job == _PART else 1.0 if kind == place else 0.0


@compiled
def _inverse(matrix):  # type: ignore[no-untyped-def]
    """Of a matrix so small that LAPACK would take longer to call (Gauss and Jordan)."""
    size = len(matrix)
    left, right = matrix.copy(), np.eye(size)
    for column in range(size):
        pivot = column
        for row in range(column + 1, size):
            if abs(left[row, column]) > abs(left[pivot, column]):
                pivot = row
        scale = 1.0 / left[pivot, column]
        # In this order, since both may be the same row.
        for k in range(size):
            left[pivot, k], left[column, k] = left[column, k], left[pivot, k] * scale
            right[pivot, k], right[column, k] = right[column, k], right[pivot, k] * scale
        for row in range(size):
            factor = left[row, column]
            if row != column and factor != 0.0:
                for k in range(size):
                    left[row, k] -= factor * left[column, k]
                    right[row, k] -= factor * right[column, k]
    return right


@compiled
def _times(matrix, vector, sign, out):  # type: ignore[no-untyped-def]
    for row in range(len(matrix)):
        out[row] = 0.0
        for column in range(len(vector)):
            out[row] += sign * matrix[row, column] * vector[column]


@compiled
def _priced(takes, count, key, price, hasty):  # type: ignore[no-untyped-def]
    """What the keys take; what the cheapest vertices would save; and the column that promises most, if hasty the first.

    That is the one of the part, which is in the basis, if none promises anything.
    """
    taken, saved = np.zeros(len(price)), 0.0
    enters, place, most = _PART, 0, 0.0
    for kind in range(len(price)):
        if -price[kind] > max(most, _EXACT):
            enters, place, most = _SPARE, kind, -price[kind]
    for job in range(len(key)):
        for kind in range(len(price)):
            taken[kind] += takes[job, key[job], kind]
        now = _cost(takes, price, job, key[job])
        best, least = _cheapest(takes, count, price, job)
        saved += now - least
        if now - least > most and not (hasty and most > _EXACT):
            enters, place, most = job, best, now - least
    return taken, saved, enters, place


@compiled
def _leaving(owner, value, step, job):  # type: ignore[no-untyped-def]
    """How far a column of a job, or of none, can enter, and which leaves then.

    That is the place of a column of the matrix; or, of a key, -1 less the place of a column of its job, which is the one
    after all others for the column that enters.
    """
    size = len(owner)
    far, leaves, steepest = np.inf, 0, 0.0
    for place in range(size + 1):
        if place < size and owner[place] != _PART and step[place] > _STEEP:
            ratio = max(0.0, value[place]) / step[place]
            if ratio < far or (ratio == far and step[place] > steepest):
                far, leaves, steepest = ratio, place, step[place]
        whose = owner[place] if place < size else job
        if whose < 0:
            continue
        weight, falls = 1.0, 1.0 if whose == job else 0.0
        for other in range(size):
            if owner[other] == whose:
                weight -= value[other]
                falls -= step[other]
        if falls > _STEEP:
            ratio = max(0.0, weight) / falls
            if ratio < far or (ratio == far and falls > steepest):
                far, leaves, steepest = ratio, -1 - place, falls
    return far, leaves


@compiled
def _exchange(basis, value, far, leaves, job, place):  # type: ignore[no-untyped-def]
    """One column enters and another leaves; of a job whose key leaves, the vertex with most weight is the next.

    Parameters
    ----------
    value, far : values of the columns of the matrix, and of the one that enters, after that.
    """
    if leaves >= 0:
        basis.owner[leaves], basis.place[leaves] = job, place
        return
    size = len(value)
    whose = job if leaves == -1 - size else basis.owner[-1 - leaves]
    heir, most = size, far if whose == job else -np.inf
    for other in range(size):
        if basis.owner[other] == whose and value[other] > most:
            heir, most = other, value[other]
    if heir == size:
        basis.key[whose] = place
    else:
        basis.key[whose] = basis.place[heir]
        basis.owner[heir], basis.place[heir] = job, place


@compiled
def _fractions(takes, held, basis, value):  # type: ignore[no-untyped-def]
    """Of all jobs on all types."""
    found = np.zeros(held.shape)
    for job in range(len(found)):
        for kind in range(len(value)):
            found[job, kind] = takes[job, basis.key[job], kind] / held[job, kind]
    for column in range(len(value)):
        job, weight = basis.owner[column], min(1.0, max(0.0, value[column]))
        if job >= 0:
            for kind in range(len(value)):
                more = takes[job, basis.place[column], kind] - takes[job, basis.key[job], kind]
                found[job, kind] = max(0.0, found[job, kind] + weight * more / held[job, kind])
    return found

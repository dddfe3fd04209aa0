"""A basis of the simplex method where every job has one row of its own and all share only a few, the types of device.

Every job has a key, a vertex that takes all of its weight that its others do not take (generalised upper bounds), so that
the matrix is no larger than there are types. Nothing is carried from step to step but the basis, so that errors do not
add up.

References
----------
G. B. Dantzig, R. M. Van Slyke. "Generalized Upper Bounding Techniques", Journal of Computer and System Sciences 1, 1967.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled

Ints = NDArray[np.int64]

EXACT = 1e-11
"""Smallest cost that counts, as a part of the cluster."""
STEEP = 1e-9
"""Smallest slope that ends a step: a smaller one is rounding, and would make the basis singular."""

PART, SPARE = -1, -2
"""Instead of the job, in columns of none: the part of the cluster, and devices of a type that are to spare."""


class Basis(NamedTuple):
    """Columns whose values the rows decide: the keys of all jobs, and one for every type.

    Attributes
    ----------
    key : vertex of every job.
    owner, place : of the others, whose they are and which vertex; of spare devices, which type.
    """

    key: Ints
    owner: Ints
    place: Ints


@only_compiled
def begun(takes, count, price):  # type: ignore[no-untyped-def]
    """A basis to begin with: everybody's cheapest vertex.

    The type of which most is taken says which part it is; of the others there are devices to spare.
    """
    jobs, kinds = len(takes), len(price)
    key, taken = np.zeros(jobs, np.int64), np.zeros(kinds)
    for job in range(jobs):
        key[job] = _cheapest(takes, count, price, job)[0]
        for kind in range(kinds):
            taken[kind] += takes[job, key[job], kind]
    owner = np.full(kinds, SPARE)
    owner[np.argmax(taken)] = PART
    return Basis(key, owner, np.arange(kinds))


@only_compiled
def _cost(takes, price, job, place):  # type: ignore[no-untyped-def]
    found = 0.0
    for kind in range(len(price)):
        found += takes[job, place, kind] * price[kind]
    return found


@only_compiled
def _cheapest(takes, count, price, job):  # type: ignore[no-untyped-def]
    """The vertex of a job that costs least, and its cost."""
    best, least = 0, _cost(takes, price, job, 0)
    for other in range(1, count[job]):
        cost = _cost(takes, price, job, other)
        if cost < least:
            best, least = other, cost
    return best, least


@only_compiled
def fill(out, takes, key, job, place):  # type: ignore[no-untyped-def]
    """A column of the matrix: what more of it takes of every type when its job's key makes room for it."""
    for kind in range(len(out)):
        if job >= 0:
            out[kind] = takes[job, place, kind] - takes[job, key[job], kind]
        else:
            out[kind] = -1.0 if job == PART else 1.0 if kind == place else 0.0


@only_compiled
def inverse_of(takes, basis):  # type: ignore[no-untyped-def]
    """Invert the matrix of the columns that the rows of the types decide."""
    kinds = len(basis.owner)
    matrix, column = np.zeros((kinds, kinds)), np.zeros(kinds)
    for place in range(kinds):
        fill(column, takes, basis.key, basis.owner[place], basis.place[place])
        matrix[:, place] = column
    return _inverse(matrix)


@only_compiled
def _inverse(matrix):  # type: ignore[no-untyped-def]
    """Invert a matrix so small that a call of LAPACK would take longer (Gauss and Jordan)."""
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


@only_compiled
def times(matrix, vector, out):  # type: ignore[no-untyped-def]
    for row in range(len(matrix)):
        out[row] = 0.0
        for column in range(len(vector)):
            out[row] += matrix[row, column] * vector[column]


@only_compiled
def priced(takes, count, key, price, hasty):  # type: ignore[no-untyped-def]
    """Return the parts that the keys take, the saving of the cheapest vertices, and the column that saves most.

    If hasty, that is the first column that saves. If none saves, it is the column of the part, which is in the basis.
    """
    taken, saved = np.zeros(len(price)), 0.0
    enters, place, most = PART, 0, 0.0
    for kind in range(len(price)):
        if -price[kind] > max(most, EXACT):
            enters, place, most = SPARE, kind, -price[kind]
    for job in range(len(key)):
        for kind in range(len(price)):
            taken[kind] += takes[job, key[job], kind]
        now = _cost(takes, price, job, key[job])
        best, least = _cheapest(takes, count, price, job)
        saved += now - least
        if now - least > most and not (hasty and most > EXACT):
            enters, place, most = job, best, now - least
    return taken, saved, enters, place


@only_compiled
def leaving(owner, value, step, job):  # type: ignore[no-untyped-def]
    """Return how far a column of a job, or of none, can enter, and the column that leaves then.

    The leaving column is given by its place in the matrix; a key by -1 less the place of a column of its job, which is
    the one after all others for the column that enters.
    """
    size = len(owner)
    far, leaves, steepest = np.inf, 0, 0.0
    for place in range(size + 1):
        if place < size and owner[place] != PART and step[place] > STEEP:
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
        if falls > STEEP:
            ratio = max(0.0, weight) / falls
            if ratio < far or (ratio == far and falls > steepest):
                far, leaves, steepest = ratio, -1 - place, falls
    return far, leaves


@only_compiled
def exchanged(basis, value, far, leaves, job, place):  # type: ignore[no-untyped-def]
    """Let one column enter and another leave; the next key of a job whose key leaves is its vertex with most weight.

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


@only_compiled
def fractions_of(takes, held, basis, value):  # type: ignore[no-untyped-def]
    """Return the fractions of all jobs on all types."""
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

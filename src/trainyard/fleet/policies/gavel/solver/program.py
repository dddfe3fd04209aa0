"""The linear program of section 3.1, for HiGHS: fractions of time of combinations of jobs on types of device.

A column is a combination of jobs, which run together on the same devices, on one type of device: alone, a job is one
column for every type; where jobs may share devices, every two are one for every type. With X the fractions::

    sum of X over the columns of a job             <= 1                for every job
    sum of devices * X over the columns of a type  <= its devices      for every type
    rate(m, X) - share_m * level                   >= need_m           for every job that has one
    maximise  level, or reward * X; of the best level, then, reward * X

where ``rate(m, X)``, the effective throughput, is the sum of X times the speed of m over the columns of m. Jobs that are
equal in all that the program sees are one job in it that stands for them all, since an optimum in which they share alike
always exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.problem import Fractions, Problem, grouped
from trainyard.fleet.policies.gavel.solver.highs import Solver

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LOOKED_AT = 1000
"""Columns that are passed to the solver all at once."""
_NOTHING = 1e-9
"""Fractions of time of pairs up to here are rounding errors of the program."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Results of the program beside fractions.

    Attributes
    ----------
    value : of every column; of all jobs together where one stands for several.
    level : of the program, 0 if it has none.
    price : of every job, what more need would cost; 0 unless its row binds in every solution.
    """

    value: Floats
    level: float
    price: Floats


@dataclass(frozen=True, eq=False)
class _Columns:
    """Combinations of jobs on types of device.

    Attributes
    ----------
    device_type, devices : of every column.
    first, second : its jobs, the same one twice if it is one that runs alone, or two of those for which it stands.
    entries : jobs, the column that each is in, ascending, and the part of its speed alone that it has there.
    num_alone : columns of one job, which are the first ones.
    """

    device_type: Ints
    devices: Floats
    first: Ints
    second: Ints
    entries: tuple[Ints, Ints, Floats]
    num_alone: int

    @classmethod
    def of(cls, problem: Problem, rate: Floats, jobs: Ints, count: Ints) -> _Columns:
        """All of them, of groups of equal jobs: first those of one job, then pairs.

        Two of a group may share devices, too. The fraction of that column is the time of both: it counts once in the time
        of the group, and takes half of the devices.

        Parameters
        ----------
        rate : of every job on every type, 0 where it cannot run.
        jobs, count : an example of every group, and how many jobs it stands for.
        """
        alone, kind = np.nonzero(rate[jobs] > 0)
        scale, size = problem.scale_factors[jobs], len(alone)
        if problem.pairs is None:
            entries = (alone, np.arange(size), np.ones(size))
            return cls(kind, scale[alone], alone, alone, entries, size)
        like, part = problem.pairs.like[jobs], problem.pairs.part
        may = (part > 0)[like][:, like]
        may &= (np.triu(np.ones(may.shape[:2], np.bool_), 1) | np.diag(count > 1))[:, :, None]
        first, second, on = np.nonzero(may)
        two = np.column_stack((np.ones(len(first), np.bool_), first != second)).ravel()
        both = np.column_stack((part[like[first], like[second], on], part[like[second], like[first], on]))
        return cls(
            np.concatenate((kind, on)),
            np.concatenate((scale[alone], np.where(first == second, 0.5, 1.0) * scale[first])),
            np.concatenate((alone, first)),
            np.concatenate((alone, second)),
            (
                np.concatenate((alone, np.column_stack((first, second)).ravel()[two])),
                np.concatenate((np.arange(size), np.repeat(size + np.arange(len(first)), 2)[two])),
                np.concatenate((np.ones(size), both.ravel()[two])),
            ),
            size,
        )

    def valued(self, value: Floats) -> Floats:
        """Return the value of each entry.

        Parameters
        ----------
        value : of every job (row) on every type, alone.
        """
        job, column, part = self.entries
        found: Floats = value[job, self.device_type[column]] * part
        return found


def solve_in_highs(
    problem: Problem,
    rate: Floats,
    *,
    share: Floats | None = None,
    need: Floats | None = None,
    reward: Floats | None = None,
    cost: Floats | None = None,
    near: Solution | None = None,
) -> tuple[Fractions, Solution] | None:
    """Fractions that are best; None if no fractions meet all needs.

    Parameters
    ----------
    rate, need, reward, cost : as for `solve`.
    share : of the level that is every job's; the level is maximised.
    near : solution of a program that was much the same; it is looked at first.
    """
    gain = reward if reward is None or cost is None else reward - cost
    like = None if problem.pairs is None else problem.pairs.like.astype(float)
    seen = [v for v in (rate, problem.scale_factors, share, need, gain, like) if v is not None]
    first, member, count = grouped(np.column_stack(seen))
    columns = _Columns.of(problem, rate, first, count)
    size, has_level = len(columns.first), share is not None
    gained = np.zeros(size + has_level)
    if reward is not None:
        np.add.at(gained, columns.entries[1], columns.valued(reward[first]))
    if cost is not None:
        scale = columns.devices / problem.scale_factors[first][columns.first]
        gained[:size] -= cost[first][columns.first, columns.device_type] * scale
    shares = None if share is None else share[first] * count
    if need is None:
        needs = np.full(len(first), -np.inf) if shares is None else np.where(shares > 0, 0.0, -np.inf)
    else:
        needs = need[first] * count
    begin = None
    if need is None and size - columns.num_alone > _LOOKED_AT:
        found = near is not None and len(near.value) == size and near.value > 0
        begin = np.nonzero(np.append((np.arange(size) < columns.num_alone) | found, [True] * has_level))[0]
    solver, row_of = _loaded(problem, columns, columns.valued(rate[first]), count, shares, needs, begin)
    if not solver.maximise(np.append(np.zeros(size), 1.0) if has_level else gained):
        return None
    level = float(solver.values[size:].sum())
    price = np.where(row_of >= 0, np.abs(solver.prices)[row_of], 0.0)
    if has_level and reward is not None:
        # Within the tolerance of the solver, so that the solution found stays one.
        solver.hold(size, level - 1e-9 * abs(level))
        solver.maximise(gained)
    solution = Solution(np.maximum(solver.values[:size], 0.0), level, price[member])
    return _fractions(problem, columns, solution.value, member, count), solution


def _loaded(
    problem: Problem,
    columns: _Columns,
    rate: Floats,
    count: Ints,
    share: Floats | None,
    need: Floats,
    begin: Ints | None,
) -> tuple[Solver, Ints]:
    """The constraints, with the level as the last column if there is one; and the row of every job's rate, or -1."""
    from scipy.sparse import csc_array

    (job, column, _), jobs, kinds = columns.entries, len(count), len(problem.devices_of_type)
    size, bound = len(columns.first), np.nonzero(np.isfinite(need))[0]
    row_of = np.full(jobs, -1)
    row_of[bound] = jobs + kinds + np.arange(len(bound))
    rated, levels = row_of[job] >= 0, 0 if share is None else len(bound)
    rows = (job, jobs + columns.device_type, row_of[job][rated], row_of[bound][:levels])
    places = (column, np.arange(size), column[rated], np.full(levels, size))
    values = (
        np.ones(len(job)),
        columns.devices,
        rate[rated],
        np.zeros(0) if share is None else -share[bound],
    )
    shape = (jobs + kinds + len(bound), size + (share is not None))
    place = np.concatenate(places)
    order, starts = np.argsort(place, kind="stable"), np.bincount(place + 1, minlength=shape[1] + 1).cumsum()
    matrix = csc_array((np.concatenate(values)[order], np.concatenate(rows)[order], starts), shape)
    row_least = np.concatenate((np.full(jobs + kinds, -np.inf), need[bound]))
    row_most = np.concatenate((count, problem.devices_of_type, np.full(len(bound), np.inf)))
    least = np.append(np.zeros(size), [-np.inf] * (share is not None))
    return Solver(matrix, least, row_least, row_most, jobs, begin), row_of


def _fractions(problem: Problem, columns: _Columns, value: Floats, member: Ints, count: Ints) -> Fractions:
    """Divide the fractions of groups among their jobs, in as few pairs as possible.

    Of two groups, their jobs are laid side by side; of one, the two halves, and the last three jobs of an odd number all
    with each other.
    """
    alone, fraction = slice(columns.num_alone), np.zeros((len(count), len(problem.devices_of_type)))
    fraction[columns.first[alone], columns.device_type[alone]] = value[alone] / count[columns.first[alone]]
    if problem.pairs is None:
        return Fractions.without_pairs(fraction[member])
    members = np.split(np.argsort(member, kind="stable"), np.cumsum(count)[:-1])
    none = np.zeros(0, np.int64)
    found: list[tuple[Ints, Ints, Ints, Floats]] = [(none, none, none, np.zeros(0))]
    for column in (columns.num_alone + np.nonzero(value[columns.num_alone :] > _NOTHING)[0]).tolist():
        a, b = int(columns.first[column]), int(columns.second[column])
        first, second, share = _within(members[a]) if a == b else _between(members[a], members[b])
        found.append((first, second, np.full(len(first), columns.device_type[column]), share * value[column]))
    first, second, kind, together = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Fractions(fraction[member], first, second, kind, together)


def _between(jobs: Ints, others: Ints) -> tuple[Ints, Ints, Floats]:
    size = len(jobs) * len(others)
    cuts = np.union1d(np.arange(0, size + 1, len(others)), np.arange(0, size + 1, len(jobs)))
    starts = cuts[:-1]
    return jobs[starts // len(others)], others[starts // len(jobs)], np.diff(cuts) / size


def _within(jobs: Ints) -> tuple[Ints, Ints, Floats]:
    size = len(jobs)
    half = size // 2 if size % 2 == 0 else (size - 3) // 2
    first, second, share = jobs[:half], jobs[half : 2 * half], np.full(half, 1.0 / size)
    if size % 2:
        x, y, z = jobs[-3:].tolist()
        first, second = np.append(first, (x, y, x)), np.append(second, (y, z, z))
        share = np.append(share, np.full(3, 0.5 / size))
    return first, second, share

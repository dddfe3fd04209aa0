"""The linear program that all policies share: fractions of time of combinations of jobs on types of device.

A column is a combination of jobs, which run together on the same devices, on one type of device: alone, a job is one
column for every type. The program of section 3.1, with X the fractions::

    sum of X over the columns of a job             <= 1                for every job
    sum of devices * X over the columns of a type  <= its devices      for every type
    rate(m, X) - share_m * level                   >= need_m           for every job that has one
    maximise  level, or reward * X; of the best level, then, reward * X

where ``rate(m, X)``, the effective throughput, is the sum of X times the speed of m over the columns of m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.policies.gavel.solver import Matrix, Solver

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LOOKED_AT = 1000
"""Columns that are passed to the solver all at once."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Combinations of jobs on types of device.

    Attributes
    ----------
    num_jobs : that they are made of.
    device_type, devices : of every column.
    job, column, part : entries (job, column, part of its speed alone that the job has there), ascending by column.
    """

    num_jobs: int
    device_type: Ints
    devices: Floats
    job: Ints
    column: Ints
    part: Floats

    def of_entries(self, value: Floats) -> Floats:
        """What every entry comes to.

        Parameters
        ----------
        value : of every job (row) on every type, alone.
        """
        found: Floats = value[self.job, self.device_type[self.column]] * self.part
        return found

    def of_columns(self, value: Floats) -> Floats:
        """The same of every column, all of its jobs together."""
        found = np.zeros(len(self.device_type))
        np.add.at(found, self.column, self.of_entries(value))
        return found

    def of_devices(self, value: Floats, devices: Floats) -> Floats:
        """What every column comes to, where it is of devices and not of jobs.

        Parameters
        ----------
        value : of the devices of every job's gang on every type.
        devices : of every job's gang.
        """
        job = self.job[np.searchsorted(self.column, np.arange(len(self.device_type)))]
        found: Floats = value[job, self.device_type] * (self.devices / devices[job])
        return found


def alone(able: Bools, devices: Floats) -> Columns:
    """Every job by itself.

    Parameters
    ----------
    able : whether every job (row) can run on every type.
    devices : of every job's gang.
    """
    job, kind = np.nonzero(able)
    return Columns(len(able), kind, devices[job], job, np.arange(len(job)), np.ones(len(job)))


def with_pairs(
    columns: Columns, devices: Floats, count: Ints, like: Ints, part: Floats
) -> tuple[Columns, Ints, Ints]:
    """The same columns, and after them every two jobs on every type on which they can share devices.

    Where a job stands for several, two of them may share devices, too. The fraction of that column is the time of both:
    it counts once in the time of the job, and takes half of the devices.

    Parameters
    ----------
    devices, count : of every job, its gang and how many it stands for.
    like : kind of every job.
    part : (kinds of jobs, kinds of jobs, types) of its speed alone that one has beside the other; 0 where they cannot.

    Returns
    -------
    The columns, and the two jobs of every pair.
    """
    may = (part > 0)[like][:, like]
    may &= np.triu(np.ones((len(like), len(like)), np.bool_), 1)[:, :, None] | np.diag(count > 1)[:, :, None]
    first, second, kind = np.nonzero(may)
    place = len(columns.device_type) + np.arange(len(first))
    # Two entries for each pair, but one where both are the same job.
    entries = np.column_stack((np.ones(len(first), np.bool_), first != second)).ravel()
    parts = (part[like[first], like[second], kind], part[like[second], like[first], kind])
    found = Columns(
        columns.num_jobs,
        np.concatenate((columns.device_type, kind)),
        np.concatenate((columns.devices, np.where(first == second, 0.5, 1.0) * devices[first])),
        np.concatenate((columns.job, np.column_stack((first, second)).ravel()[entries])),
        np.concatenate((columns.column, np.repeat(place, 2)[entries])),
        np.concatenate((columns.part, np.column_stack(parts).ravel()[entries])),
    )
    return found, first, second


@dataclass(frozen=True, eq=False)
class Optimum:
    """A solution.

    Attributes
    ----------
    fraction : of every column; of all jobs together where one stands for several.
    level : of the program, 0 if it has none.
    price : what more need of a job would cost; 0 unless its row binds in every solution.
    """

    fraction: Floats
    level: float
    price: Floats


def optimum(
    columns: Columns,
    rate: Floats,
    room: Ints,
    *,
    count: Floats | None = None,
    share: Floats | None = None,
    need: Floats | None = None,
    reward: Floats | None = None,
    begin: Ints | None = None,
) -> Optimum | None:
    """Solve the program; None if no fractions meet all needs.

    Parameters
    ----------
    rate : of every job (row) on every type, alone.
    room : devices of every type.
    count : how many equal jobs every job stands for; their fractions are added up.
    share : of the level that is every job's; the level is maximised.
    need : rate that every job needs at least; minus infinity for none.
    reward : of every column, which is maximised where there is no share, or, where there is one, among the fractions of
        the best level.
    begin : columns that can meet all needs; of many others, only those are looked at that are worth it.
    """
    jobs, size, level = columns.num_jobs, len(columns.device_type), share is not None
    count = np.ones(jobs) if count is None else count
    need = np.where(share > 0, 0.0, -np.inf) if need is None and share is not None else need
    need = np.full(jobs, -np.inf) if need is None else need
    matrix, row_of = _matrix(columns, rate, room, count, share, need)
    rewards = np.append(np.zeros(size) if reward is None else reward, np.zeros(int(level)))
    highest = np.append(np.zeros(size), np.ones(1)) if level else rewards
    if begin is not None:
        begin = None if size - len(begin) <= _LOOKED_AT else np.append(begin, np.arange(size, size + level))
    solver = Solver(matrix, jobs, begin)
    if not solver.maximise(highest):
        return None
    reached = float(solver.values[size:].sum())
    price = np.where(row_of >= 0, np.abs(solver.prices)[row_of], 0.0)
    if level and reward is not None:
        # Within the tolerance of the solver, so that the solution found stays one.
        solver.hold(size, reached - 1e-9 * abs(reached))
        solver.maximise(rewards)
    return Optimum(np.maximum(solver.values[:size], 0.0), reached, price)


def _matrix(
    columns: Columns, rate: Floats, room: Ints, count: Floats, share: Floats | None, need: Floats
) -> tuple[Matrix, Ints]:
    """The constraints, with the level as the last column if there is one; and the row of every job's rate, or -1."""
    jobs, kinds, size, level = columns.num_jobs, len(room), len(columns.device_type), share is not None
    bound = np.nonzero(np.isfinite(need))[0]
    row_of = np.full(jobs, -1)
    row_of[bound] = jobs + kinds + np.arange(len(bound))
    value = columns.of_entries(rate)
    starts, rows, values = _entries(
        columns.device_type, columns.devices, columns.job, columns.column, value, row_of, len(room),
        np.zeros(0) if share is None else share[bound],
    )  # fmt: skip
    matrix = Matrix(
        starts[: size + level + 1],
        rows,
        values,
        least=np.concatenate((np.zeros(size), np.full(int(level), -np.inf))),
        row_least=np.concatenate((np.full(jobs + kinds, -np.inf), need[bound])),
        row_most=np.concatenate((count, room, np.full(len(bound), np.inf))),
    )
    return matrix, row_of


@compiled
def _entries(device_type, devices, job, column, value, row_of, kinds, share):  # type: ignore[no-untyped-def]
    """Starts of all columns, with one more of the level; and rows and values of their entries."""
    size, jobs = len(device_type), len(row_of)
    most = 2 * len(job) + size + len(share)
    starts, rows, values = np.zeros(size + 2, np.int64), np.empty(most, np.int64), np.empty(most)
    count = entry = 0
    for each in range(size):
        begin = entry
        while entry < len(job) and column[entry] == each:
            rows[count], values[count] = job[entry], 1.0
            count, entry = count + 1, entry + 1
        rows[count], values[count] = jobs + device_type[each], devices[each]
        count += 1
        for rated in range(begin, entry):
            if row_of[job[rated]] >= 0:
                rows[count], values[count] = row_of[job[rated]], value[rated]
                count += 1
        starts[each + 1] = count
    for bound in range(len(share)):
        rows[count], values[count] = jobs + kinds + bound, -share[bound]
        count += 1
    starts[size + 1] = count
    return starts, rows[:count], values[:count]

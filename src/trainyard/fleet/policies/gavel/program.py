"""The linear program that all policies share: fractions of time of combinations of jobs on types of device.

A column is a combination of jobs, which run together on the same devices, on one type of device: alone, a job is one
column for every type. The program of section 3.1, with X the fractions::

    sum of X over the columns of a job             <= 1                for every job
    sum of devices * X over the columns of a type  <= its devices      for every type
    rate(m, X) - share_m * level                   >= need_m           for every job that has one
    maximise  level, or reward * X

where ``rate(m, X)``, the effective throughput, is the sum of X times the speed of m over the columns of m.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import highspy
import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.site import FleetError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SIMPLEX_UP_TO = 400
"""Jobs up to which the simplex method is the faster one; above, the interior point method, followed by a crossover."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Combinations of jobs on types of device.

    Attributes
    ----------
    num_jobs : that they are made of.
    device_type, devices : of every column.
    job, column, speed : entries (job, column, speed of the job in that column), ascending by column.
    """

    num_jobs: int
    device_type: Ints
    devices: Floats
    job: Ints
    column: Ints
    speed: Floats


def alone(speed: Floats, devices: Floats) -> Columns:
    """Every job by itself, on every type on which it has a speed.

    Parameters
    ----------
    speed : of every job (row) on every type.
    devices : of every job's gang.
    """
    job, kind = np.nonzero(speed > 0)
    return Columns(len(speed), kind, devices[job], job, np.arange(len(job)), speed[job, kind])


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
    room: Ints,
    *,
    count: Floats | None = None,
    share: Floats | None = None,
    need: Floats | None = None,
    reward: Floats | None = None,
) -> Optimum | None:
    """Solve the program with HiGHS; None if no fractions meet all needs.

    Parameters
    ----------
    room : devices of every type.
    count : how many equal jobs every job stands for; their fractions are added up.
    share : of the level that is every job's; the level is maximised.
    need : rate that every job needs at least; minus infinity for none.
    reward : of every column, which is maximised where there is no share.
    """
    jobs, kinds, size = columns.num_jobs, len(room), len(columns.device_type)
    level = share is not None
    count = np.ones(jobs) if count is None else count
    need = np.where(share > 0, 0.0, -np.inf) if need is None and share is not None else need
    need = np.full(jobs, -np.inf) if need is None else need
    bound = np.nonzero(np.isfinite(need))[0]
    row_of = np.full(jobs, -1)
    row_of[bound] = jobs + kinds + np.arange(len(bound))
    rated = row_of[columns.job] >= 0
    rows = [columns.job, jobs + columns.device_type, row_of[columns.job][rated]]
    cols = [columns.column, np.arange(size), columns.column[rated]]
    values = [np.ones(len(columns.job)), columns.devices, columns.speed[rated]]
    if share is not None:
        rows.append(row_of[bound])
        cols.append(np.full(len(bound), size))
        values.append(-share[bound])
    order = np.argsort(np.concatenate(cols), kind="stable")
    starts = np.searchsorted(np.concatenate(cols)[order], np.arange(size + level + 1))
    cost = np.append(np.zeros(size) if reward is None else reward, np.ones(int(level)))
    inf = highspy.kHighsInf
    solver = _solver(jobs <= _SIMPLEX_UP_TO)
    solver.passModel(
        size + level,
        jobs + kinds + len(bound),
        len(order),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMaximize),
        0.0,
        cost,
        np.concatenate((np.zeros(size), np.full(int(level), -inf))),
        np.full(size + level, inf),
        np.concatenate((np.full(jobs + kinds, -inf), need[bound])),
        np.concatenate((count, room, np.full(len(bound), inf))),
        starts.astype(np.int32),
        np.concatenate(rows)[order].astype(np.int32),
        np.concatenate(values)[order],
        np.zeros(size + level, np.int32),
    )
    solver.run()
    return _read(solver, size, jobs, row_of)


@cache
def _solver(small: bool) -> highspy.Highs:
    """A solver to be used again: to make one takes longer than a small program. A model passed to it starts afresh."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    if small:
        solver.setOptionValue("presolve", "off")
        solver.setOptionValue("solver", "simplex")
        # Primal: zero is feasible wherever there are no needs.
        solver.setOptionValue("simplex_strategy", 4)
    else:
        solver.setOptionValue("solver", "ipm")
    return solver


def _read(solver: highspy.Highs, size: int, jobs: int, row_of: Ints) -> Optimum | None:
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise FleetError(
            f"HiGHS ends a program of {jobs} jobs as {solver.modelStatusToString(status)!r}; speeds, weights and work "
            "are to be positive, finite, and within some twelve orders of magnitude"
        )
    solution = solver.getSolution()
    value, dual = np.array(solution.col_value), np.array(solution.row_dual)
    price = np.where(row_of >= 0, np.abs(dual)[row_of], 0.0)
    return Optimum(np.maximum(value[:size], 0.0), float(value[size:].sum()), price)

"""Linear programs of jobs on types of device, solved with HiGHS; of many columns only those that are worth it.

Where two jobs may share devices there are as many columns as pairs of jobs, and an optimum uses fewer of them than the
program has rows. So the program is solved with some, the others are priced at its prices, those that would gain most are
added, and so on until none would gain: the optimum of the whole program.

References
----------
R. E. Bixby, J. W. Gregory, I. J. Lustig, R. E. Marsten, D. F. Shanno. "Very Large-Scale Linear Programming: A Case Study
in Combining Interior Point and Simplex Methods", Operations Research 40(5), 1992: sifting.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.highs import new_solver

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SIMPLEX_UP_TO = 400
"""Jobs up to which the simplex method is the faster one; above, the interior point method, followed by a crossover."""
_GAINS = 1e-7
"""What a column must gain to be added: the tolerance of the solver."""


class Solver:
    """One program in the solver.

    Parameters
    ----------
    matrix : a sparse one (rows, columns), by column.
    least : smallest value of every column.
    row_least, row_most : between which every row is to be.
    jobs : of the program, by which the method is chosen.
    begin : columns with which there is a solution; by default all.

    Attributes
    ----------
    values, prices : of all columns and of all rows in the last solution.
    """

    def __init__(
        self, matrix: Any, least: Floats, row_least: Floats, row_most: Floats, jobs: int, begin: Ints | None
    ) -> None:
        self.matrix, self.least, self.jobs = matrix, least, jobs
        self.highs = _highs(jobs <= _SIMPLEX_UP_TO or begin is not None)
        self.highs.clearModel()
        none = np.zeros(0, np.int32)
        self.highs.addRows(len(row_most), row_least, row_most, 0, none, none, np.zeros(0))
        self.highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.columns = np.zeros(0, np.int64)
        self._add(np.arange(len(least)) if begin is None else begin)
        self.values, self.prices = np.zeros(len(least)), np.zeros(len(row_most))

    def maximise(self, gain: Floats) -> bool:
        """Find the values of columns that gain most; False if there are none at all."""
        self._value(gain)
        while self._run():
            if len(self.columns) == len(gain):
                return True
            gained = gain - self.matrix.T @ self.prices
            gained[self.columns] = 0.0
            worth_it = np.nonzero(gained > _GAINS)[0]
            if not len(worth_it):
                return True
            most = min(2 * self.jobs, len(worth_it))
            self._add(np.sort(worth_it[np.argpartition(-gained[worth_it], most - 1)[:most]]))
            self._value(gain)
        return False

    def hold(self, column: int, least: float) -> None:
        """From now on a column has at least this value."""
        place = int(np.nonzero(self.columns == column)[0][0])
        self.highs.changeColBounds(place, least, highspy.kHighsInf)

    def _run(self) -> bool:
        self.highs.run()
        status = self.highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return False
        if status != highspy.HighsModelStatus.kOptimal:
            raise FleetError(
                f"HiGHS ends a program of {self.jobs} jobs as {self.highs.modelStatusToString(status)!r}; speeds, "
                "weights and work are to be positive, finite, and within some twelve orders of magnitude"
            )
        solution = self.highs.getSolution()
        self.values[self.columns] = solution.col_value
        self.prices = np.array(solution.row_dual)
        return True

    def _value(self, gain: Floats) -> None:
        places = np.arange(len(self.columns), dtype=np.int32)
        self.highs.changeColsCost(len(places), places, gain[self.columns])

    def _add(self, columns: Ints) -> None:
        part = self.matrix if len(columns) == len(self.least) else self.matrix[:, columns]
        count, most = len(columns), np.full(len(columns), highspy.kHighsInf)
        self.highs.addCols(
            count,
            np.zeros(count),
            self.least[columns],
            most,
            part.nnz,
            part.indptr[:-1],
            part.indices,
            part.data,
        )
        self.columns = np.append(self.columns, columns)


@cache
def _highs(small: bool) -> highspy.Highs:
    if not small:
        return new_solver(solver="ipm")
    # Primal: zero is feasible wherever there are no needs.
    return new_solver(presolve="off", solver="simplex", simplex_strategy=4)

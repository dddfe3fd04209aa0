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

from dataclasses import dataclass
from functools import cache

import highspy
import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.highs import new_solver
from trainyard.fleet.site import FleetError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SIMPLEX_UP_TO = 400
"""Jobs up to which the simplex method is the faster one; above, the interior point method, followed by a crossover."""
_GAINS = 1e-7
"""What a column must gain to be added: the tolerance of the solver."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """Constraints of a program, by column.

    Attributes
    ----------
    starts, rows, values : entries of column j from ``starts[j]`` up to ``starts[j + 1]``.
    least : smallest value of every column.
    row_least, row_most : between which every row is to be.
    """

    starts: Ints
    rows: Ints
    values: Floats
    least: Floats
    row_least: Floats
    row_most: Floats

    @property
    def num_columns(self) -> int:
        return len(self.least)

    def of(self, columns: Ints) -> tuple[Ints, Ints, Floats]:
        """Starts, rows and values of some columns."""
        if len(columns) == self.num_columns:
            return self.starts.astype(np.int32), self.rows.astype(np.int32), self.values
        counts = np.diff(self.starts)[columns]
        starts = np.append(0, np.cumsum(counts))
        entries = np.arange(starts[-1]) + np.repeat(self.starts[columns] - starts[:-1], counts)
        return starts.astype(np.int32), self.rows[entries].astype(np.int32), self.values[entries]

    def worth(self, prices: Floats) -> Floats:
        """What every column costs at prices of the rows."""
        found: Floats = np.add.reduceat(self.values * prices[self.rows], self.starts[:-1])
        return found


class Solver:
    """One program in the solver.

    Parameters
    ----------
    jobs : of the program, by which the method is chosen.
    begin : columns with which there is a solution; by default all.

    Attributes
    ----------
    values, prices : of all columns and of all rows in the last solution.
    """

    def __init__(self, matrix: Matrix, jobs: int, begin: Ints | None) -> None:
        self.matrix, self.jobs, count = matrix, jobs, matrix.num_columns
        self.columns = np.arange(count) if begin is None else begin
        self.highs = _highs(jobs <= _SIMPLEX_UP_TO or begin is not None)
        self.values, self.prices = np.zeros(count), np.zeros(len(matrix.row_most))
        self._loaded = False

    def _load(self, gain: Floats) -> None:
        matrix, columns = self.matrix, self.columns
        starts, rows, values = matrix.of(columns)
        self.highs.passModel(
            len(columns),
            len(matrix.row_most),
            len(rows),
            int(highspy.MatrixFormat.kColwise),
            int(highspy.ObjSense.kMaximize),
            0.0,
            gain[columns],
            matrix.least[columns],
            np.full(len(columns), highspy.kHighsInf),
            matrix.row_least,
            matrix.row_most,
            starts,
            rows,
            values,
            np.zeros(len(columns), np.int32),
        )
        self._loaded = True

    def maximise(self, gain: Floats) -> bool:
        """Find the values of columns that gain most; False if there are none at all."""
        if self._loaded:
            self.highs.changeColsCost(
                len(self.columns), np.arange(len(self.columns), dtype=np.int32), gain[self.columns]
            )
        else:
            self._load(gain)
        while self._run():
            if len(self.columns) == self.matrix.num_columns:
                return True
            gained = gain - self.matrix.worth(self.prices)
            gained[self.columns] = 0.0
            worth_it = np.nonzero(gained > _GAINS)[0]
            if not len(worth_it):
                return True
            most = min(2 * self.jobs, len(worth_it))
            best = np.argpartition(-gained[worth_it], most - 1)[:most]
            self._add(worth_it[np.sort(best)], gain)
        return False

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

    def _add(self, columns: Ints, gain: Floats) -> None:
        starts, rows, values = self.matrix.of(columns)
        most = np.full(len(columns), highspy.kHighsInf)
        self.highs.addCols(
            len(columns),
            gain[columns],
            self.matrix.least[columns],
            most,
            len(rows),
            starts[:-1],
            rows,
            values,
        )
        self.columns = np.append(self.columns, columns)

    def hold(self, column: int, least: float) -> None:
        """From now on a column has at least this value."""
        place = int(np.nonzero(self.columns == column)[0][0])
        self.highs.changeColBounds(place, least, highspy.kHighsInf)


@cache
def _highs(small: bool) -> highspy.Highs:
    if not small:
        return new_solver(solver="ipm")
    # Primal: zero is feasible wherever there are no needs.
    return new_solver(presolve="off", solver="simplex", simplex_strategy=4)

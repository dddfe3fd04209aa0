"""Choosing at most one option for every job, with so many devices of every type: an integer program, solved by HiGHS.

With ``x`` 1 for the options that are chosen::

    sum of x over the options of a job             <= 1                for every job
    sum of devices * x over the options of a type  <= its devices      for every type
    maximise  value * x

Of many options, few can be in a good choice. The prices of devices in the relaxed program (x between 0 and 1) say which,
and bound what any choice is worth: options that cost more than they are worth are left out, and the bound tells whether
one of them might have mattered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import highspy
import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.highs import new_solver

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_DIRECTLY_UP_TO = 500
"""Options that are not worth a look at prices."""

_MARGINS = (0.001, 0.01)
"""Largest loss of an option beside the best of its job at the prices, as a part of the greatest value."""

_ENOUGH = 5e-4
"""A choice that is relatively so near to the bound is good enough if options were left out."""

_SEARCHED = 0.9 * _ENOUGH
"""Relative gap to which the choice among the remaining options is searched; options that were left out are hardly worth
the rest. To prove half the gap took seconds for jobs that are alike, and found the same choices."""


@dataclass(frozen=True, eq=False)
class Options:
    """Options of jobs; arrays are by option.

    Attributes
    ----------
    job : from 0.
    device_type, devices : of which type how many.
    value : what it is worth; positive.
    must : whether it has to be chosen.
    """

    job: Ints
    device_type: Ints
    devices: Ints
    value: Floats
    must: Bools

    def only(self, which: Bools | Ints) -> Options:
        """Return some of the options, by a mask or by their indices."""
        return Options(
            self.job[which], self.device_type[which], self.devices[which], self.value[which], self.must[which]
        )


def assigned(options: Options, room: Ints) -> Ints:
    """The options that are chosen, ascending; the sum of their values is within 1e-4 of the greatest, of many 5e-4.

    Parameters
    ----------
    room : devices of every type.

    Raises
    ------
    FleetError
        If options that have to be chosen do not fit together, or values are not finite.
    """
    if not len(options.job):
        return np.zeros(0, np.int64)
    gap = 1e-4
    if len(options.job) > _DIRECTLY_UP_TO:
        price = _relaxed(options, room)
        worth = options.value - price[options.device_type] * options.devices
        best = np.zeros(options.job.max() + 1)
        np.maximum.at(best, options.job, worth)
        bound = best.sum() + price @ room
        for margin in _MARGINS:
            near = options.must | (best[options.job] - worth <= margin * options.value.max())
            few = options.only(near)
            chosen = _solved(few, room, _SEARCHED)
            if few.value[chosen].sum() >= (1 - _ENOUGH) * bound:
                return np.flatnonzero(near)[chosen]
        gap = _ENOUGH
    return _solved(options, room, gap)


def _relaxed(options: Options, room: Ints) -> Floats:
    """Prices of a device of every type: the duals of the relaxed program, from inside and so nearly the best ones."""
    solver = _solver("ipm")
    _pass(solver, options, room, whole=False)
    solver.run()
    price: Floats = np.abs(np.array(solver.getSolution().row_dual)[-len(room) :])
    return price


def _solved(options: Options, room: Ints, gap: float) -> Ints:
    solver = _solver("choose")
    solver.setOptionValue("mip_rel_gap", gap)
    _pass(solver, options, room, whole=True)
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise FleetError(
            f"HiGHS ends a choice among {len(options.job)} options as {solver.modelStatusToString(status)!r}; values are "
            "to be finite, and what must be chosen is to fit together"
        )
    return np.flatnonzero(np.array(solver.getSolution().col_value) > 0.5)


def _pass(solver: highspy.Highs, options: Options, room: Ints, whole: bool) -> None:
    """Hand the program to HiGHS: every option is a column with two entries."""
    size = len(options.job)
    jobs, row = np.unique(options.job, return_inverse=True)
    rows = np.stack((row, len(jobs) + options.device_type), 1).astype(np.int32)
    values = np.stack((np.ones(size), options.devices), 1)
    kind = highspy.HighsVarType.kInteger if whole else highspy.HighsVarType.kContinuous
    solver.passModel(
        size,
        len(jobs) + len(room),
        2 * size,
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMaximize),
        0.0,
        options.value.astype(np.float64),
        options.must.astype(np.float64),
        np.ones(size),
        np.full(len(jobs) + len(room), -highspy.kHighsInf),
        np.concatenate((np.ones(len(jobs)), room)).astype(np.float64),
        np.arange(0, 2 * size + 1, 2, dtype=np.int32),
        rows.ravel(),
        values.ravel().astype(np.float64),
        np.full(size, kind.value, np.int32),
    )


@cache
def _solver(method: str) -> highspy.Highs:
    # The relaxed program is nearly whole: looking for solutions before it is solved takes longer than the rest.
    return new_solver(
        solver=method, run_crossover="off", presolve="off", mip_heuristic_run_feasibility_jump=False
    )

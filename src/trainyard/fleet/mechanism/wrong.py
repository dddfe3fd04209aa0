"""What may be wrong with an allocation before anybody looks at devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.allocation import Given, TimeFractions
from trainyard.fleet.mechanism.job_table import Ints, JobTable
from trainyard.fleet.site import FleetError


def check_given(given: Given, rows: Ints, books: JobTable) -> None:
    """Refuse what has another form, columns of unlike lengths, and jobs that are not there or are named twice.

    Parameters
    ----------
    rows : of the snapshot that the allocation is of.

    Raises
    ------
    FleetError
        If something is wrong.
    """
    if not isinstance(given, Given):
        raise FleetError(f"the policy gives a {type(given).__name__}; give a Queue, Placed or TimeFractions")
    num_named = len(given.order)
    for name, column in zip(given._fields[1:], given[1:], strict=True):
        if not isinstance(column, bool | None) and len(column) != num_named:
            raise FleetError(
                f"the policy names {num_named} jobs, and {name} of {len(column)}; give each its own"
            )
    place = _first_wrong(np.asarray(given.order, np.int64), len(rows), isinstance(given, TimeFractions))
    if place < 0:
        return
    number = int(given.order[place])
    if not 0 <= number < len(rows):
        raise FleetError(f"the policy names job {number}; jobs of this snapshot are 0 to {len(rows) - 1}")
    name = books.job(int(rows[number])).name
    raise FleetError(f"the policy names job {name!r} twice; a job is in the order once")


@compiled
def _first_wrong(order: Ints, num_jobs: int, may_repeat: bool) -> int:
    """Place of the first number that cannot be, or is there before; -1 if there is none."""
    is_named: NDArray[np.bool_] = np.zeros(num_jobs, np.bool_)
    for place in range(len(order)):
        number = order[place]
        if number < 0 or number >= num_jobs or (is_named[number] and not may_repeat):
            return place
        is_named[number] = True
    return -1

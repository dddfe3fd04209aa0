"""Leases: devices that jobs have until some moment."""

from __future__ import annotations

import numpy as np

from trainyard.fleet.allocation import Placed, Queue
from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.snapshot import Ints

_INF = float("inf")


class Leases:
    """When jobs are to give their devices back. A lease is over when its job has lost them or ended, too.

    The ends stand in the table, where a job that loses its devices has none.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        # Of every row, whether its lease has not come to its end; of some, the jobs have lost their devices since.
        self._runs = np.zeros(0, np.bool_)
        self._were_any = False

    def note(self, rows: Ints, given: Queue | Placed, now_s: float) -> None:
        """An allocation came about: who got devices by it has these until they say, and for good if they say nothing.

        Parameters
        ----------
        rows : of the snapshot that it is for.

        Raises
        ------
        FleetError
            If a lease ends before it begins.
        """
        if given.until_s is None and not self._were_any:
            return
        named, ends, held = rows[given.order], self._table.lease_until_s, self._table.held
        if len(self._runs) < len(ends):
            self._runs = np.append(self._runs, np.zeros(len(ends) - len(self._runs), np.bool_))
        ends[named], self._runs[named], self._were_any = _INF, False, True
        if given.until_s is None:
            return
        until_s = np.asarray(given.until_s, np.float64)
        if not (until_s > now_s).all():
            place = int(np.argmin(until_s > now_s))
            raise FleetError(
                f"the policy gives job {self._table.job(int(named[place])).name!r} devices until {until_s[place]:g} s, "
                f"and it is {now_s:g} s; give a later time, or none"
            )
        leased = (held[named] > 0) & (until_s < _INF)
        ends[named[leased]], self._runs[named[leased]] = until_s[leased], True

    def next_s(self) -> float:
        """When the next lease ends; infinite if there is none."""
        if not self._were_any:
            return _INF
        return float(self._table.lease_until_s[: len(self._runs)].min(initial=_INF, where=self._runs))

    def ending(self, now_s: float) -> list[int]:
        """Rows of the jobs whose leases end now."""
        if not self._were_any:
            return []
        ending = np.flatnonzero(self._runs & (self._table.lease_until_s[: len(self._runs)] <= now_s))
        self._runs[ending] = False
        found: list[int] = ending.tolist()
        return found

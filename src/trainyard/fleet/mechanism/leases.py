"""Leases: devices that jobs have until some moment."""

from __future__ import annotations

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
        # Rows of leases that have not come to their ends; of some, the jobs have lost their devices since.
        self._rows: set[int] = set()
        self._were_any = False

    def note(self, rows: Ints, given: Queue | Placed, now_s: float) -> None:
        """An allocation came about: who got devices by them has these until they say, and for good if they say nothing.

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
        ends[named], self._were_any = _INF, True
        self._rows.difference_update(named.tolist())
        if given.until_s is None:
            return
        for row, until_s in zip(named.tolist(), given.until_s.tolist(), strict=True):
            if not until_s > now_s:
                raise FleetError(
                    f"the policy gives job {self._table.job(row).name!r} devices until {until_s:g} s, and it is "
                    f"{now_s:g} s; give a later time, or none"
                )
            if held[row] and until_s < _INF:
                ends[row] = until_s
                self._rows.add(row)

    def next_s(self) -> float:
        """When the next lease ends; infinite if there is none."""
        if not self._rows:
            return _INF
        ends = self._table.lease_until_s
        self._rows = {row for row in self._rows if ends[row] < _INF}
        return min((float(ends[row]) for row in self._rows), default=_INF)

    def ending(self, now_s: float) -> list[int]:
        """Rows of the jobs whose leases end now."""
        if not self._rows:
            return []
        ends = self._table.lease_until_s
        ending = sorted(row for row in self._rows if ends[row] <= now_s)
        self._rows.difference_update(ending)
        return ending

"""Leases: devices that jobs have until some moment."""

from __future__ import annotations

from trainyard.fleet.allocation import Placed, Queue
from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.snapshot import Ints

_INF = float("inf")


class Leases:
    """When jobs are to give their devices back. A lease is over when its job has lost them or ended, too."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        # Serial number of the job and end of its lease, by row.
        self._ends: dict[int, tuple[int, float]] = {}

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
        if given.until_s is None:
            if self._ends:
                for row in rows[given.order].tolist():
                    self._ends.pop(row, None)
            return
        serial, held = self._table.serial, self._table.held
        for row, until_s in zip(rows[given.order].tolist(), given.until_s.tolist(), strict=True):
            if not until_s > now_s:
                raise FleetError(
                    f"the policy gives job {self._table.job(row).name!r} devices until {until_s:g} s, and it is "
                    f"{now_s:g} s; give a later time, or none"
                )
            self._ends.pop(row, None)
            if held[row] and until_s < _INF:
                self._ends[row] = int(serial[row]), until_s

    def next_s(self) -> float:
        """When the next lease ends; infinite if there is none."""
        if not self._ends:
            return _INF
        self._ends = {row: end for row, end in self._ends.items() if self._holds(row, end[0])}
        return min((until_s for _, until_s in self._ends.values()), default=_INF)

    def ending(self, now_s: float) -> list[int]:
        """Rows of the jobs whose leases end now."""
        if not self._ends:
            return []
        ending = [
            row
            for row, (serial, until_s) in self._ends.items()
            if until_s <= now_s and self._holds(row, serial)
        ]
        for row in ending:
            del self._ends[row]
        return ending

    def _holds(self, row: int, serial: int) -> bool:
        return bool(self._table.held[row]) and int(self._table.serial[row]) == serial

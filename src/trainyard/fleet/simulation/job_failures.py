"""When jobs fail in a simulation."""

from __future__ import annotations

import heapq

from trainyard.fleet.jobs.job_table import Ints, JobTable
from trainyard.fleet.mechanism.hazards import Fate

_INF = float("inf")


class JobFailures:
    """Failures that are drawn, the next first.

    Attributes
    ----------
    may_be : whether there can be any.
    next_s : when a job may fail next; infinite for never.
    """

    def __init__(self, table: JobTable, fate: Fate) -> None:
        self._table, self._fate = table, fate
        self.may_be = fate.hazards.failure_every_s < _INF
        # The moment, the row, and when the job got the devices that will fail.
        self._agenda: list[tuple[float, int, float]] = []
        self.next_s = _INF

    def draw(self, row: int, now_s: float) -> None:
        """Draw when one of a job's devices fails."""
        failure_s = now_s + self._fate.time_to_failure_s(int(self._table.held[row]))
        if failure_s < _INF:
            heapq.heappush(self._agenda, (failure_s, row, float(self._table.placed_s[row])))
            self.next_s = self._agenda[0][0]

    def draw_for_moved(self, rows: Ints, now_s: float) -> None:
        """The same of those among some jobs that got other devices just now."""
        if self.may_be:
            for row in rows.tolist():
                if self._table.placed_s[row] == now_s:
                    self.draw(row, now_s)

    def happen(self) -> tuple[float, int | None]:
        """Let the next one happen; returns when, and the row of its job, if that still has those devices."""
        failure_s, row, placed_s = heapq.heappop(self._agenda)
        self.next_s = self._agenda[0][0] if self._agenda else _INF
        table = self._table
        fails = table.jobs[row] is not None and table.held[row] and table.placed_s[row] == placed_s
        return failure_s, row if fails else None

"""Jobs that start while others do: they load and read at once, and so take longer."""

from __future__ import annotations

from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.mechanism import transitions


class SimultaneousStarts:
    """The jobs that have devices and do no work yet.

    Parameters
    ----------
    together_s : as in `Costs`.
    """

    def __init__(self, table: JobTable, together_s: float) -> None:
        self._table, self._together_s = table, together_s
        self._starting: list[int] = []

    def beside_others(self, rows: list[int], now_s: float) -> tuple[float, list[int]]:
        """Return how much longer starting jobs take, and rows of jobs that start already and take longer for them."""
        table, others = self._table, set(self._starting).difference(rows)
        left = {row: part for row in sorted(others) if (part := table.part_of_start_left(row, now_s)) > 0}
        for row, part in left.items():
            transitions.delay_start(table.data, row, self._together_s * part * len(rows))
        self._starting = [*left, *rows]
        return self._together_s * (len(rows) - 1 + sum(left.values())), list(left)

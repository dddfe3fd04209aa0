"""State of a job that an earlier scheduler had."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.workload.goodput import Timing
from trainyard.fleet.workload.job import Grant


class Done(NamedTuple):
    """Progress of a job.

    Attributes
    ----------
    work : work done, in the unit of ``Job.work``.
    attained_s, attained_device_s : time in which it had devices, and that times their number.
    timings : times of steps that it measured.
    """

    work: float = 0.0
    attained_s: float = 0.0
    attained_device_s: float = 0.0
    timings: tuple[Timing, ...] = ()

    @classmethod
    def of(cls, table: JobTable, row: int) -> Done:
        """Return the progress of a job of a table."""
        report, attained_device_s = table.reports[row], float(table.attained_device_s[row])
        work = table.job(row).work - float(table.left[row])
        return cls(
            work, float(table.attained_s[row]), attained_device_s, () if report is None else report.timings
        )


_NOTHING = Done()


@dataclass(frozen=True)
class Past:
    """A job as the scheduler before left it.

    Attributes
    ----------
    grant : what it had; None if it waited.
    done : how far it was.
    first_start_s : when it first had devices; NaN if it never had.
    admitted : whether it was in a decision that did not refuse it.
    """

    grant: Grant | None = None
    done: Done = _NOTHING
    first_start_s: float = math.nan
    admitted: bool = False

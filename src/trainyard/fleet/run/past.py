"""What is known of a job that another scheduler had before."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.fleet.workload.job import Grant


@dataclass(frozen=True)
class Past:
    """A job as the scheduler before left it.

    Attributes
    ----------
    grant : what it had; None if it waited.
    attained_device_s : devices times time that it had so far.
    done : work that it had done.
    first_start_s : when it first had devices; NaN if it never had.
    admitted : whether it was in a decision that did not refuse it.
    """

    grant: Grant | None = None
    attained_device_s: float = 0.0
    done: float = 0.0
    first_start_s: float = math.nan
    admitted: bool = False

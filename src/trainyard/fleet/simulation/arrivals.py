"""Jobs in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Job

_INF = float("inf")


class Arrivals:
    """Jobs of which one is read ahead, so that a workload may be a generator.

    Parameters
    ----------
    takes : whether a job is to come at all; the others are passed over.

    Attributes
    ----------
    job : the next one; None if there is none.
    next_s : when it comes; infinite if there is none.
    """

    def __init__(self, jobs: Iterable[Job], takes: Callable[[Job], bool]) -> None:
        self._coming = filter(takes, jobs)
        self.job: Job | None = None
        self.next_s = -_INF
        self.read_on()

    def read_on(self) -> None:
        """Look at the job after this one, or note that there is none.

        Raises
        ------
        FleetError
            If it comes before this one.
        """
        last, self.job = self.job, next(self._coming, None)
        before_s, self.next_s = self.next_s, _INF if self.job is None else self.job.arrival_s
        if last is not None and self.next_s < before_s:
            assert self.job is not None
            raise FleetError(
                f"job {self.job.name!r} arrives at {self.next_s} s, before {last.name!r}; give the jobs in the order of "
                "their arrival"
            )

"""Jobs in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Job

_INF = float("inf")


class Arrivals:
    """Jobs of which one is read ahead, so that a workload may be a generator.

    Parameters
    ----------
    allowed : the types of device that a job can run on, as bits; a job for which it is None is passed over.

    Attributes
    ----------
    job : the next one; None if there is none.
    next_s : when it comes; infinite if there is none.
    bits : the types of device that it can run on.
    """

    def __init__(self, jobs: Iterable[Job], allowed: Callable[[Job], int | None]) -> None:
        self._coming, self._allowed = iter(jobs), allowed
        self.bits = 0
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
        last, self.job = self.job, None
        for job in self._coming:
            if (bits := self._allowed(job)) is not None:
                self.job, self.bits = job, bits
                break
        before_s, self.next_s = self.next_s, _INF if self.job is None else self.job.arrival_s
        if last is not None and self.next_s < before_s:
            assert self.job is not None
            raise FleetError(
                f"job {self.job.name!r} arrives at {self.next_s:g} s, before {last.name!r}; give the jobs in the order "
                "of their arrival"
            )

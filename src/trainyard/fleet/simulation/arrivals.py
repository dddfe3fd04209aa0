"""Jobs in the order in which they come; those that can never run are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.records import Submitted, Unfit
from trainyard.fleet.workload.job import Adaptive, Declared, Job
from trainyard.fleet.workload.lengths import check_duration, check_times

_INF = float("inf")


class Arrivals:
    """Jobs of which one is read ahead, so that a workload may be a generator.

    Parameters
    ----------
    round_s : length of the rounds in which decisions are made, or None.
    strict : a job that can never run here is an error, at once if all jobs are there; else it is noted as left out.

    Attributes
    ----------
    job : the next one; None if there is none.
    next_s : when it comes; infinite if there is none.
    bits : the types of device that it can run on.
    """

    def __init__(
        self, jobs: Iterable[Job], allocator: Allocator, round_s: float | None, strict: bool
    ) -> None:
        self._coming, self._allocator = iter(jobs), allocator
        self._round_s, self._strict = round_s, strict
        self.bits = 0
        self.job: Job | None = None
        self.next_s = -_INF
        if strict and isinstance(jobs, Sequence):
            for job in jobs:
                self._check_length(job, self._bits(job))
        self.read_on()

    @property
    def jobs_may_come(self) -> bool:
        """Whether more jobs come."""
        return self.job is not None

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

    def arrive(self) -> bool:
        """Let the next job come, unless it would take longer than can be simulated; return whether it comes.

        Then look at the one after it.
        """
        assert self.job is not None
        if comes := self.is_short_enough():
            self._allocator.enter(self.job, self.next_s, self.bits)
        self.read_on()
        return comes

    def is_short_enough(self) -> bool:
        """Whether the next job can be simulated; one that would take longer is noted as left out."""
        assert self.job is not None
        try:
            self._check_length(self.job, self.bits)
        except UnfitJobError as error:
            self._leave_out(self.job, error)
            return False
        return True

    def _allowed(self, job: Job) -> int | None:
        """The types of device that a job can run on, as bits; one that can never run here is noted as left out."""
        try:
            return self._bits(job)
        except UnfitJobError as error:
            self._leave_out(job, error)
            return None

    def _bits(self, job: Job) -> int:
        check_times(job)
        return self._allocator.allowed(job)

    def _check_length(self, job: Job, bits: int) -> None:
        profile = job.profile
        if self._round_s is None and isinstance(profile, Declared) and job.num_devices >= profile.num_devices:
            return  # it takes its work at most, which `check_times` looks at
        if not isinstance(profile, Adaptive):
            check_duration(job, self._allocator.pending.fair.alone_s(job, bits), self._round_s)

    def _leave_out(self, job: Job, error: UnfitJobError) -> None:
        if self._strict:
            raise error
        self._allocator.notes.left_out.append(Unfit(Submitted.of(job), error.reason, str(error)))

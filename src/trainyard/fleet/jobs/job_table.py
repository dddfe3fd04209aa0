"""The job table: one row of numbers for every job that is there, in one array that is used again.

What happens to jobs is written here by `fleet/mechanism/transitions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import records
from trainyard.fleet.jobs import job_facts
from trainyard.fleet.jobs.cached_column import CachedColumn
from trainyard.fleet.jobs.usage import Owners, Usage
from trainyard.fleet.place.auxiliary import needs_of
from trainyard.fleet.place.grants import Grants
from trainyard.fleet.workload.job import Job, Rate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Table = NDArray[np.void]

_INF = float("inf")

COUNTS = np.dtype(
    [
        *(
            (name, np.int64)
            for name in ("active", "entered", "decided", "waiting", "written", "ended", "used")
        ),
        *((name, np.float64) for name in ("counted_s", "job_s")),
    ],
    align=True,
)
"""Counts of a `JobTable`: jobs that are there, that ever came, that came before the last decision, and that have no
devices; devices that are written down, ends and changes of use that are noted; and jobs times time, with the time until
which they are counted."""


class JobTable:
    """Jobs that were submitted and have not ended. A job keeps its row until it ends; then another takes it.

    Columns are by row; ``active`` lists the rows in the order of arrival. What a running job has done is written
    down when its grant changes: between, it follows from ``since_s`` and ``rate``.

    Attributes
    ----------
    counts : how many there are, and how many came; see `COUNTS`.
    rows : of all that are there, in the order of arrival, and then those that nobody has, the next one first.
    data : all columns; an array of records, as compiled functions take it.
    jobs, grants : of every row; a job without grant waits.
    adaptive_rates : how running jobs run that adapt themselves.
    reports : what any such job last reported, by row.
    courses : of such jobs that were asked, by row: how they would go on by device type; see `Snapshot.left_s`.
    owners : accounts and users of the jobs.
    usage : device time of the owners; None if nobody reads it.
    cached_columns : columns of facts that do not change, by name of the fact; see `cached`.
    groups : by name of an attribute, the number of each value that a job was found to have; see `Snapshot.group`.
    known : by what a policy declared, the job of every row as it sees it; None for a job that it has not looked at.
    serial : how many jobs were entered before it.
    arrival_s, num_devices, weight : of the job.
    allowed : device types that it can run on, as bits by their index.
    left : work to be done at ``since_s``; ``rate`` per second from then on. Until then a running job restarts, and does
        no work.
    began_s : when that began to be work, after the job got its devices or was set back; settling leaves it.
    turn : work left at which the job changes its rate; 0 for one that keeps it.
    finish_s : when the job ends, or changes its rate, if nothing else changes; infinite while it waits.
    attained_s, attained_device_s : time for which it had devices, and that times their number, at ``attained_until_s``.
    held, held_type : devices that it has, and index of their type.
    placed_s : when it got the devices that it has; settling and new shares leave it.
    lease_until_s : end of the lease of its devices, also after that; infinite without one.
    waiting_since_s, waited_s : when it last began to wait; for how long it waited before that, until it got devices.
    lost_s, lost_device_s : time in which it had devices and did no work that counts, because it started or restarted, or
        a failure undid it; and that times their number; both at ``attained_until_s``.
    job_s : jobs times time, over all jobs, when it was submitted.
    first_start_s : NaN before it.
    gang_rate : work per second on as many whole devices as it asks for; NaN where it matters where they lie.
    best_rate : the same on the type of device where that is most; NaN where nobody asked yet, or the job adapts itself.
    num_preempted, num_starts : how often it lost its devices, and got some or others.
    taken_over : 1 for a job that a scheduler before this one had admitted.
    first_device : where in the array of ``grants`` its devices begin.
    needs : processors and bytes that it needs with each device; 0 for a share of its node.
    has_auxiliary : 1 if what it has of these is counted.
    partition : index of the partition in whose nodes it must lie; 0 for any.
    killed_after_s : time with devices after which it is ended, whatever it has done; infinite if it may take its time.
    is_killed : 1 if ``finish_s`` is when that time is up.
    mark : what the policy made of the job when it came, where it decides in compiled code; see `CompiledPolicy`.
    """

    # Those that decisions look at are next to each other, as memory is read in pieces.
    held: Ints
    held_type: Ints
    num_devices: Ints
    allowed: Ints
    attained_until_s: Floats
    attained_s: Floats
    attained_device_s: Floats
    serial: Ints
    finish_s: Floats
    since_s: Floats
    rate: Floats
    left: Floats
    best_rate: Floats
    first_device: Ints
    has_auxiliary: Ints
    partition: Ints
    arrival_s: Floats
    weight: Floats
    needs: Floats
    turn: Floats
    began_s: Floats
    placed_s: Floats
    lease_until_s: Floats
    waiting_since_s: Floats
    waited_s: Floats
    lost_s: Floats
    lost_device_s: Floats
    first_start_s: Floats
    job_s: Floats
    gang_rate: Floats
    mark: Floats
    num_preempted: Ints
    num_starts: Ints
    taken_over: Ints
    killed_after_s: Floats
    is_killed: Ints

    def __init__(self) -> None:
        self.jobs: list[Job | None] = []
        self.adaptive_rates: dict[int, Rate] = {}
        self.courses: dict[int, tuple[tuple[Floats, Floats], ...]] = {}
        self.cached_columns: dict[str, CachedColumn] = {}
        self.groups: dict[str, dict[Any, int]] = {}
        self.known: dict[frozenset[str], list[Any]] = {}
        self.reports: list[Any] = []
        self.counts = records(1, COUNTS)
        # Views of the counts that are asked for most: to look one up by its name takes longer.
        self._num_active = self.counts["active"]
        self.num_noted, self.num_written = self.counts["used"], self.counts["written"]
        self.data, self.rows = rows_for(0), np.zeros(0, np.int64)
        self._grow(16)
        self.grants = Grants(self.held, self.first_device)
        self.owners = Owners(self)
        self.usage: Usage | None = None

    def _grow(self, more: int) -> None:
        """Make room for more jobs; every row has one."""
        before = len(self.data)
        self.data, former = rows_for(before + more), self.data
        self.data[:before] = former
        for name in _RECORD.names or ():
            setattr(self, name, self.data[name])
        self.rows = np.append(self.rows, before + np.arange(more))
        for column in (self.jobs, self.reports, *self.known.values()):
            column += [None] * more

    def grow(self) -> None:
        """Make room for twice as many jobs."""
        self._grow(len(self.jobs))
        self.grants.held, self.grants.first = self.held, self.first_device

    @property
    def num_active(self) -> int:
        """Jobs that are there."""
        return int(self._num_active[0])

    @property
    def num_waiting(self) -> int:
        """Jobs that have no devices."""
        return int(self.counts["waiting"][0])

    @property
    def num_entered(self) -> int:
        """Jobs that ever came."""
        return int(self.counts["entered"][0])

    def job(self, row: int) -> Job:
        """The job of a row."""
        job = self.jobs[row]
        assert job is not None
        return job

    @property
    def active(self) -> Ints:
        """Rows of all jobs, in the order of arrival; a view that later changes write to."""
        return self.rows[: self._num_active[0]]

    def decided(self) -> None:
        """A policy has decided on all jobs that are there."""
        self.counts["decided"] = self.counts["entered"]

    def was_admitted(self, rows: Ints) -> Bools:
        """Whether jobs were in a decision before, which did not refuse them."""
        found: Bools = (self.serial[rows] < self.counts["decided"][0]) | (self.taken_over[rows] > 0)
        return found

    def waiting(self) -> Ints:
        """Rows of the jobs that have no devices, in the order of arrival."""
        found = np.empty(self.num_active, np.int64)
        return found[: job_facts.waiting_rows(self.rows, self.num_active, self.held, found)]

    def count_usage(self, now_s: float) -> None:
        """Count device time until now, before a job gets or loses devices."""
        if self.usage is not None:
            self.usage.advance(now_s)

    def take_out(self, row: int, job: Job | None = None) -> None:
        """Note that a job has left its row.

        Parameters
        ----------
        job : the job, where the row may be another's by now; that one stays.
        """
        if job is not None and self.jobs[row] is not job:
            return
        for column in (self.jobs, self.reports, *self.known.values()):
            column[row] = None
        self.courses.pop(row, None)

    def known_to(self, needs: frozenset[str]) -> list[Any]:
        """Return the jobs of all rows as policies with these needs see them, as far as such a policy looked at them."""
        if needs not in self.known:
            self.known[needs] = [None] * len(self.jobs)
        return self.known[needs]

    def submitted(self, name: str, rows: Ints) -> Floats:
        """Return a number from the submission of every job, such as its deadline; infinite for a job without it."""

        def find(row: int) -> float:
            said = getattr(self.job(row), name)
            return np.inf if said is None else float(said)

        return self.cached(name, rows, find)

    def held_by_owner(self, shares: Floats) -> Floats:
        """Return devices, processors and bytes of memory that the jobs of every owner hold, a row for every owner.

        Parameters
        ----------
        shares : processors and memory that go with a device of each type, for jobs that ask for none.
        """
        self.owners.of(self.active)
        rows = self.active[self.held[self.active] > 0]
        owners, held = self.owners.of(rows), self.held[rows]
        needs = np.where(self.needs[rows] > 0, self.needs[rows], shares[self.held_type[rows]])
        columns = held, held * needs[:, 0], held * needs[:, 1]
        return np.stack([np.bincount(owners, column, len(self.owners.all)) for column in columns], axis=1)

    def cached(self, name: str, rows: Ints, find: Callable[[int], float]) -> Floats:
        """Return a fact of jobs that does not change while they are there.

        Parameters
        ----------
        name : of the fact.
        find : finds the fact of the job in a row, when it is first asked for.
        """
        return self.cached_columns.setdefault(name, CachedColumn()).of(rows, self.serial, find)

    def mean_jobs(self, rows: Ints, now_s: float) -> Floats:
        """Return the mean number of jobs since each job came; for a job that comes now, the number of jobs now."""
        counts = self.counts[0]
        job_s = counts["job_s"] + self.num_active * (now_s - counts["counted_s"]) - self.job_s[rows]
        there_s, found = now_s - self.arrival_s[rows], np.full(len(rows), float(self.num_active))
        np.divide(job_s, there_s, out=found, where=there_s > 0)
        return found

    def attained(self, rows: Ints, now_s: float) -> tuple[Floats, Floats]:
        """Time for which jobs had devices until now, and that times their number."""
        found = np.empty((2, len(rows)))
        job_facts.attained(self.data, rows, now_s, found)
        return found[0], found[1]

    def facts(self, rows: Ints, now_s: float) -> Floats:
        """Devices held, asked for and allowed, time and device time attained, and when jobs first started: a row each."""
        found = np.empty((job_facts.NUM_FACTS, len(rows)))
        job_facts.facts(self.data, rows, now_s, found)
        return found

    def left_at(self, rows: Ints, now_s: float) -> Floats:
        """Work that is left now."""
        found = np.empty(len(rows))
        job_facts.left_at(self.data, rows, now_s, found)
        return found

    def left_s_at(self, rows: Ints, now_s: float) -> tuple[Floats, bool]:
        """Time that jobs would still take on their gangs, NaN where that is to be asked; and whether it is of any."""
        found = np.empty(len(rows))
        return found, job_facts.left_s_at(self.data, rows, now_s, found)

    def part_of_start_left(self, row: int, now_s: float) -> float:
        """Return the part left of the time between a job's start and its first work; 0 if it works or has no devices."""
        if not self.held[row] or self.since_s[row] <= now_s:
            return 0.0
        return float((self.since_s[row] - now_s) / (self.since_s[row] - self.placed_s[row]))

    def forget(self, rows: Ints) -> None:
        """Forget how jobs ran that wait now, and values of what they had."""
        self.grants.forget(rows)
        if self.adaptive_rates:
            for row in rows.tolist():
                self.adaptive_rates.pop(row, None)


_RECORD = np.dtype(
    [
        ("needs", np.float64, (2,)) if name == "needs" else (name, np.float64 if of == "Floats" else np.int64)
        for name, of in JobTable.__annotations__.items()
    ],
    align=True,
)


def rows_for(num_jobs: int) -> Table:
    """Empty rows."""
    return records(num_jobs, _RECORD)


_ARRIVAL = [
    "arrival_s",
    "weight",
    "left",
    "gang_rate",
    "needs",
    "mark",
    "num_devices",
    "allowed",
    "partition",
    "killed_after_s",
]


class ArrivalRows:
    """Rows in which is written down what is known of jobs that come; all else in them is 0."""

    def __init__(self, num_jobs: int) -> None:
        self.rows = rows_for(num_jobs)
        # To write all at once takes far less than one after the other.
        self._known = self.rows[_ARRIVAL]

    def note(
        self, number: int, job: Job, rate: float, allowed: int, partition: int, mark: float = 0.0
    ) -> None:
        """Write one down.

        Parameters
        ----------
        rate : what `rate_anywhere` says.
        allowed : device types that it can run on, as bits.
        partition, mark : as in `JobTable`.
        """
        needs, num_devices = needs_of(job), job.num_devices
        killed_after_s = _INF if job.killed_after_s is None else job.killed_after_s
        self._known[number] = (
            job.arrival_s, job.weight, job.work, rate, needs, mark, num_devices, allowed, partition, killed_after_s
        )  # fmt: skip

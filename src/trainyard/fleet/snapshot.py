"""Snapshots for policies: the jobs and the cluster at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs import job_facts
from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.jobs.usage import Owner
from trainyard.fleet.known import KnownJob, require
from trainyard.fleet.place.auxiliary import shares_by_type
from trainyard.fleet.place.trial import TrialPlacement
from trainyard.fleet.snapshot_column import Column
from trainyard.fleet.workload.fair import FairTimes
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Spot, spot_of
from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Need = Literal[
    "length", "speed", "deadline", "reports", "limit", "priority", "guaranteed", "weight", "qos"
]  # fmt: skip
"""Facts that not every cluster knows, which a policy has to declare: the work that is left; speeds on devices; deadlines;
reports of adaptive jobs; time limits; and facts that not every cluster uses: priority, whether a job is guaranteed,
weight in fairness, quality of service."""


HELD, NUM_DEVICES, ALLOWED = job_facts.FACT_HELD, job_facts.FACT_NUM_DEVICES, job_facts.FACT_ALLOWED
ATTAINED_S, ATTAINED_DEVICE_S = job_facts.FACT_ATTAINED_S, job_facts.FACT_ATTAINED_DEVICE_S
FIRST_START_S = job_facts.FACT_FIRST_START_S
"""Rows of what `Snapshot.facts` returns, for compiled functions; each is what the column of that name is."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The jobs that a policy decides on, at one moment.

    The jobs that are there are numbered from 0 in the order of their arrival; every column is a NumPy array by that
    number. A number is for one snapshot: once an earlier job is gone, a job has another, while its ``serial`` stays. A
    policy that never takes devices away sees only the jobs that wait.

    Attributes
    ----------
    now_s : the moment.
    cluster : the cluster.
    free : devices that nobody has, by node.
    needs : what the policy declared; asking for anything else is an error.
    rows : where the jobs lie in the table behind all snapshots; a policy has no use for it.
    """

    now_s: float
    cluster: Cluster
    free: Ints
    needs: frozenset[Need]
    rows: Ints
    _table: JobTable
    _trial: Callable[[], TrialPlacement] | None = None

    jobs = Column[tuple[KnownJob, ...]](
        "The jobs as they were submitted: all of `JobRequest`, and of `Job` what the policy declared.",
        lambda s: s._known_jobs(),
    )
    serial = Column[Ints](
        "How many jobs were submitted before each: ascending, and a job's own for life, so that states can name jobs."
    )
    arrival_s = Column[Floats]("When every job was submitted.")
    num_devices = Column[Ints]("Devices that every job asks for.")
    allowed = Column[Ints](
        "Device types that every job can run on, as bits by their index in ``cluster.device_types``."
    )
    partition = Column[Ints]("Index of the partition in whose nodes every job must lie; 0 for any node.")
    weight = Column[Floats]("Of every job, in weighted fairness.", needs=("weight",))
    deadline_s = Column[Floats](
        "Deadlines, infinite for jobs without one.", lambda s: s._submitted("deadline_s"), ("deadline",)
    )
    limit_s = Column[Floats](
        "Times that users allowed their jobs, infinite for jobs without one.",
        lambda s: s._submitted("limit_s"),
        ("limit",),
    )
    priority = Column[Floats](
        "Priorities, the larger the more urgent.", lambda s: s._submitted("priority"), ("priority",)
    )
    was_admitted = Column[Bools](
        "Whether every job was in a decision before this one, which did not refuse it: what was promised to it then, it "
        "has to get, also of a scheduler that took over from another one and remembers nothing.",
        lambda s: s._table.was_admitted(s.rows),
    )
    grants = Column[tuple[Grant | None, ...]](
        "What every job has.", lambda s: tuple(s._table.grants[row] for row in s.rows)
    )
    held = Column[Ints]("Devices that every job has.")
    lease_until_s = Column[Floats](
        "When every job's devices are to be given back, by the decision that gave them: a lease, which is over where "
        "that is not later than now; infinite for devices without a lease, and for a job without devices."
    )
    is_running = Column[Bools]("Whether every job has devices.", lambda s: s.held > 0)
    is_restarting = Column[Bools](
        "Whether every job has devices and does no work yet.",
        lambda s: s.is_running & (s._table.since_s[s.rows] > s.now_s),
    )
    attained_s = Column[Floats]("Time for which every job had devices.", lambda s: s._attained[0])
    attained_device_s = Column[Floats](
        "Time for which every job had devices, times how many: the attained service of Tiresias.",
        lambda s: s._attained[1],
    )
    waiting_s = Column[Floats](
        "Time for which every job has waited without a break; 0 for those that run.",
        lambda s: np.where(s.is_running, 0.0, s.now_s - s._table.waiting_since_s[s.rows]),
    )
    first_start_s = Column[Floats]("When every job first had devices; NaN before it.")
    was_started = Column[Bools]("Whether every job ever had devices.", lambda s: ~np.isnan(s.first_start_s))
    num_starts = Column[Ints]("How often every job got devices: the first, or others than before.")
    num_restarts = Column[Ints](
        "How often every job got devices after the first time.", lambda s: np.maximum(0, s.num_starts - 1)
    )
    reports = Column[tuple[Any, ...]](
        "What every job last reported of itself, or knew before it ran, or None.",
        lambda s: tuple(s._report(row) for row in s.rows),
        ("reports",),
    )
    done = Column[Floats](
        "Work that every job has done, in the unit of its profile: its counter of steps, which anybody can read.",
        lambda s: s._submitted("work") - s._left,
    )
    left = Column[Floats]("Work left, in the unit of each job's profile.", lambda s: s._left, ("length",))
    left_s = Column[Floats](
        "Time that every job would still take on its gang, all devices that it asks for, on the type on which it is "
        "fastest, of those that it may have; infinite for a job that runs on none.",
        lambda s: s._least_rests_s(),
        ("length", "speed"),
    )

    owner = Column[Ints](
        "Index in `owners` of the account and user of every job.",
        lambda s: s._table.owners.of(s.rows),
    )
    fair_s = Column[Floats](
        "Time that every job would take from beginning to end with an equal share of the cluster, that of one of as many "
        "jobs as there were on average since it came; as long as alone on its gang if it asks for no more than that.",
        lambda s: s._fair_times_s(),
        ("length", "speed"),
    )

    @cached_property
    def owners(self) -> tuple[Owner, ...]:
        """Pairs of account and user of all present and past jobs, also of jobs outside this snapshot."""
        self._table.owners.of(self._table.active)
        return tuple(self._table.owners.all)

    def owner_groups(self, by: str) -> tuple[Sequence[str], Ints]:
        """Return the names of all users or accounts, and for each owner the index of its name.

        Parameters
        ----------
        by : "user" or "account".
        """
        self._table.owners.of(self._table.active)
        return self._table.owners.groups(by)

    @property
    def usage_device_s(self) -> Floats:
        """Usage of every owner in device seconds, by its number in `owners`, with the half-life in the policy's traits.

        Raises
        ------
        FleetError
            If they give none.
        """
        self._table.owners.of(self._table.active)
        if self._table.usage is None:
            raise FleetError("a policy that reads usage_device_s must give `usage_half_life_s` in its traits")
        return self._table.usage.device_s

    def held_by_owner(self) -> Floats:
        """Return the resources of all running jobs by the number of their owner, also of jobs outside this snapshot.

        Returns
        -------
        A row for every owner: devices, processors and bytes of memory. A job that asks for no processors or no memory
        counts with the mean share that goes with a device of its type.
        """
        return self._table.held_by_owner(shares_by_type(self.cluster))

    def group(self, by: str) -> Ints:
        """Return the number of the group of every job: arrays of numbers are faster than names.

        Jobs with an equal attribute are one group. Groups are numbered from 0, and keep their numbers during a run.

        Parameters
        ----------
        by : attribute of jobs, such as "user".
        """
        numbers = self._table.groups.setdefault(by, {})
        of_jobs = self._table.cached(
            f"group by {by}",
            self.rows,
            lambda row: numbers.setdefault(getattr(self._known(row), by), len(numbers)),
        )
        return of_jobs.astype(np.int64)

    def groups(self, by: str) -> tuple[Any, ...]:
        """Return the attribute of every group that `group` has numbered, by the group's number."""
        return tuple(self._table.groups.get(by, ()))

    def devices_of_unlisted_jobs(self, by: str) -> Counter[str]:
        """Count the devices of running jobs that are not in this snapshot.

        Parameters
        ----------
        by : attribute of jobs by which the devices are counted, such as "account".
        """
        held, num_devices = self._table.held, Counter[str]()
        for row in np.setdiff1d(self._table.active, self.rows).tolist():
            num_devices[str(getattr(KnownJob(self._table.job(row), self.needs), by))] += int(held[row])
        return num_devices

    def trial(self) -> TrialPlacement:
        """Return a copy of the free devices, to try which jobs would find a place; changes to it change nothing else."""
        assert self._trial is not None, "whoever asks a policy says what is free"
        return self._trial()

    @property
    def num_jobs(self) -> int:
        """Number of jobs."""
        return len(self.rows)

    def grant(self, number: int) -> Grant | None:
        """Return the grant of one job; None if it waits."""
        return self._table.grants[int(self.rows[number])]

    def job(self, number: int) -> KnownJob:
        """Return a job as it was submitted, as in ``jobs``."""
        return self._known(int(self.rows[number]))

    def _known(self, row: int) -> KnownJob:
        """Return the job of a row, the same object at every decision."""
        known = self._table.known_to(self.needs)
        if known[row] is None:
            known[row] = KnownJob(self._table.job(row), self.needs)
        job: KnownJob = known[row]
        return job

    def _known_jobs(self) -> tuple[KnownJob, ...]:
        rows = self.rows.tolist()
        found = tuple(map(self._table.known_to(self.needs).__getitem__, rows))
        return found if all(found) else tuple(map(self._known, rows))

    def _job(self, number: int) -> Job:
        return self._table.job(int(self.rows[number]))

    def allowed_types(self, number: int) -> list[int]:
        """Device types that one job can run on, by their index."""
        bits = int(self.allowed[number])
        return [kind for kind in range(len(self.cluster.device_types)) if (bits >> kind) & 1]

    def facts(self, numbers: Ints) -> Floats:
        """Return what every policy may know of some jobs, in one call: for policies that look at few of many.

        What each row is stands in `trainyard.fleet.snapshot`: `HELD`, `NUM_DEVICES`, `ALLOWED`, `ATTAINED_S`,
        `ATTAINED_DEVICE_S` and `FIRST_START_S` are the indices of those columns.

        Returns
        -------
        A row for each thing, such as `HELD`, with a column for every number.
        """
        return self._table.facts(self.rows[numbers], self.now_s)

    @cached_property
    def _attained(self) -> tuple[Floats, Floats]:
        return self._table.attained(self.rows, self.now_s)

    def _report(self, row: int) -> Any:
        report, job = self._table.reports[row], self._table.jobs[row]
        if report is None and job is not None and isinstance(job.profile, Adaptive):
            return job.profile.known
        return report

    def _least_rests_s(self) -> Floats:
        found, some_ask = self._table.left_s_at(self.rows, self.now_s)
        if some_ask:
            for number in np.flatnonzero(np.isnan(found)).tolist():
                found[number] = self._least_rest_s(number)
        return found

    def _fair_times_s(self) -> Floats:
        """Return `fair_s`: the times that jobs take alone are found once, the rest at each decision."""
        fair, table = FairTimes(self.cluster.whole), self._table
        alone_s = table.cached(
            "alone_s", self.rows, lambda row: fair.alone_s(table.job(row), int(table.allowed[row]))
        )
        return fair.shared_s(alone_s, self.num_devices, table.mean_jobs(self.rows, self.now_s))

    def _least_rest_s(self, number: int) -> float:
        """`left_s` of one job whose speed depends on its devices, or which adapts its batch size.

        What does not change while the job is there is found out once: policies ask for all jobs at every decision.
        """
        job, row, left = self.job(number), int(self.rows[number]), float(self._left[number])
        if not isinstance(job.profile, Adaptive):
            self._table.best_rate[row] = best = float(self.gang_speeds(number).max())
            return left / best if best > 0 else float("inf")
        if row not in self._table.courses:
            self._table.courses[row] = self._courses(number, job.profile)
        courses = self._table.courses[row]
        return min((float(np.interp(job.work - left, *course)) for course in courses), default=float("inf"))

    def _courses(self, number: int, profile: Adaptive) -> tuple[tuple[Floats, Floats], ...]:
        """Work done and time left whenever a job changes its rate, on its gang of every type where it comes to an end."""
        job, found = self.job(number), []
        grant = Grant(tuple(range(job.num_devices)))
        for kind in self._kinds(number):
            stints = profile.stints(self._spot(grant, kind), grant, 0.0, job.work)
            done, stint_s = np.array([(0.0, 0.0), *stints]).T
            past_s = stint_s.cumsum()
            if np.isfinite(past_s[-1]):
                found.append((done, past_s[-1] - past_s))
        return tuple(found)

    @cached_property
    def _left(self) -> Floats:
        return self._table.left_at(self.rows, self.now_s)

    def speed(self, number: int, grant: Grant, device_type: int = 0) -> float:
        """Work per second of a job with a grant, on as few nodes of a type as can hold so many devices; needs "speed".

        Of the grant's devices only their number counts: ``Grant(tuple(range(4)))`` is any four.
        """
        require("speed", self.needs)
        return self._job(number).profile.work_per_s(self._spot(grant, device_type), grant)

    def rest_s(self, number: int, grant: Grant, device_type: int = 0, from_next: bool = False) -> float:
        """Time that a job would still take with a grant, placed as for `speed`; needs "speed" and "length".

        Parameters
        ----------
        from_next : count from where the job next changes its rate, such as the end of an epoch.
        """
        require("speed", self.needs)
        left, job, spot = float(self.left[number]), self._job(number), self._spot(grant, device_type)
        if not isinstance(job.profile, Adaptive):
            speed = job.profile.work_per_s(spot, grant)
            return left / speed if speed > 0 else float("inf")
        done = job.work - left
        if from_next:
            done = job.profile.rate(spot, grant, done, None).until
        return job.profile.rest_s(spot, grant, done, job.work)

    def _spot(self, grant: Grant, device_type: int) -> Spot:
        per_node = self.cluster.compact(grant.num_devices, device_type)
        return spot_of(self.cluster.device_types[device_type], per_node)

    def gang_speeds(self, number: int) -> Floats:
        """Work per second of a job's gang by device type, 0 where it can never run; needs "speed"."""
        job, found = self._job(number), np.zeros(len(self.cluster.device_types))
        grant = Grant(tuple(range(job.num_devices)))
        for kind in self._kinds(number):
            found[kind] = self.speed(number, grant, kind)
        return found

    def _kinds(self, number: int) -> list[int]:
        """Types of device of which a job may have its gang, and there are enough when all nodes are there."""
        allowed, partition = int(self.allowed[number]), self.partition[number]
        sizes, wanted = (
            self.cluster.whole.devices_of_partition[partition].tolist(),
            self.job(number).num_devices,
        )
        return [kind for kind, size in enumerate(sizes) if wanted <= size and (allowed >> kind) & 1]

    def speed_beside(self, number: int, other: int, device_type: int = 0) -> float:
        """Work per second of a job's gang on the same devices as another's, placed as for `speed`; needs "speed"."""
        return self.gang_speed(self.job(number), device_type, self.job(other))

    def gang_speed(self, job: KnownJob, device_type: int, beside: KnownJob | None = None) -> float:
        """Work per second of the gang of a job, which may have left since, as it would be here; needs "speed".

        Parameters
        ----------
        beside : a job that has the same devices, too.
        """
        require("speed", self.needs)
        grant = Grant(tuple(range(job.num_devices)))
        if beside is not None:
            grant = grant._replace(share=job.share_beside(beside), partners=(beside.name,))
        return job.profile.work_per_s(self._spot(grant, device_type), grant)

    def _submitted(self, name: str) -> Floats:
        return self._table.submitted(name, self.rows)

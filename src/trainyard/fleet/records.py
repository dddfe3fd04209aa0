"""Records of a run: one for each job, and the use of devices over time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.prices import run_costs
from trainyard.fleet.span import Span
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.shown import Shown

Floats = NDArray[np.float64]

_INF = float("inf")


class Submitted(NamedTuple):
    """A job as it was submitted, as far as reports group jobs by it.

    Attributes
    ----------
    num_devices, device_types : that it asks for; types are joined by a +, and empty if it takes any.
    deadline_s : infinite if it has none.
    """

    name: str
    user: str
    account: str
    virtual_cluster: str
    qos: str
    num_devices: int
    device_types: str
    deadline_s: float

    @classmethod
    def of(cls, job: Job) -> Submitted:
        """Return the attributes of a job that reports need."""
        types = "+".join(job.device_types) if job.device_types else ""
        deadline_s = _INF if job.deadline_s is None else job.deadline_s
        whose = job.user, job.account, job.virtual_cluster, job.qos
        return cls(job.name, *whose, job.num_devices, types, deadline_s)


class Unfit(NamedTuple):
    """A job that was left out, because it can never run here under the policy.

    Attributes
    ----------
    reason : in words, the same for all jobs that lack the same.
    said : of this one.
    """

    job: Submitted
    reason: str
    said: str


class Series(NamedTuple):
    """Numbers over time: each row holds from its ``time_s`` until the next."""

    time_s: Floats
    num_devices_in_use: Floats
    num_waiting: Floats


@dataclass(frozen=True, eq=False, repr=False)
class FleetRun(Shown):
    """A run of a workload under a policy; columns are by job, in the order in which they ended.

    Attributes
    ----------
    policy, placement : names of both; the placement in words where the policy has one of its own.
    queues : those of the policy, in words; empty where that says nothing.
    jobs : that ended.
    arrival_s, first_start_s, finish_s : when each came, first had devices, and ended.
    waiting_s : time without devices, from arrival to end.
    lost_s : time with devices in which no work was done that counts: starts, restarts, and work that a failure undid. The
        rest of the time from arrival to end is work. Of real trainings it is not known, and 0.
    device_s, lost_device_s : devices times time that each had, and of that what was lost.
    num_preempted, num_starts : how often each lost its devices, and got some or others.
    is_killed : whether each was ended by a time limit before its work was done.
    alone_s, fair_s : how long each would have taken on its gang without waiting, and with an equal share of the cluster.
    refused : jobs that were turned away by the policy, and why.
    refused_jobs : the same jobs, as they were submitted.
    left_out : jobs that can never run here, and were not simulated.
    series : devices in use and jobs that wait, over time.
    spans : what ran where; empty unless it was asked for.
    num_decisions, num_failures : of the policy; of devices that jobs had.
    what_if : changes of the cluster and the jobs, as text; empty if there are none.
    """

    policy: str
    placement: str
    queues: str
    cluster: Cluster
    jobs: tuple[Submitted, ...]
    arrival_s: Floats
    first_start_s: Floats
    finish_s: Floats
    waiting_s: Floats
    lost_s: Floats
    device_s: Floats
    lost_device_s: Floats
    num_preempted: NDArray[np.int64]
    num_starts: NDArray[np.int64]
    is_killed: NDArray[np.bool_]
    alone_s: Floats
    fair_s: Floats
    refused: tuple[tuple[str, str], ...]
    refused_jobs: tuple[Submitted, ...]
    left_out: tuple[Unfit, ...]
    series: Series
    spans: tuple[Span, ...]
    num_decisions: int
    num_failures: int
    what_if: str = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(job.name for job in self.jobs)

    @cached_property
    def virtual_clusters(self) -> tuple[str, ...]:
        return tuple(job.virtual_cluster for job in self.jobs)

    @cached_property
    def deadline_s(self) -> Floats:
        """Infinite where there is none."""
        return np.array([job.deadline_s for job in self.jobs], np.float64)

    @cached_property
    def refused_deadline_s(self) -> Floats:
        """The same of jobs that were refused."""
        return np.array([job.deadline_s for job in self.refused_jobs], np.float64)

    @cached_property
    def completion_s(self) -> Floats:
        """Job completion times (JCT): from arrival to end."""
        return self.finish_s - self.arrival_s

    @cached_property
    def first_wait_s(self) -> Floats:
        """From arrival to the first devices."""
        return self.first_start_s - self.arrival_s

    @cached_property
    def work_s(self) -> Floats:
        """Time with devices in which work was done that counts."""
        return self.completion_s - self.waiting_s - self.lost_s

    @cached_property
    def slowdown(self) -> Floats:
        """Completion time over the time that the job takes on its gang without waiting."""
        return _ratio(self.completion_s, self.alone_s)

    @cached_property
    def unfairness(self) -> Floats:
        """Finish-time fairness: completion time over that with an equal share; above 1 a job was wronged."""
        return _ratio(self.completion_s, self.fair_s)

    def of(self, ran: Sequence[int], refused: Sequence[int]) -> FleetRun:
        """The same run of some of its jobs, by their places in ``jobs`` and in ``refused``. It has no spans."""
        kept: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, np.ndarray):
                kept[field.name] = column[list(ran)]
        for name, places in (("jobs", ran), ("refused", refused), ("refused_jobs", refused)):
            kept[name] = tuple(getattr(self, name)[place] for place in places)
        return replace(self, spans=(), **kept)

    @property
    def wronged(self) -> float:
        """Share of the jobs that would have been done sooner with an equal share of the cluster."""
        return float((self.unfairness > 1.0 + 1e-9).mean()) if len(self.names) else 0.0

    @property
    def worst_unfairness(self) -> float:
        return float(self.unfairness.max()) if len(self.names) else 0.0

    @property
    def mean_completion_s(self) -> float:
        return float(self.completion_s.mean()) if len(self.names) else 0.0

    @property
    def end_s(self) -> float:
        """When the last job ends."""
        return float(self.finish_s.max()) if len(self.names) else 0.0

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return self.end_s - float(self.arrival_s.min()) if len(self.names) else 0.0

    @property
    def num_preemptions(self) -> int:
        """Count how often jobs lost their devices and waited."""
        return int(self.num_preempted.sum())

    @property
    def num_moves(self) -> int:
        """Count how often jobs restarted on other devices, or on more or fewer, without a wait between."""
        return int((self.num_starts - 1 - self.num_preempted).sum())

    @property
    def mean_waiting_s(self) -> float:
        """Mean time that jobs spend without devices."""
        return float(self.waiting_s.mean()) if len(self.names) else 0.0

    @property
    def mean_first_wait_s(self) -> float:
        """Mean time from a job's arrival to its first devices."""
        return float(self.first_wait_s.mean()) if len(self.names) else 0.0

    @property
    def mean_slowdown(self) -> float:
        return float(self.slowdown.mean()) if len(self.names) else 0.0

    def percentile_s(self, percent: float) -> float:
        """A percentile of the completion times."""
        return float(np.percentile(self.completion_s, percent)) if len(self.names) else 0.0

    @property
    def busy_device_s(self) -> float:
        """Devices times time in which jobs, one or several together, had them, from the first arrival to the last end."""
        if not len(self.names):
            return 0.0
        moments_s, counts, _ = self.series
        last_s = self.end_s
        lasts_s = np.diff(np.clip(np.append(moments_s, last_s), last_s - self.makespan_s, last_s))
        return float(counts @ lasts_s)

    @property
    def busy(self) -> float:
        """Share of all devices' time, from the first arrival to the last end, that jobs had, alone or together."""
        whole_s = self.makespan_s * self.cluster.num_devices
        return self.busy_device_s / whole_s if whole_s > 0 else 0.0

    @property
    def useful(self) -> float:
        """Share of all device time in which work was done that counts, without starts, restarts and lost work."""
        had_s = float(self.device_s.sum())
        return self.busy * (1.0 - float(self.lost_device_s.sum()) / had_s) if had_s > 0 else 0.0

    def times(self) -> dict[str, float | int]:
        """Numbers of jobs that ended and were refused, and their times in seconds, by name, as in documents of a run."""
        counts: dict[str, float | int] = {
            "num_jobs": len(self.jobs),
            "num_refused": len(self.refused),
            "num_killed": self.num_killed,
            "num_missed_deadlines": self.num_missed,
        }
        if not self.jobs:
            return counts
        columns = {
            "completion": self.completion_s,
            "waiting": self.waiting_s,
            "first_wait": self.first_wait_s,
        }
        for name, values in columns.items():
            counts |= {
                f"mean_{name}_s": float(values.mean()),
                f"median_{name}_s": float(np.percentile(values, 50)),
                f"p99_{name}_s": float(np.percentile(values, 99)),
            }
        return counts | {
            "mean_slowdown": self.mean_slowdown,
            "worst_unfairness": self.worst_unfairness,
            "device_s": float(self.device_s.sum()),
            "lost_device_s": float(self.lost_device_s.sum()),
        }

    def figures(self) -> dict[str, Any]:
        """The run in one row: its policy, and what jobs and devices did, by name."""
        return {
            "policy": self.policy,
            "what_if": self.what_if,
            "num_devices": self.cluster.num_devices,
            "placement": self.placement,
            "queues": self.queues,
            **self.times(),
            "num_left_out": len(self.left_out),
            "makespan_s": self.makespan_s,
            "busy": self.busy,
            "useful": self.useful,
            "busy_device_s": self.busy_device_s,
            "num_preemptions": self.num_preemptions,
            "num_failures": self.num_failures,
            "num_decisions": self.num_decisions,
            **self.costs,
        }

    @property
    def costs(self) -> dict[str, float | None]:
        """Costs of the devices in use and of the whole cluster: see `run_costs`."""
        return run_costs(self.cluster, self.makespan_s, self.busy_device_s, self.spans)

    @property
    def num_jobs(self) -> int:
        """Jobs that came: those that ended, those that were refused, and those that were left out."""
        return len(self.names) + len(self.refused) + len(self.left_out)

    @property
    def num_killed(self) -> int:
        """Jobs that were ended by a time limit before their work was done."""
        return int(self.is_killed.sum())

    @property
    def num_missed(self) -> int:
        """Jobs that did not end by their deadline, because it was later or because they were refused."""
        return int((self.finish_s > self.deadline_s).sum() + np.isfinite(self.refused_deadline_s).sum())


def ranked_runs(runs: Sequence[FleetRun]) -> tuple[FleetRun, ...]:
    """Order runs by the number of completed jobs, the largest first, then by mean completion time."""
    return tuple(sorted(runs, key=lambda run: (run.num_killed - len(run.jobs), run.mean_completion_s)))


def _ratio(times_s: Floats, to_s: Floats) -> Floats:
    """Divide times; a job without work, which takes no time, has the ratio 1."""
    return np.divide(times_s, to_s, out=np.ones_like(to_s), where=to_s > 0)


class Recorder:
    """Takes the notes of a run."""

    def __init__(self, keep_spans: bool) -> None:
        self.jobs: list[Submitted] = []
        self.values = array("d")
        self.refused: list[tuple[str, str]] = []
        self.refused_jobs: list[Submitted] = []
        self.left_out: list[Unfit] = []
        self.series = (array("d"), array("d"), array("d"))
        self.spans: list[Span] | None = [] if keep_spans else None
        self.num_decisions = self.num_failures = 0

    def ended(self, job: Job, *values: float) -> None:
        """A job ended; values are those of ``COLUMNS`` but its arrival."""
        self.jobs.append(Submitted.of(job))
        self.values.append(job.arrival_s)
        self.values.extend(values)

    def turned_away(self, job: Job, why: str) -> None:
        """A job was refused."""
        self.refused.append((job.name, why))
        self.refused_jobs.append(Submitted.of(job))

    def uses(self, found: Floats) -> None:
        """Notes of devices in use and jobs that wait; rows as in `Series`."""
        for notes, more in zip(self.series, found.tolist(), strict=True):
            notes.extend(more)

    def result(self, policy: str, cluster: Cluster, placement: str = "", queues: str = "") -> FleetRun:
        """The notes as a value."""
        values = np.array(self.values).reshape(-1, len(COLUMNS))
        columns: dict[str, Any] = {name: values[:, i].copy() for i, name in enumerate(COLUMNS)}
        preempted, started = (columns.pop(name).astype(np.int64) for name in ("num_preempted", "num_starts"))
        is_killed = columns.pop("is_killed") > 0
        return FleetRun(
            policy,
            placement,
            queues,
            cluster,
            tuple(self.jobs),
            num_preempted=preempted,
            num_starts=started,
            is_killed=is_killed,
            refused=tuple(self.refused),
            refused_jobs=tuple(self.refused_jobs),
            left_out=tuple(self.left_out),
            series=Series(*map(np.array, self.series)),
            spans=tuple(self.spans or ()),
            num_decisions=self.num_decisions,
            num_failures=self.num_failures,
            **columns,
        )


COLUMNS = (
    "arrival_s", "first_start_s", "finish_s", "waiting_s", "lost_s", "device_s", "lost_device_s", "num_preempted",
    "num_starts", "alone_s", "fair_s", "is_killed",
)  # fmt: skip
"""Columns of the record of a job that ends, by attribute of `FleetRun`."""

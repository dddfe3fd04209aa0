"""What a run leaves: one record per job, and what the devices did."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.site import Site
from trainyard.fleet.workload.job import Job

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """A job on devices, from a grant to the next change."""

    job: str
    start_s: float
    end_s: float
    devices: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FleetRun:
    """A run of a workload under a policy; columns are by job, in the order in which they ended.

    Attributes
    ----------
    names, virtual_clusters : of the jobs.
    arrival_s, first_start_s, finish_s : when each came, first had devices, and ended.
    device_s : devices times time that each had.
    num_preempted, num_starts : how often each lost its devices, and got some or others.
    deadline_s : infinite where there is none.
    fair_s : how long each would have taken with an equal share of the cluster for itself.
    refused : jobs that were turned away, and why.
    refused_clusters, refused_deadline_s : virtual clusters and deadlines of these, in the same order.
    used : (time, devices in use from then on), at every change.
    spans : what ran where; empty unless it was asked for.
    num_decisions, num_failures : of the policy; of devices that jobs had.
    """

    policy: str
    site: Site
    names: tuple[str, ...]
    virtual_clusters: tuple[str, ...]
    arrival_s: Floats
    first_start_s: Floats
    finish_s: Floats
    device_s: Floats
    num_preempted: NDArray[np.int64]
    num_starts: NDArray[np.int64]
    deadline_s: Floats
    fair_s: Floats
    refused: tuple[tuple[str, str], ...]
    refused_clusters: tuple[str, ...]
    refused_deadline_s: Floats
    used: tuple[Floats, Floats]
    spans: tuple[Span, ...]
    num_decisions: int
    num_failures: int

    @cached_property
    def completion_s(self) -> Floats:
        """Job completion times (JCT): from arrival to end."""
        return self.finish_s - self.arrival_s

    @cached_property
    def queueing_s(self) -> Floats:
        """From arrival to the first devices."""
        return self.first_start_s - self.arrival_s

    @cached_property
    def unfairness(self) -> Floats:
        """Finish-time fairness: completion time over that with an equal share; above 1 a job was wronged.

        A job without work, which takes no time with any share, has 1.
        """
        fair = np.ones_like(self.fair_s)
        return np.divide(self.completion_s, self.fair_s, out=fair, where=self.fair_s > 0)

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
    def makespan_s(self) -> float:
        """When the last job ends, counted from time 0."""
        return float(self.finish_s.max()) if len(self.names) else 0.0

    @property
    def num_preemptions(self) -> int:
        return int(self.num_preempted.sum())

    @property
    def mean_queueing_s(self) -> float:
        """Mean time from a job's arrival to its first devices."""
        return float(self.queueing_s.mean()) if len(self.names) else 0.0

    def percentile_s(self, percent: float) -> float:
        """A percentile of the completion times."""
        return float(np.percentile(self.completion_s, percent)) if len(self.names) else 0.0

    @property
    def span_s(self) -> float:
        """From the first arrival to the last end."""
        return self.makespan_s - float(self.arrival_s.min()) if len(self.names) else 0.0

    @property
    def busy_device_s(self) -> float:
        """Devices times time in which jobs, one or several together, had them, from the first arrival to the last end."""
        if not len(self.names):
            return 0.0
        moments_s, counts = self.used
        last_s = self.makespan_s
        lasts_s = np.diff(np.clip(np.append(moments_s, last_s), last_s - self.span_s, last_s))
        return float(counts @ lasts_s)

    @property
    def utilisation(self) -> float:
        """Share of all devices' time, from the first arrival to the last end, that jobs had, alone or together."""
        whole_s = self.span_s * self.site.num_devices
        return self.busy_device_s / whole_s if whole_s > 0 else 0.0

    @property
    def num_jobs(self) -> int:
        """Jobs that came: those that ended, and those that were refused."""
        return len(self.names) + len(self.refused)

    @property
    def num_missed(self) -> int:
        """Jobs that did not end by their deadline, because it was later or because they were refused."""
        return int((self.finish_s > self.deadline_s).sum() + np.isfinite(self.refused_deadline_s).sum())


class Recorder:
    """Takes the notes of a run."""

    def __init__(self, keep_spans: bool) -> None:
        self.names: list[str] = []
        self.virtual_clusters: list[str] = []
        self.values = array("d")
        self.refused: list[tuple[str, str]] = []
        self.refused_clusters: list[str] = []
        self.refused_deadline_s = array("d")
        self.used = (array("d"), array("d"))
        self.spans: list[Span] | None = [] if keep_spans else None
        self.num_decisions = self.num_failures = 0

    def ended(
        self,
        job: Job,
        first_start_s: float,
        finish_s: float,
        device_s: float,
        num_preempted: float,
        num_starts: float,
        fair_s: float,
    ) -> None:
        """A job ended; values are those of the columns of `FleetRun`."""
        self.names.append(job.name)
        self.virtual_clusters.append(job.virtual_cluster)
        deadline_s = float("inf") if job.deadline_s is None else job.deadline_s
        self.values.extend(
            (job.arrival_s, first_start_s, finish_s, device_s, num_preempted, num_starts, deadline_s, fair_s)
        )

    def turned_away(self, job: Job, why: str) -> None:
        """A job was refused."""
        self.refused.append((job.name, why))
        self.refused_clusters.append(job.virtual_cluster)
        self.refused_deadline_s.append(float("inf") if job.deadline_s is None else job.deadline_s)

    def in_use(self, now_s: float, num_devices: int) -> None:
        """Devices in use from now on."""
        times, counts = self.used
        if times and times[-1] == now_s:
            counts[-1] = num_devices
        elif not counts or counts[-1] != num_devices:
            times.append(now_s)
            counts.append(num_devices)

    def last_use(self, found: Floats) -> int:
        """Take the last note of devices in use back, for others to go on from there.

        Parameters
        ----------
        found : times and numbers of devices, two rows of which the first column is written.

        Returns
        -------
        How many notes were taken back: 1, or 0 if there are none.
        """
        if not self.used[0]:
            return 0
        found[:, 0] = self.used[0].pop(), self.used[1].pop()
        return 1

    def uses(self, found: Floats) -> None:
        """Notes of devices in use, in rows as above."""
        for notes, more in zip(self.used, found.tolist(), strict=True):
            notes.extend(more)

    def result(self, policy: str, site: Site) -> FleetRun:
        """The notes as a value."""
        values = np.array(self.values).reshape(-1, len(_COLUMNS))
        columns = {name: values[:, i].copy() for i, name in enumerate(_COLUMNS)}
        preempted, started = (columns.pop(name).astype(np.int64) for name in ("num_preempted", "num_starts"))
        return FleetRun(
            policy,
            site,
            tuple(self.names),
            tuple(self.virtual_clusters),
            num_preempted=preempted,
            num_starts=started,
            refused=tuple(self.refused),
            refused_clusters=tuple(self.refused_clusters),
            refused_deadline_s=np.array(self.refused_deadline_s),
            used=(np.array(self.used[0]), np.array(self.used[1])),
            spans=tuple(self.spans or ()),
            num_decisions=self.num_decisions,
            num_failures=self.num_failures,
            **columns,
        )


_COLUMNS = (
    "arrival_s", "first_start_s", "finish_s", "device_s", "num_preempted", "num_starts", "deadline_s", "fair_s",
)  # fmt: skip

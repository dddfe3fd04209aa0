"""A backend that fails as it is told to, and says when a driver asks of it what no driver may ask."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.workload.job import Grant, Job

DEVICES_PER_NODE = 2


@dataclass
class FaultyBackend:
    """Keeps what a backend has to know of jobs, and nothing of a driver.

    Attributes
    ----------
    runs : devices of jobs that have processes.
    steps : saved by each job.
    failed : how jobs ended or failed, until they leave or are started again; of some, processes are left.
    leaving : jobs that were told to leave and are still there; none if it `leaves_at_once`.
    silent : calls that are not answered now.
    begun : jobs that were told to start, and not to leave since.
    loses : jobs that lose nodes, which is to be said when they are told to leave.
    next_start : "own" if it fails by the fault of its job, "partial" if it does though processes are there, or "none".
    broken : rules that the driver has broken.
    sick : jobs that fail whenever they are started, and how.
    """

    runs: dict[str, Grant] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    failed: dict[str, Progress] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    leaves_at_once: bool = False
    lost: frozenset[int] = frozenset()
    told_lost: frozenset[int] = frozenset()
    silent: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    loses: set[str] = field(default_factory=set)
    next_start: str = ""
    broken: list[str] = field(default_factory=list)
    sick: dict[str, Progress] = field(default_factory=dict)

    def _answer(self, call: str) -> None:
        if call in self.silent:
            raise BackendError(f"{call} is not answered")

    def require(self, holds: bool, rule: str) -> None:
        """A driver goes on where its backend raises an error, so that this is noted."""
        if not holds:
            self.broken.append(rule)

    def start(self, job: Job, grant: Grant) -> None:
        self.begun.add(job.name)
        self._answer("start")
        self.require(job.name not in self.runs, f"{job.name} is not started while it runs or leaves")
        taken = {device for other in self.runs.values() for device in other.devices}
        self.require(taken.isdisjoint(grant.devices), f"{job.name} is not started on devices of another")
        nodes = {device // DEVICES_PER_NODE for device in grant.devices}
        self.require(self.told_lost.isdisjoint(nodes), f"{job.name} is not started on nodes that are lost")
        fails, self.next_start = self.next_start, ""
        if fails == "own":
            raise ValueError("no such model")
        if fails == "none":
            raise BackendError("the connection was closed before")
        self.failed.pop(job.name, None)
        self.runs[job.name] = grant
        if job.name in self.sick:
            self.failed[job.name] = replace(self.sick[job.name], steps=self.steps.get(job.name, 0))
        if fails == "partial":
            raise BackendError("the connection was closed")

    def adopt(self, job: Job, grant: Grant) -> bool:
        return job.name in self.runs and job.name not in self.leaving

    def away(self) -> frozenset[int]:
        self._answer("away")
        self.told_lost = self.lost
        return self.lost

    def leave(self, name: str, is_lost: bool = False) -> None:
        self._answer("leave")
        self.require(name in self.begun, f"{name} is told to leave only after it was started")
        self.require(is_lost == (name in self.loses), f"{name} is told whether it loses nodes")
        self.begun.discard(name)
        if name in self.runs:
            self.leaving.add(name)
        if self.leaves_at_once:
            self.let_go(name)

    def let_go(self, name: str) -> None:
        """Nothing is left of a job that was told to leave."""
        if name in self.leaving:
            self.leaving.remove(name)
            del self.runs[name]
            self.failed.pop(name, None)

    def has_left(self, name: str) -> bool:
        self._answer("has_left")
        return name not in self.leaving

    def held(self, name: str) -> frozenset[int] | None:
        return frozenset(self.runs[name].devices) if name in self.runs else None

    def progress(self, name: str) -> Progress:
        self._answer("progress")
        if name in self.failed:
            return self.failed[name]
        return Progress(self.steps.get(name, 0))

    def close(self) -> None:
        self.runs.clear()

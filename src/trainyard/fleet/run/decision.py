"""Asking a policy, and finding out on which jobs it fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.errors import one_line
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.place.nodes import ANYWHERE
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import Recorder
from trainyard.fleet.run.fault import is_infrastructure_fault
from trainyard.fleet.snapshot import Ints, Snapshot
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

__all__ = ["UndecidedError", "decide", "look_at"]

# Of a search for those who are to blame: who is not found is looked for at the next decision.
_MOST_QUESTIONS, _MOST_CPU_S = 64, 10.0
_LATE_S = 1e6


class UndecidedError(Exception):
    """No decision could be made because of some jobs: why, by row."""

    def __init__(self, jobs: Mapping[int, str]) -> None:
        super().__init__("; ".join(jobs.values()))
        self.jobs = {row: f"the policy cannot decide on it: {why}" for row, why in jobs.items()}


def decide(policy: Policy, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
    """Return the decision of a policy, and its next state.

    Raises
    ------
    UndecidedError
        If it fails, and does so on some jobs when it is asked about each alone, but not on an ordinary one: these are to
        blame.
    Exception
        The policy's own, if no job can be blamed.
    """
    try:
        return policy.decide(snapshot, state)
    except Exception as error:
        if not is_infrastructure_fault(error) and (jobs := _Search(policy, snapshot).culprits()):
            raise UndecidedError(jobs) from error
        raise


def look_at(policy: Policy, cluster: Cluster, job: Job, now_s: float) -> None:
    """Ask a policy about a job alone on a cluster: what it has to know for that is known when it is asked again."""
    policy.decide(_alone(job, cluster, policy, now_s), policy.start(cluster.whole))


def _alone(job: Job, cluster: Cluster, policy: Policy, now_s: float) -> Snapshot:
    """A job that has just come to an empty cluster."""
    allocator = Allocator(cluster, policy, ANYWHERE, Costs(), Recorder(keep_spans=False))
    allocator.enter(job, now_s)
    free, table = allocator.free.by_node.copy(), allocator.table
    trial = partial(allocator.trial, cluster)
    return Snapshot(now_s, cluster, free, policy.needs, table.active.copy(), table, trial)


class _Search:
    """Asks a policy about parts of a snapshot, halves of halves, until it is known on which jobs it fails alone."""

    def __init__(self, policy: Policy, snapshot: Snapshot) -> None:
        self._policy, self._snapshot = policy, snapshot
        self._found: dict[int, str] = {}
        self._num_left, self._until_cpu_s = _MOST_QUESTIONS, time.thread_time() + _MOST_CPU_S

    def culprits(self) -> dict[int, str]:
        """Return jobs on which the policy fails alone, with their errors; none if it fails on an ordinary job, too."""
        if self._error(_ordinary(self._snapshot, self._policy)) is None:
            self._look_among(self._snapshot.rows)
        return self._found

    def _look_among(self, rows: Ints) -> None:
        if not self._num_left or time.thread_time() > self._until_cpu_s:
            return
        self._num_left -= 1
        error = self._error(replace(self._snapshot, rows=rows))
        if error is None or is_infrastructure_fault(error):
            return
        if len(rows) == 1:
            self._found[int(rows[0])] = one_line(error)
            return
        half = len(rows) // 2
        self._look_among(rows[:half])
        self._look_among(rows[half:])

    def _error(self, snapshot: Snapshot) -> Exception | None:
        try:
            self._policy.decide(snapshot, self._policy.start(snapshot.cluster.whole))
        except Exception as error:
            return error
        return None


def _ordinary(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The same moment with one job that nothing is wrong with."""
    training, late_s = Training("gpt-tiny", 1, 100), snapshot.now_s + _LATE_S
    speed = Predicted(training, {1: 1.0})
    job = training_job("ordinary", snapshot.now_s, 1, training, speed, deadline_s=late_s)
    alone = _alone(job, snapshot.cluster, policy, snapshot.now_s)
    return replace(snapshot, rows=alone.rows, _table=alone._table)

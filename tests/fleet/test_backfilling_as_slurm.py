"""Backfilling starts the jobs that a Slurm started, in the state in which it did.

Slurm 22.05 on 8 nodes of one GPU, 50 jobs for each way of backfilling: `run/record_slurm_backfill.py` recorded them.
The whole order of starts is no measure: Slurm acts a second or two late, and what it starts next depends on that. So the
policy is asked in the state of every second at which Slurm started jobs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import pytest

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster

_NODES = Cluster.uniform(8, 1)
_QUIET_S = 4


class Recorded(dict[str, Any]):
    """A line of the record; whole seconds."""

    def job(self, now_s: int) -> Job:
        """The job as it is at a second: it runs, or arrives then."""
        ran_s = max(0, now_s - self["started_s"])
        limit_s, priority = max(0.0, float(self["limit_s"] - ran_s)), self["priority"]
        return declared_job(
            self["name"],
            0.0,
            self["num_devices"],
            1.0,
            limit_s=limit_s,
            priority=priority,
            ran_s=float(ran_s),
        )


def recorded(way: str) -> list[Recorded]:
    with (Path(__file__).parent / "slurm_backfill.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["backfill"] == way]
    texts = ("backfill", "name")
    return [
        Recorded((name, text if name in texts else int(text)) for name, text in row.items()) for row in rows
    ]


class _Decided(Exception):  # noqa: N818  (nothing is wrong)
    """The first decision: names of the jobs that start."""


@dataclass
class FirstDecision(PolicyWrapper):
    """Ends a simulation with its first decision."""

    def decide(self, snapshot: Snapshot, state: Any) -> NoReturn:
        given = super().decide(snapshot, state)[0].given
        raise _Decided({snapshot.job(number).name for number in given.order if not snapshot.held[number]})


def started(jobs: list[Job], way: str) -> set[str]:
    policy = parse_policy(f"fifo(backfill={way!r}, order='priority')")
    with pytest.raises(_Decided) as decided:
        simulate_fleet(jobs, _NODES, FirstDecision(policy))
    names: set[str] = decided.value.args[0]
    return names


def states(jobs: list[Recorded], now_s: int) -> Iterator[list[Job]]:
    """Who ran and waited at a second.

    Seconds are whole, and a node is free up to a second after its job: jobs that ended or came in this second may have
    been there or not.
    """
    for still_there, not_yet in product((0, 1), repeat=2):
        runs = [job for job in jobs if job["started_s"] < now_s < job["ended_s"] + still_there]
        waits = [
            job
            for job in jobs
            if now_s <= job["started_s"]
            and (job["arrival_s"] <= now_s - not_yet or job["started_s"] == now_s)
        ]
        yield [job.job(now_s) for job in (*runs, *waits)]


def not_ours(record: str, way: str) -> list[tuple[int, str]]:
    """Jobs that Slurm started and we would not, with the second."""
    jobs = recorded(record)
    found = []
    for now_s in sorted({job["started_s"] for job in jobs}):
        ours = set[str]().union(*(started(state, way) for state in states(jobs, now_s)))
        theirs = {job["name"] for job in jobs if job["started_s"] == now_s}
        found += [(now_s, name) for name in sorted(theirs - ours, key=int)]
    return found


def only_ours(record: str, way: str) -> list[tuple[int, str]]:
    """Jobs that we would start where nothing had happened for some seconds, and Slurm had not started them."""
    jobs, found = recorded(record), []
    moments = {job[name] for job in jobs for name in ("arrival_s", "started_s", "ended_s")}
    for now_s in range(max(moments)):
        if moments.isdisjoint(range(now_s - _QUIET_S, now_s + 1)):
            state = next(states(jobs, now_s))
            waits = any(not job.ran_s for job in state)
            found += [(now_s, name) for name in sorted(started(state, way) if waits else (), key=int)]
    return found


def test_easy_starts_all_jobs_that_slurm_started() -> None:
    """One more starts: Slurm keeps particular nodes for the first job that waits, and here it is any six of the eight."""
    assert not_ours("easy", "easy") == []
    assert only_ours("easy", "easy") == [(146, "32")]


def test_the_record_tells_ways_of_backfilling_apart() -> None:
    assert len(not_ours("easy", "conservative")) == 5


def test_conservative_starts_nine_in_ten_jobs_that_slurm_started() -> None:
    """Both keep particular nodes for each job that waits; which nodes these and running jobs had is not in the record."""
    assert not_ours("conservative", "conservative") == [
        (18, "28"), (46, "37"), (59, "35"), (97, "27"), (163, "48"),
    ]  # fmt: skip
    assert only_ours("conservative", "conservative") == []

"""Runs of a few jobs on a cluster in which no two numbers are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainyard.fleet.records import FleetRun, Series, Submitted, Unfit
from trainyard.hardware.cluster import Cluster

NAMES = ("a", "b", "c", "d")
_INF = float("inf")
# From which to which each column of a run goes; no two have a number in common.
_RANGES = {
    "arrival_s": (1.0, 9.0),
    "waiting_s": (900.0, 2_500.0),
    "lost_s": (60.0, 110.0),
    "device_s": (90_000.0, 190_000.0),
    "lost_device_s": (300.0, 500.0),
    "alone_s": (2_600.0, 4_000.0),
    "fair_s": (4_200.0, 7_000.0),
}


def job(name: str, user: str, num_devices: int, deadline_s: float = _INF) -> Submitted:
    return Submitted(name, user, "", "", "", num_devices, "", deadline_s)


def made_run(policy: str, slower: float, order: Sequence[int], seed: int) -> FleetRun:
    """A run of the jobs in this order, in which no two numbers are alike; one job is refused and one left out."""
    rng, scale = np.random.default_rng(seed), slower
    columns = {name: scale * rng.uniform(*ends, 4) for name, ends in _RANGES.items()}
    columns["first_start_s"] = columns["arrival_s"] + scale * rng.uniform(200.0, 700.0, 4)
    columns["finish_s"] = columns["arrival_s"] + scale * rng.uniform(11_000.0, 29_000.0, 4)
    jobs = tuple(
        job(NAMES[i], ("ann", "bob")[i % 2], 1 + i // 2, 12_000.0 if i == 3 else _INF) for i in order
    )
    wide = job("wide", "ann", 90)
    return FleetRun(
        policy,
        f"{policy}'s rule",
        f"{policy}'s queues",
        Cluster.uniform(2, 13),
        jobs,
        num_preempted=np.array([3, 5, 0, 9]) + round(10 * slower),
        num_starts=np.array([17, 23, 12, 29]) + round(20 * slower),
        is_killed=np.zeros(4, np.bool_),
        refused=(("late", "it is late"),),
        refused_jobs=(job("late", "bob", 2, 77.0),),
        left_out=(Unfit(wide, "it is too wide", "wide asks for 90"),),
        series=Series(
            np.array([0.0, 1_000.0, 5_000.0]),
            slower * np.array([11.0, 7.0, 19.0]),
            slower * np.array([3.0, 2.0, 1.0]),
        ),
        spans=(),
        num_decisions=101 + round(10 * slower),
        num_failures=41 + round(10 * slower),
        **columns,
    )


def made_runs() -> tuple[FleetRun, FleetRun]:
    """The first is better, as its mean is shorter."""
    return made_run("one", 1.0, (2, 0, 3, 1), 1), made_run("two", 1.6, (1, 3, 2, 0), 2)


def mean(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    return sum(values) / len(values)


def jct_s(run: FleetRun) -> np.ndarray[Any, Any]:
    return run.finish_s - run.arrival_s

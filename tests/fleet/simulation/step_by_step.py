"""Runs that take every step in Python, to compare with."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from trainyard.fleet.records import FleetRun, Series
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.simulation import simulator
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

MIXED = Cluster.of_pools([("V100", 3, 8), ("K80", 3, 4)])


def crowded(num_jobs: int = 300) -> list[Job]:
    """Jobs of which many wait, and some come at one moment; every third runs on one type only."""
    jobs, models = [], ("vgg16", "resnet50", "")
    for number, job in enumerate(philly_jobs(num_jobs, mean_gap_s=30.0, most_devices=8)):
        types = ("K80",) if number % 3 == 0 and job.num_devices <= 4 else ()
        arrival_s = 60.0 * (job.arrival_s // 60.0)
        jobs.append(replace(job, arrival_s=arrival_s, device_types=types, model=models[number % 3]))
    return jobs


def by_steps(*given: Any, **options: Any) -> FleetRun:
    """A run that takes every step in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "_COMPILED_AFTER", 10**9)
        patch.setattr(simulator, "_COMPILED_EVENTS_AFTER", 10**9)
        return simulate_fleet(*given, **options)


def check_same(run: FleetRun, other: FleetRun) -> None:
    """All that there is in a run."""
    for name in (field.name for field in fields(FleetRun) if field.name != "cluster"):
        value, expected = getattr(run, name), getattr(other, name)
        if isinstance(value, np.ndarray | Series):
            np.testing.assert_array_equal(value, expected, err_msg=name)
        else:
            assert value == expected, name

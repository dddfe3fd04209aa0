"""Earliest deadline first: all deadlines up to full utilisation, and the baseline of ElasticFlow's simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.fleet.policies.edf import EDF
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.edf import EDFInElasticFlow
from trainyard.fleet.reproduce.programs.elasticflow import SPEEDS, TESTBED, TRACE, deadlines_table, num_met
from trainyard.fleet.reproduce.queueing import ONE_DEVICE
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import by_arrival, declared_job
from trainyard.fleet.workload.readers.elasticflow import read_elasticflow
from trainyard.published import PaperTable, Row

_TASKS = (((2, 4), (5, 10)), ((1, 2), (1, 3), (1, 6)), ((3, 8), (3, 12), (6, 16)))
"""Sets of tasks that use all of a device: length and period, which is the deadline."""
_SPAN_S = 480


def _periodic() -> Iterator[Row]:
    for tasks in _TASKS:
        jobs = by_arrival(
            [
                declared_job(f"{task}.{at_s}", at_s, 1, length_s, deadline_s=float(at_s + period_s))
                for task, (length_s, period_s) in enumerate(tasks)
                for at_s in range(0, _SPAN_S, period_s)
            ]
        )
        label = ", ".join(f"{length_s} s every {period_s} s" for length_s, period_s in tasks)
        yield Row(label, len(jobs), num_met(simulate_fleet(jobs, ONE_DEVICE, EDF())))


def _testbed(folder: Path) -> FleetRun:
    jobs = read_elasticflow(folder / TRACE, folder / SPEEDS)
    return simulate_fleet(jobs, TESTBED, EDFInElasticFlow(), place="packed")


TABLES = (
    PaperTable(
        "Liu and Layland, JACM 1973, theorem: tasks that use no more than all of a device meet all deadlines",
        "deadlines met",
        f"simulated: {_SPAN_S} s of periodic tasks that use all of one device",
        _periodic,
        tolerance=0.0,
    ),
    deadlines_table("edf", 23, _testbed, SPEEDS),
)

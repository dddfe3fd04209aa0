"""Rates that are looked up, next to the same asked for at every start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from restless import CLUSTER, Restless

from trainyard.fleet.jobs.job_table import Ints
from trainyard.fleet.mechanism.seen_rates import SeenRates
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import Grant, Spot


@dataclass
class Placed:
    """A profile for which all matters that a spot says."""

    own: float
    asked: list[Spot] = field(default_factory=list)

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        self.asked.append(spot)
        uneven = max(spot.per_node) - min(spot.per_node)
        fast = 2.0 if spot.device_type == "V100" else 1.0
        return self.own * fast * spot.num_devices / (1 + 0.3 * spot.num_nodes + 0.1 * uneven)


def run() -> tuple[FleetRun, int]:
    """Jobs that are moved, resized and spread by chance; and how often a rate was asked for."""
    drawn = philly_jobs(150, mean_gap_s=60.0, most_devices=8)
    jobs = [replace(job, profile=Placed(0.1 + number % 7)) for number, job in enumerate(drawn)]
    found = simulate_fleet(jobs, CLUSTER, Restless())
    return found, sum(len(job.profile.asked) for job in jobs)


def test_rates_that_are_looked_up_are_those_that_would_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found, num_asked = run()

    def nothing_seen(self: SeenRates, rows: Ints) -> Ints:
        return rows

    monkeypatch.setattr(SeenRates, "run", nothing_seen)
    plain, num_plain = run()
    np.testing.assert_array_equal(found.finish_s, plain.finish_s)
    np.testing.assert_array_equal(found.device_s, plain.device_s)
    assert 3 * num_asked < 2 * num_plain

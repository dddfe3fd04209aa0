"""Whole runs of Gavel with space sharing: what partners do to each other, and the paper's claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from runs import finished
from shared_data import DATA, needs_data

from trainyard.fleet.catalog import CATALOG
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.gavel.objectives import LeastMakespan, MaxMinFairness
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, Spot, declared_job
from trainyard.fleet.workload.readers.gavel import read_gavel
from trainyard.hardware.cluster import Cluster

GAVEL = DATA / "cluster" / "gavel"
SHARING = [entry.factory for entry in CATALOG if "space sharing" in entry.variants]


@dataclass(frozen=True)
class Sociable:
    """A job that has a part of its speed beside another."""

    part: float

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        assert len(grant.partners) <= 1
        return self.part if grant.partners else 1.0


def sociable(name: str, work: float, part: float = 0.75, arrival_s: float = 0.0) -> Job:
    return Job(name, arrival_s, 1, work, Sociable(part))


def test_who_is_left_goes_on_alone() -> None:
    # Together until 400 s, after 300 of the work of each; then the second has the device for itself at once.
    run = simulate_fleet(
        [sociable("a", 300.0), sociable("b", 900.0)],
        Cluster.uniform(1, 1),
        MaxMinFairness(space_sharing=True),
        costs=Costs(restart_s=50.0),
        keep_spans=True,
    )
    assert finished(run) == pytest.approx({"a": 400.0, "b": 1000.0})
    assert {span.devices for span in run.spans} == {(0,)}


def test_partners_move_with_what_that_costs() -> None:
    # Both have a device each for a round; then a third comes, and two share one.
    jobs = [sociable("a", 3000.0), sociable("b", 3000.0), sociable("c", 500.0, 0.9, 100.0)]
    policy = MaxMinFairness(space_sharing=True)
    free, dear = (
        simulate_fleet(jobs, Cluster.uniform(1, 2), policy, costs=Costs(restart_s=cost))
        for cost in (0.0, 60.0)
    )
    assert free.mean_completion_s < dear.mean_completion_s
    alone = simulate_fleet(jobs, Cluster.uniform(1, 2), MaxMinFairness())
    assert free.mean_completion_s < alone.mean_completion_s


def assert_at_most_two(run: FleetRun, jobs: list[Job]) -> int:
    """No device has more than two jobs at a time, and two have all of each other's; returns how often two share."""
    asked = {job.name: job.num_devices for job in jobs}
    moments = sorted({span.start_s for span in run.spans} | {span.end_s for span in run.spans})
    shared = 0
    for start_s, end_s in pairwise(moments):
        there = [span for span in run.spans if span.start_s <= start_s and span.end_s >= end_s]
        assert max(Counter(span.job for span in there).values(), default=0) <= 1
        tenants = Counter(span.devices for span in there)
        assert max(tenants.values(), default=0) <= 2
        assert max(Counter(device for own in tenants for device in own).values(), default=0) <= 1
        assert all(len(span.devices) == asked[span.job] for span in there)
        shared += sum(count == 2 for count in tenants.values())
    return shared


@pytest.mark.parametrize("make", SHARING)
def test_runs_share_devices_between_two(make: Callable[..., Gavel]) -> None:
    rng = np.random.default_rng(1)
    jobs = [
        declared_job(
            f"job{i}", 200.0 * i, int(rng.choice([1, 1, 2])), float(rng.integers(300, 3000)), float(busy)
        )
        for i, busy in enumerate(rng.choice([0.3, 0.5, 1.0], 24))
    ]
    cluster = Cluster.of_pools([("v100", 2, 2), ("k80", 1, 2)])
    run = simulate_fleet(jobs, cluster, make(space_sharing=True), keep_spans=True)
    assert len(run.names) == len(jobs)
    assert assert_at_most_two(run, jobs) > 0


def test_where_nobody_gains_nothing_changes() -> None:
    jobs = [declared_job(f"job{i}", 100.0 * i, 1, 700.0 + 50 * i) for i in range(9)]
    runs = [
        simulate_fleet(
            jobs, Cluster.uniform(1, 3), MaxMinFairness(space_sharing=sharing), rounds=Rounds(120.0)
        )
        for sharing in (False, True)
    ]
    np.testing.assert_array_equal(runs[0].finish_s, runs[1].finish_s)


@needs_data(GAVEL)
@pytest.mark.parametrize(
    ("make", "trace", "num_jobs", "cluster", "measure"),
    [
        (MaxMinFairness, "generated/seed0_lam3600_1gpu", 60, (3, 3, 3), "mean_completion_s"),
        # Three quarters of the testbed: on all of it hardly anybody waits, and jobs end 3 % earlier.
        (MaxMinFairness, "physical_cluster/max_min_fairness", 96, (6, 12, 18), "mean_completion_s"),
        (LeastMakespan, "physical_cluster/minimize_makespan", 100, (8, 16, 24), "makespan_s"),
    ],
)
def test_space_sharing_shortens_completion_times(
    make: Callable[..., Gavel], trace: str, num_jobs: int, cluster: tuple[int, ...], measure: str
) -> None:
    # Section 7.3: where the cluster is loaded, jobs end earlier with space sharing than without.
    jobs = list(read_gavel(GAVEL / "traces" / f"{trace}.trace", GAVEL / "simulation_throughputs.json"))
    cluster = Cluster.of_pools(
        [(kind, 1, count) for kind, count in zip(("v100", "p100", "k80"), cluster, strict=True)]
    )
    alone, shared = (
        simulate_fleet(jobs[:num_jobs], cluster, make(space_sharing=sharing), place="anywhere")
        for sharing in (False, True)
    )
    assert getattr(shared, measure) < 0.95 * getattr(alone, measure)

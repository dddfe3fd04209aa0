"""Gandiva's claims: early feedback by time slicing, packing that is undone where it hurts, migration, grow-shrink."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from trainyard.fleet.policies.gandiva import Gandiva
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, Spot, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster


def times(run: FleetRun) -> dict[str, float]:
    return dict(zip(run.names, run.completion_s.tolist(), strict=True))


def test_six_jobs_share_four_devices_in_turns() -> None:
    """Section 4.1: with suspend and resume, as many devices as there are are shared evenly over time."""
    jobs = [declared_job(str(i), 0, 1, 600) for i in range(6)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4), Gandiva(pack=False), keep_spans=True)
    by_900_s = {
        job: sum(min(900, s.end_s) - s.start_s for s in run.spans if s.job == job and s.start_s < 900)
        for job in run.names
    }
    assert max(by_900_s.values()) - min(by_900_s.values()) <= 60.0 + 1e-6
    assert run.makespan_s == pytest.approx(900, abs=1e-6)


def test_feedback_comes_early() -> None:
    """A short job behind long ones does not wait for their end (the paper's motivation for time slicing)."""
    jobs = [declared_job("long", 0, 4, 100_000), declared_job("short", 10, 4, 120)]
    sliced = times(simulate_fleet(jobs, Cluster.uniform(1, 4), Gandiva(pack=False)))
    queued = times(simulate_fleet(jobs, Cluster.uniform(1, 4), fifo()))
    assert sliced["short"] < 400
    assert queued["short"] > 90_000


@dataclass(frozen=True)
class Crowded:
    """A job that keeps a device partly busy, and slows down by a factor when it shares it."""

    busy: float
    crowded: float

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        alone = min(1.0, grant.share / self.busy)
        return alone * (self.crowded if grant.partners else 1.0)


def pair(crowded: float) -> list[Job]:
    return [Job(str(i), 0, 1, 1200, Crowded(0.4, crowded), busy=0.4) for i in range(2)]


def test_packing_light_jobs_beats_turns() -> None:
    """Section 4.2.2: two jobs that use little of a device are sooner done together."""
    cluster = Cluster.uniform(1, 1)
    packed, sliced = (simulate_fleet(pair(0.9), cluster, Gandiva(pack=p)) for p in (True, False))
    assert packed.makespan_s < 0.75 * sliced.makespan_s


def test_packing_that_hurts_is_undone() -> None:
    """Section 4.2.2: if together they do less than in turns, they go back to turns, and lose one slice by it."""
    cluster = Cluster.uniform(1, 1)
    packed, sliced = (simulate_fleet(pair(0.2), cluster, Gandiva(pack=p)) for p in (True, False))
    assert packed.makespan_s == pytest.approx(sliced.makespan_s, abs=2 * 60)


def test_a_job_moves_to_idle_devices() -> None:
    """Section 4.1, migration: two nodes, both jobs of one device on the first; when the second empties, one moves."""
    jobs = [
        declared_job("a", 0, 2, 2000),
        declared_job("b", 0, 2, 300),
        declared_job("c", 1, 2, 2000),
    ]
    cluster = Cluster.uniform(2, 2)
    moved, stuck = (
        times(simulate_fleet(jobs, cluster, Gandiva(pack=False, migrate=m))) for m in (True, False)
    )
    assert max(moved.values()) <= 2000 + 300 + 2 * 60
    assert max(stuck.values()) > 3500


def test_elastic_jobs_grow_on_idle_devices_and_shrink() -> None:
    """Section 4.1, grow-shrink."""
    jobs = [declared_job("elastic", 0, 1, 1200, max_devices=4), declared_job("rigid", 120, 3, 120)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4), Gandiva(pack=False), keep_spans=True)
    sizes = [len(s.devices) for s in run.spans if s.job == "elastic"]
    assert sizes[0] == 4
    assert 1 in sizes
    assert times(run)["rigid"] <= 240


@pytest.mark.parametrize("seed", range(3))
def test_every_job_ends(seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs = [
        declared_job(
            str(i),
            30.0 * i,
            int(draw.choice([1, 2, 4, 8])),
            float(draw.uniform(60, 900)),
            float(draw.uniform(0.2, 1)),
        )
        for i in range(30)
    ]
    run = simulate_fleet(jobs, Cluster.uniform(3, 4), Gandiva())
    assert len(run.names) == 30


def test_a_job_lies_on_one_type_of_devices_that_it_can_run_on() -> None:
    """Its home, and where it moves to: two wait in turn for the V100s, though devices of another type are idle."""
    cluster = parse_cluster("1x2xV100+2x2xK80")
    jobs = [
        declared_job("a", 0, 2, 600, device_types=("V100",)),
        declared_job("b", 0, 2, 600, device_types=("V100",)),
        declared_job("wide", 0, 4, 600),
    ]
    run = simulate_fleet(jobs, cluster, Gandiva(pack=False), keep_spans=True)
    on = {name: {s.devices for s in run.spans if s.job == name} for name in run.names}
    assert on == {"a": {(0, 1)}, "b": {(0, 1)}, "wide": {(2, 3, 4, 5)}}
    assert times(run)["wide"] == 600
    assert run.makespan_s == pytest.approx(1200, abs=1e-6)


def test_a_gang_may_need_more_nodes_than_the_largest_ones_say() -> None:
    """On nodes of 4, 1 and 1 devices, six are three nodes."""
    cluster = Cluster.of_pools([("V100", 1, 4), ("V100", 2, 1)])
    run = simulate_fleet([declared_job("a", 0, 6, 100)], cluster, Gandiva())
    assert times(run) == {"a": 100}

"""Failures and stragglers: what they cost is what arithmetic says, and the same seed gives the same run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from leases import Lending

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism import transitions
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Fate, Hazards
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.queues import fifo, srtf
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import Recorder
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.simulation import run_progress
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(4, 8)


def test_a_failure_costs_what_was_not_saved_and_a_restart() -> None:
    """Renewal theory: checkpoints every c, failures at rate r and restarts of R take r (c / 2 + R) of the time."""
    every_s, save_s, restart_s, work_s = 5000.0, 200.0, 30.0, 3e6
    hazards = Hazards(failure_every_s=every_s, checkpoint_every_s=save_s, seed=1)
    run = simulate_fleet(
        [declared_job("a", 0.0, 1, work_s)], CLUSTER, fifo(), hazards=hazards, costs=Costs(restart_s)
    )
    expected_s = work_s / (1 - (save_s / 2 + restart_s) / every_s)
    assert run.makespan_s == pytest.approx(expected_s, rel=0.01)
    assert run.num_failures == pytest.approx(run.makespan_s / every_s, rel=0.1)


def test_what_was_not_saved_counts_from_the_start() -> None:
    """Whatever was written down meanwhile: a job that has worked for 250 s was saved at 200."""
    fate = Fate(Hazards(checkpoint_every_s=200.0))
    allocator = Allocator(CLUSTER, fifo(), 0, Costs(restart_s=30.0), Recorder(False), fate)
    allocator.enter(declared_job("a", 0.0, 1, 1000.0), 0.0)
    allocator.apply(allocator.table.active.copy(), Allocation(Queue(np.arange(1))), 0.0)
    transitions.settle(allocator.table.data, 0, 150.0)
    allocator.lose_unsaved(0, 250.0, allocator.costs.restart_s)
    assert allocator.table.finish_s[0] == 1000.0 + 50.0 + 30.0
    # It has worked for 10 s since it was back.
    allocator.lose_unsaved(0, 290.0, allocator.costs.restart_s)
    assert allocator.table.finish_s[0] == 1080.0 + 10.0 + 30.0


@pytest.mark.parametrize(
    ("policy", "hazards"),
    [
        (Lending(50.0), Hazards(failure_every_s=400.0, seed=1)),
        (srtf(), Hazards(failure_every_s=400.0, node_failure_every_s=500.0, node_repair_s=50.0, seed=1)),
    ],
)
def test_what_happens_does_so_in_order(
    policy: Policy, hazards: Hazards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures, leases that end, nodes that go, and decisions between: time does not go back."""
    seen: list[tuple[float, str]] = []

    def watch(name: str) -> None:
        act = getattr(Allocator, name)

        def noted(self: Allocator, what: Any, *rest: Any) -> Any:
            seen.append((next(value for value in rest if isinstance(value, float)), name))
            return act(self, what, *rest)

        monkeypatch.setattr(Allocator, name, noted)

    acts = "apply", "lose_unsaved", "stop", "finish"
    for name in acts:
        watch(name)
    jobs = [declared_job(str(i), 30.0 * i, 1, 200.0) for i in range(60)]
    simulate_fleet(jobs, Cluster.uniform(4, 1), policy, hazards=hazards)
    times_s = [now_s for now_s, _ in seen]
    assert times_s == sorted(times_s)
    assert {name for _, name in seen} == set(acts)


def test_wide_jobs_fail_more_often() -> None:
    hazards = Hazards(failure_every_s=1e5)
    counts = [
        simulate_fleet([declared_job("a", 0.0, n, 1e7)], CLUSTER, fifo(), hazards=hazards).num_failures
        for n in (1, 8)
    ]
    # Of a hundred failures and of eight hundred, three standard deviations of the ratio are a third of it.
    assert counts[1] / counts[0] == pytest.approx(8.0, rel=0.3)


def test_stragglers_are_slow_until_they_are_moved() -> None:
    jobs = [declared_job(str(i), 1000.0 * i, 1, 100.0) for i in range(400)]
    run = simulate_fleet(jobs, CLUSTER, fifo(), hazards=Hazards(straggler_share=0.25, straggler_speed=0.5))
    times_s, counts = np.unique(run.completion_s.round(6), return_counts=True)
    assert times_s.tolist() == [100.0, 200.0]
    assert counts[1] / 400 == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("rounds", [None, Rounds(300.0)])
def test_a_run_repeats_and_all_jobs_end(rounds: Rounds | None) -> None:
    hazards = Hazards(failure_every_s=20_000.0, straggler_share=0.1, seed=3)
    runs = [
        simulate_fleet(
            philly_jobs(150, most_devices=16),
            CLUSTER,
            srtf(),
            rounds=rounds,
            hazards=hazards,
            keep_spans=True,
        )
        for _ in range(2)
    ]
    assert runs[0].spans == runs[1].spans
    assert len(runs[0].names) == 150
    assert runs[0].num_failures > 10
    plain = simulate_fleet(philly_jobs(150, most_devices=16), CLUSTER, srtf(), rounds=rounds)
    assert runs[0].mean_completion_s > plain.mean_completion_s


def test_bad_hazards_are_refused() -> None:
    with pytest.raises(FleetError, match=r"failure_every_s lasts from 0\.001 s to 1e\+09 s"):
        Hazards(failure_every_s=0.0)
    with pytest.raises(FleetError, match="from 0 to 1"):
        Hazards(straggler_share=1.5)
    with pytest.raises(FleetError, match="a whole number from 0, got -1"):
        Hazards(seed=-1)


def test_a_node_that_goes_away_takes_its_jobs_along() -> None:
    """Two nodes, one job: it loses what was not saved, and goes on at once where there is a node."""
    hazards = Hazards(checkpoint_every_s=1.0, node_failure_every_s=500.0, node_repair_s=1e-3, seed=2)
    jobs, costs = [declared_job("a", 0.0, 1, 1e5)], Costs(restart_s=10.0)
    run = simulate_fleet(jobs, Cluster.uniform(2, 1), fifo(), hazards=hazards, costs=costs, keep_spans=True)
    assert run.num_failures == run.num_preempted[0] == len(run.spans) - 1
    assert run.num_failures == pytest.approx(run.makespan_s / 500.0, rel=0.15)
    assert run.makespan_s == pytest.approx(1e5 / (1 - (0.5 + 10.0) / 500.0), rel=0.01)
    assert {span.devices for span in run.spans} == {(0,), (1,)}


def test_jobs_wait_for_the_only_node() -> None:
    """What a node is there of all the time, jobs get."""
    hazards = Hazards(checkpoint_every_s=1e-3, node_failure_every_s=300.0, node_repair_s=100.0, seed=2)
    run = simulate_fleet([declared_job("a", 0.0, 1, 1e5)], Cluster.uniform(1, 1), srtf(), hazards=hazards)
    assert run.makespan_s == pytest.approx(1e5 * 400 / 300, rel=0.05)


@pytest.mark.parametrize("every", [{"failure_every_s": 1.0}, {"node_failure_every_s": 1.0}])
def test_who_fails_before_any_work_is_kept_is_refused(
    every: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "_MANY_LOSSES", 300)
    job = declared_job("long", 0.0, 4, 1000.0)
    with pytest.raises(
        FleetError, match=r"300 failures in a row .* fails every 1 s, jobs have a checkpoint every 600 s"
    ):
        simulate_fleet([job], CLUSTER, fifo(), hazards=Hazards(**every))
    kept = Hazards(**every, checkpoint_every_s=0.01, node_repair_s=0.1)
    assert simulate_fleet([job], CLUSTER, fifo(), hazards=kept).num_failures > 600

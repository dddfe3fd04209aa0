"""Studies over seeds: intervals hold the truth as often as they say, and differences are taken pair by pair."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.study import Interval, study
from trainyard.fleet.workload.drawn import drawn_jobs
from trainyard.hardware.cluster import Cluster
from trainyard.report.fleet_groups import parts_of
from trainyard.report.fleet_league import run_document
from trainyard.report.fleet_study import standing_document, study_page

CLUSTER = Cluster.uniform(4, 8)


def test_intervals_hold_the_mean_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    drawn = [Interval.of(rng.normal(3.0, 2.0, 6)) for _ in range(4000)]
    held = np.mean([abs(each.mean - 3.0) <= each.half_width for each in drawn])
    assert held == pytest.approx(0.95, abs=0.015)
    assert Interval.of(np.array([1.0])).half_width == float("inf")


def test_the_load_is_what_was_asked_for() -> None:
    """Over many jobs, device time that comes in over the time in which it comes."""
    jobs = drawn_jobs("philly", 20_000, 0.7, CLUSTER, seed=5)
    device_s = sum(job.num_devices * job.work for job in jobs)
    assert device_s / (jobs[-1].arrival_s * CLUSTER.num_devices) == pytest.approx(
        0.7, rel=0.25
    )  # lengths have a heavy tail
    assert max(job.num_devices for job in jobs) <= CLUSTER.num_devices


def test_policies_are_compared_on_the_same_jobs() -> None:
    told: list[tuple[int, int]] = []
    drawn = partial(drawn_jobs, "helios", 80, 0.9, CLUSTER)
    found = study("fifo,srtf", drawn, CLUSTER, range(3), lambda *done: told.append(done))
    first, second = found.standings
    assert (first.policy, second.policy) == ("srtf", "fifo")
    assert first.to_best == Interval(1.0, 0.0)
    assert second.to_best.mean > 1.0
    assert told == [(i + 1, 6) for i in range(6)]
    assert standing_document(second)["completion_s"]["mean"] == second.completion_s.mean
    assert found.baseline == "fifo"
    assert first.to_baseline.mean < 1.0
    assert second.to_baseline == Interval(1.0, 0.0)
    assert "srtf" in study_page("a study", found)


def test_every_virtual_cluster_has_its_intervals() -> None:
    """They are of the figures that single runs give for it, with the same costs, and the failures of the seed."""
    drawn, costs = partial(drawn_jobs, "philly", 60, 0.9, CLUSTER), Costs(60.0, 30.0)
    hazards = Hazards(failure_every_s=50_000.0)
    done = study("las", drawn, CLUSTER, (3, 4), costs=costs, hazards=hazards)
    (found,) = done.standings
    documents = []
    for seed in (3, 4):
        wrong = replace(hazards, seed=seed)
        run = scheduler_of("las").simulate(drawn(seed), CLUSTER, costs=costs, hazards=wrong)
        documents.append(run_document(run, parts=parts_of([run], run)))
    assert found.completion_s.mean == np.mean([each["mean_completion_s"] for each in documents])
    assert found.unfairness.mean == np.mean([each["worst_unfairness"] for each in documents])
    documents = [{**each, **each["by"]} for each in documents]
    shared = set.intersection(*(set(each["virtual_cluster"]) for each in documents))
    assert len(shared) > 2
    names = {
        "completion_s": "mean_completion_s",
        "p99_s": "p99_completion_s",
        "waiting_s": "mean_waiting_s",
        "first_wait_s": "mean_first_wait_s",
        "slowdown": "mean_slowdown",
        "unfairness": "worst_unfairness",
    }
    for name in shared:
        for ours, theirs in names.items():
            values = np.array([each["virtual_cluster"][name][theirs] for each in documents])
            assert found.groups["virtual cluster"][name][ours].mean == pytest.approx(values.mean())
    name = min(shared)
    assert standing_document(found)["by"]["virtual_cluster"][name]["p99_s"]["mean"] > 0
    assert "Whose jobs wait, beside las" in study_page("a study", done)


def test_bad_studies_are_refused() -> None:
    with pytest.raises(FleetError, match="there are philly, helios"):
        drawn_jobs("phily", 10, 0.5, CLUSTER, 0)
    with pytest.raises(FleetError, match="load above 0"):
        drawn_jobs("philly", 10, 0.0, CLUSTER, 0)


def test_who_refuses_jobs_is_not_the_best() -> None:
    """However short the mean of the others."""
    drawn = partial(drawn_jobs, "helios", 40, 0.9, CLUSTER)
    refuses = "antman(quotas=(('', 16),))"
    found = study(f"{refuses},fifo", drawn, CLUSTER, range(2))
    first, second = found.standings
    assert (first.policy, second.policy) == ("fifo", refuses)
    assert second.completion_s.mean < first.completion_s.mean
    assert first.num_refused.mean == 0 < second.num_refused.mean < 40
    assert "refused" in study_page("a study", found)
    assert "refused" not in study_page("a study", replace(found, standings=(first,)))


def test_a_policy_that_cannot_run_leaves_the_others_alone() -> None:
    """Least attained service takes devices away before a restart of ten quanta is over."""
    drawn = partial(drawn_jobs, "helios", 40, 0.9, CLUSTER)
    found = study(
        "las(quantum_s=60.0),fifo,gandiva", drawn, CLUSTER, range(2), place="packed", costs=Costs(600.0)
    )
    assert [each.policy for each in found.standings] == ["fifo"]
    assert found.baseline == "fifo"
    why = {each.text: each.why for each in found.refused}
    assert "leave the placement 'packed' out" in why["gandiva"]
    assert "while they restart" in why["las(quantum_s=60.0)"]

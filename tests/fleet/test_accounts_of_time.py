"""Where the time of jobs goes, and where jobs go: all parts of a run add up, under every policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.recorded import recorded_run
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulation import simulator
from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

POLICIES = (
    "fifo",
    "fifo(backfill=True)",
    "srtf",
    "las",
    "tiresias",
    "gavel_max_min",
    "gandiva(pack=False, grow=False)",
    "edf",
)
CLUSTER = Cluster.uniform(2, 4)


def drawn(seed: int) -> list[Job]:
    """Jobs of which some ask for more than there is, or for a type that nobody has."""
    rng, jobs = np.random.default_rng(seed), []
    for number, arrival_s in enumerate(np.sort(rng.integers(0, 3000, 25)).astype(float).tolist()):
        size = int(rng.choice([1, 1, 1, 2, 2, 3, 4, 8, 9, 100]))
        kinds = ("K80",) if rng.random() < 0.1 else ()
        length_s = float(rng.integers(0, 2000))
        jobs.append(declared_job(f"job{number}", arrival_s, size, length_s, device_types=kinds))
    return jobs


def check_adds_up(run: FleetRun, jobs: list[Job]) -> None:
    """First and later waits, starts and restarts, and work make the completion time; ended and others make all jobs."""
    by_name = {job.name: job for job in jobs}
    assert len(run.jobs) + len(run.refused) + len(run.left_out) == run.num_jobs == len(jobs)
    others = {name for name, _ in run.refused} | {each.job.name for each in run.left_out}
    assert others | set(run.names) == by_name.keys()
    work_s = np.array([by_name[name].work for name in run.names])
    np.testing.assert_allclose(run.waiting_s + run.lost_s + work_s, run.completion_s, atol=1e-6)
    np.testing.assert_allclose(run.work_s, work_s, atol=1e-6)
    assert (run.first_wait_s <= run.waiting_s + 1e-9).all()
    sizes = np.array([job.num_devices for job in run.jobs])
    np.testing.assert_allclose(run.lost_device_s, sizes * run.lost_s, atol=1e-6)
    np.testing.assert_allclose(run.device_s, sizes * (run.completion_s - run.waiting_s), atol=1e-6)
    # What is noted over time says the same: jobs that wait, and devices in use.
    lasts_s = np.diff(run.series.time_s)
    assert run.series.num_waiting[:-1] @ lasts_s == pytest.approx(run.waiting_s.sum(), abs=1e-6)
    assert run.busy_device_s == pytest.approx(run.device_s.sum(), abs=1e-6)
    assert run.useful <= run.busy <= 1.0 + 1e-9


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), start_s=st.sampled_from((0.0, 7.0)), failing=st.booleans())
def test_waits_restarts_and_work_are_the_time_of_a_job(
    policy: str, seed: int, start_s: float, failing: bool
) -> None:
    jobs = drawn(seed)
    hazards = Hazards(failure_every_s=5e3, node_failure_every_s=4e3, checkpoint_every_s=100.0, seed=seed)
    run = scheduler_of(policy).simulate(
        jobs, CLUSTER, costs=Costs(11.0, start_s), hazards=hazards if failing else None
    )
    check_adds_up(run, jobs)


@pytest.mark.parametrize("policy", ["fifo(backfill=True)", "las"])
def test_compiled_code_counts_as_well(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_COMPILED_AFTER", 20)
    few = list(philly_jobs(200, mean_gap_s=60.0, most_devices=8))
    jobs = [replace(job, num_devices=50) if number % 9 == 5 else job for number, job in enumerate(few)]
    jobs[30] = replace(jobs[30], cpus=1e6)
    run = scheduler_of(policy).simulate(jobs, parse_cluster("2x4@64cpu"), costs=Costs(11.0, 7.0))
    check_adds_up(run, jobs)
    reasons = {each.job.name: each.reason for each in run.left_out}
    assert "more processors" in reasons.pop(jobs[30].name)
    assert set(reasons.values()) == {"it asks for more devices of one type than there are"}
    assert len(reasons) == sum(job.num_devices == 50 for job in jobs)


def test_times_count_from_the_first_arrival() -> None:
    """Of times since 1970, too."""
    jobs = [declared_job("a", 5, 1, 20.0), declared_job("b", 10, 2, 40.0)]
    later = [replace(job, arrival_s=job.arrival_s + 2.0**30) for job in jobs]
    runs = [scheduler_of("fifo").simulate(each, Cluster.uniform(1, 2)) for each in (jobs, later)]
    assert [(run.makespan_s, run.busy) for run in runs] == [(60.0, 100 / 120)] * 2


def test_a_job_that_is_lost_most_of_the_time() -> None:
    """Of 100 s with devices 40 s are starts: 60 s are useful, of 120 s that there are."""
    jobs = [declared_job("a", 0, 1, 20.0), declared_job("b", 0, 1, 40.0)]
    run = scheduler_of("fifo").simulate(jobs, Cluster.uniform(1, 2), costs=Costs(start_s=20.0))
    assert run.waiting_s.tolist() == [0.0, 0.0]
    assert run.lost_s.tolist() == [20.0, 20.0]
    assert run.busy == pytest.approx(100 / 120)
    assert run.useful == pytest.approx(60 / 120)


def test_strict_stops_at_a_job_that_never_fits() -> None:
    jobs = [declared_job("a", 0, 1, 20.0), declared_job("b", 5, 200, 40.0)]
    with pytest.raises(FleetError, match="'b' asks for 200 devices"):
        scheduler_of("fifo").simulate(jobs, CLUSTER, strict=True)
    run = scheduler_of("fifo").simulate(jobs, CLUSTER)
    assert (run.names, [each.job.name for each in run.left_out]) == (("a",), ["b"])


def test_what_really_happened_is_a_run() -> None:
    """Two jobs of the recorded one's; one that never started, and one that is too large, are not."""
    jobs = [
        declared_job("a", 0, 8, 100.0, attempts=(Attempt(10.0, 8),)),
        declared_job("b", 20, 4, 50.0, attempts=(Attempt(110.0, 4),)),
        declared_job("c", 30, 4, 50.0),
        declared_job("d", 40, 9, 50.0, attempts=(Attempt(45.0, 9),)),
    ]
    run = recorded_run(jobs, CLUSTER)
    assert run is not None
    assert run.names == ("a", "b")
    assert run.first_wait_s.tolist() == run.waiting_s.tolist() == [10.0, 90.0]
    assert run.finish_s.tolist() == [110.0, 160.0]
    assert run.slowdown.tolist() == [1.1, 2.8]
    reasons = {each.job.name: each.reason for each in run.left_out}
    assert reasons["c"] == "the trace does not say when it started"
    assert "more devices" in reasons["d"]
    assert run.num_jobs == 4
    series = [column.tolist() for column in run.series]
    assert series == [[0.0, 10.0, 20.0, 110.0, 160.0], [0.0, 8.0, 8.0, 4.0, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0]]
    assert recorded_run(jobs[2:3], CLUSTER) is None
    # A queue that decides as the recorded one did gives the same run, fairness and all.
    again = scheduler_of("fifo").simulate([replace(job, attempts=()) for job in jobs[:2]], CLUSTER)
    exact = recorded_run(
        [
            replace(job, attempts=(Attempt(start_s, job.num_devices),))
            for job, start_s in zip(jobs[:2], (0.0, 100.0), strict=True)
        ],
        CLUSTER,
    )
    assert exact is not None
    for column in ("finish_s", "waiting_s", "fair_s", "alone_s", "device_s"):
        assert getattr(exact, column).tolist() == getattr(again, column).tolist()

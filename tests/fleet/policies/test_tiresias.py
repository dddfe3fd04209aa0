"""Tiresias: the paper's example and claims, and the authors' simulator where it departs from the paper."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from runs import finished
from shared_data import DATA, needs_data

from trainyard.fleet.policies.queues import fifo, las, srtf
from trainyard.fleet.policies.tiresias.gittins import gittins_index
from trainyard.fleet.policies.tiresias.policy import SKEWS, tiresias
from trainyard.fleet.policy import Policy
from trainyard.fleet.replicas.tiresias import tiresias_program
from trainyard.fleet.reproduce.programs.elasticflow import in_slots, num_met
from trainyard.fleet.reproduce.programs.pollux import tiresias_run
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.workload.job import Job, by_arrival, declared_job
from trainyard.fleet.workload.readers.elasticflow import read_elasticflow
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

TRACES = DATA / "cluster" / "tiresias"
CLUSTERS = {"60_job.csv": Cluster.uniform(4, 4), "cluster01_job.csv": Cluster.uniform(32, 4)}
WITH_DATA = needs_data(DATA)


def trace(name: str) -> tuple[Job, ...]:
    with (TRACES / name).open() as file:
        rows = list(csv.DictReader(file))
    return by_arrival(
        [
            declared_job(r["job_id"], float(r["submit_time"]), int(r["num_gpu"]), float(r["duration"]))
            for r in rows
        ]
    )


def finishes(jobs: list[Job], cluster: Cluster, policy: Policy) -> dict[str, float]:
    run = simulate_fleet(jobs, cluster, policy)
    return finished(run)


# The paper's example: three jobs on two devices.
EXAMPLE = [declared_job("a", 0, 2, 2), declared_job("b", 0, 1, 8), declared_job("c", 0, 2, 6)]


def test_example_of_the_paper() -> None:
    two = Cluster.uniform(1, 2)
    by_service = finishes(EXAMPLE, two, srtf(by_device_time=True))
    assert sum(by_service.values()) / 3 == pytest.approx(9.33, abs=0.01)
    attained = finishes(EXAMPLE, two, las(by_device_time=True, quantum_s=1.0))
    assert sum(attained.values()) / 3 == pytest.approx(11.67, abs=0.01)


def test_jobs_go_down_as_they_attain_devices_times_time() -> None:
    # The gang reaches 8 device-seconds after 4 s, while "one" would need 8 s.
    jobs = [declared_job("gang", 0, 2, 10), declared_job("one", 1, 2, 3), declared_job("two", 1, 1, 20)]
    done = finishes(jobs, Cluster.uniform(1, 2), tiresias(thresholds=(8.0,)))
    assert done["one"] == 4 + 3
    # Down at 15 s, "two" is behind the gang, which was started first and runs its other 6 s.
    assert done["gang"] == 15 + 6
    assert done["two"] == 21 + 12


def test_a_job_that_starves_begins_anew() -> None:
    jobs = [declared_job("old", 0, 1, 15), *[declared_job(f"new{i}", 10 + 8 * i, 1, 8) for i in range(6)]]
    cluster = Cluster.uniform(1, 1)
    assert finishes(jobs, cluster, tiresias(thresholds=(10.0,)))["old"] == 10 + 6 * 8 + 5
    # After 20 s of waiting, twice the 10 s that it ran, it is back in the first queue, where it started first.
    assert finishes(jobs, cluster, tiresias(thresholds=(10.0,), promote_knob=2.0))["old"] == 10 + 20 + 5


def test_gittins_index_by_hand() -> None:
    samples = np.array([4.0, 8.0, 12.0])
    assert gittins_index(np.array([0.0]), 4.0, samples) == pytest.approx([(1 / 3) / 4])
    # Beyond 4, two are left, 4 and 8 further.
    assert gittins_index(np.array([4.0]), 6.0, samples) == pytest.approx([0.5 / ((4 + 6) / 2)])
    # With all the time there is, it is one over the mean of what is left.
    assert gittins_index(np.array([4.0, 12.0]), np.inf, samples) == pytest.approx([1 / 6, 0.0])


@pytest.mark.parametrize(("samples", "first"), [((2.0, 2.0, 2.0, 20.0), "fresh"), ((8.0, 8.0), "begun")])
def test_gittins_goes_by_what_is_to_be_expected(samples: tuple[float, ...], first: str) -> None:
    # Of sizes that are mostly small, one that was not is large, and gives way; of equal ones, it is nearer to its end.
    jobs = [declared_job("begun", 0, 1, 8), declared_job("fresh", 4, 1, 8)]
    done = finishes(jobs, Cluster.uniform(1, 1), tiresias(thresholds=(100.0,), samples=samples))
    assert min(done, key=done.__getitem__) == first


@pytest.mark.parametrize(("model", "end_s"), [("vgg16", 25.0), ("resnet50", 15.0), ("unknown", 25.0)])
def test_only_skewed_models_wait_to_be_consolidated(model: str, end_s: float) -> None:
    # From 10 s on one device of each node is free, from 20 s on all.
    around = [declared_job(name, 0, 1, length) for name, length in zip("abcd", (20, 10, 20, 10), strict=True)]
    late = declared_job("late", 9, 2, 5, model=model)
    assert finishes([*around, late], Cluster.uniform(2, 2), tiresias())["late"] == end_s


@pytest.mark.parametrize("model", ["vgg16", "resnet50"])
def test_skew_of_a_training_is_that_of_its_tensors(model: str) -> None:
    job = training_job("a", 0, 1, Training(model, 4, 10))
    assert job.skew == pytest.approx(SKEWS[model], abs=0.01)
    assert declared_job("a", 0, 1, 10, model=model).skew is None


@pytest.mark.parametrize(("model", "end_s"), [("vgg-tiny", 25.0), ("bert-base", 15.0), ("dlrm", 15.0)])
def test_trainings_are_consolidated_by_their_tensors(model: str, end_s: float) -> None:
    """Names that the paper does not have, which for a job of a trace would all count as skewed."""
    around = [declared_job(name, 0, 1, length) for name, length in zip("abcd", (20, 10, 20, 10), strict=True)]
    training = Training(model, 2, 5)
    late = training_job("late", 9, 2, training, Predicted(training, {2: 1.0}))
    assert finishes([*around, late], Cluster.uniform(2, 2), tiresias())["late"] == end_s


def published() -> list[tuple[str, float, float, int]]:
    if not DATA.exists():
        return []
    with (DATA / "reference" / "fleet" / "tiresias.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["schedule"] == "dlas-gpu"]
    return [(r["trace"], float(r["avg_jct_s"]), float(r["makespan_s"]), int(r["preemptions"])) for r in rows]


@pytest.mark.parametrize(("name", "completion_s", "makespan_s", "preemptions"), published())
def test_as_the_authors_simulator(
    name: str, completion_s: float, makespan_s: float, preemptions: int
) -> None:
    policy = tiresias_program()
    run = simulate_fleet(trace(name), CLUSTERS[name], policy, place="anywhere")
    assert run.mean_completion_s == pytest.approx(completion_s, abs=1e-3)
    assert run.makespan_s == makespan_s
    assert run.num_preemptions == preemptions


@WITH_DATA
def test_as_the_simulator_of_elasticflows_authors() -> None:
    """Their 195 jobs: decisions a slot apart, starts that take the longer the larger a job is, and renewals."""
    run = in_slots(read_elasticflow(DATA / "cluster" / "elasticflow" / "traces" / "elasticVpollux_e.csv"))
    with (DATA / "reference" / "fleet" / "others.csv").open() as file:
        (row,) = [r for r in csv.DictReader(file) if r["policy"] == "dlas-gpu"]
    assert len(run.names) == 195
    assert num_met(run) == int(row["value"])


@WITH_DATA
@pytest.mark.slow
def test_as_the_simulator_of_pollux_authors() -> None:
    """Their sixth workload: gangs and batch sizes as users chose them, two queues, rounds of a minute."""
    run = tiresias_run(DATA / "cluster" / "pollux")
    with (DATA / "reference" / "fleet" / "pollux_sia.csv").open() as file:
        (row,) = [r for r in csv.DictReader(file) if r["policy"] == "tiresias"]
    assert run.mean_completion_s == pytest.approx(float(row["avg_jct_s"]), rel=1e-6)


@WITH_DATA
def test_order_of_the_papers_figures() -> None:
    # Complete knowledge, then a distribution, then none, then the order of arrival.
    jobs, cluster = trace("cluster06_job.csv"), Cluster.uniform(32, 4)
    with (TRACES / "yarn-gput1000.csv").open() as file:
        samples = tuple(float(r["duration"]) for r in csv.DictReader(file))
    policies = (srtf(by_device_time=True), tiresias(samples=samples), tiresias(), fifo())
    means = [simulate_fleet(jobs, cluster, policy, place="anywhere").mean_completion_s for policy in policies]
    assert means == sorted(means)
    assert means[1] < 0.5 * means[3]

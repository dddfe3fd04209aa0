"""AntMan's claims: guaranteed jobs run as if alone; opportunistic ones use what they leave idle."""

from __future__ import annotations

import pytest

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster


def times(run: FleetRun) -> dict[str, float]:
    return dict(zip(run.names, run.completion_s.tolist(), strict=True))


def workload(seed: int, guaranteed: bool, opportunistic: bool) -> list[Job]:
    import numpy as np

    draw = np.random.default_rng(seed)
    jobs = []
    for i in range(40):
        kind = bool(i % 2)
        size, length_s, busy = (
            int(draw.choice([1, 1, 2, 4])),
            float(draw.uniform(50, 500)),
            float(draw.uniform(0.3, 1)),
        )
        arrival_s = 20.0 * i
        if guaranteed if kind else opportunistic:
            jobs.append(declared_job(str(i), arrival_s, size, length_s, busy, guaranteed=kind))
    return jobs


def test_leftover_time_is_used() -> None:
    """A guaranteed job that keeps its device busy for 60 % of the time leaves 40 % (section 3.3)."""
    jobs = [
        declared_job("guaranteed", 0, 1, 100, 0.6),
        declared_job("opportunistic", 0, 1, 100, 1.0, guaranteed=False),
    ]
    found = times(simulate_fleet(jobs, Cluster.uniform(1, 1), AntMan()))
    assert found["guaranteed"] == 100
    # 40 % until the other ends, then all of the device.
    assert found["opportunistic"] == pytest.approx(100 + 60)


@pytest.mark.parametrize("seed", range(5))
def test_guaranteed_jobs_are_as_fast_as_without_the_others(seed: int) -> None:
    cluster = Cluster.uniform(2, 4)
    alone = times(simulate_fleet(workload(seed, True, False), cluster, AntMan()))
    together = times(simulate_fleet(workload(seed, True, True), cluster, AntMan()))
    assert {name: together[name] for name in alone} == pytest.approx(alone)


@pytest.mark.parametrize("seed", range(5))
def test_sharing_is_better_than_exclusive_devices(seed: int) -> None:
    """What sharing is for: everybody together is done sooner than in a queue for whole devices."""
    cluster, jobs = Cluster.uniform(2, 4), workload(seed, True, True)
    shared, exclusive = simulate_fleet(jobs, cluster, AntMan()), simulate_fleet(jobs, cluster, fifo())
    assert shared.mean_completion_s < exclusive.mean_completion_s


def test_a_busy_device_takes_no_opportunistic_job() -> None:
    jobs = [declared_job("a", 0, 1, 100, 0.9), declared_job("b", 0, 1, 10, 0.5, guaranteed=False)]
    found = times(simulate_fleet(jobs, Cluster.uniform(1, 1), AntMan()))
    assert found == {"a": 100, "b": 110}


def test_quota_of_a_virtual_cluster() -> None:
    """Guaranteed jobs of one tenant wait at its quota while another's run."""
    jobs = [
        declared_job("a", 0, 2, 100, virtual_cluster="one"),
        declared_job("b", 0, 1, 100, virtual_cluster="one"),
        declared_job("c", 0, 2, 100, virtual_cluster="two"),
    ]
    policy = parse_policy("antman(quotas=(('one', 2), ('two', 2)))")
    found = times(simulate_fleet(jobs, Cluster.uniform(1, 4), policy))
    assert found == {"a": 100, "b": 200, "c": 100}


def test_a_job_larger_than_its_quota_is_refused() -> None:
    jobs = [declared_job(name, 0, 3, 100, virtual_cluster=name) for name in ("one", "two")]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4), parse_policy("antman(quotas=(('one', 2),))"))
    assert times(run) == {"two": 100}
    ((name, why),) = run.refused
    assert (name, why) == (
        "one", "asks for 3 devices; guaranteed jobs of virtual cluster 'one' may have 2 together"
    )  # fmt: skip


def test_a_job_lies_on_one_type_of_devices_that_it_can_run_on() -> None:
    """Guaranteed or not, whatever is less loaded."""
    cluster = parse_cluster("2x2xV100+2x2xK80")
    jobs = [
        declared_job("a", 0, 4, 100, 0.5, device_types=("V100",)),
        declared_job("b", 0, 3, 100, 0.5),
        declared_job("c", 0, 4, 100, 0.5, guaranteed=False),
        declared_job("d", 0, 2, 100, 0.5, guaranteed=False, device_types=("V100",)),
        declared_job("e", 0, 2, 100, 0.5, guaranteed=False, device_types=("V100",)),
    ]
    run = simulate_fleet(jobs, cluster, AntMan(), keep_spans=True)
    types = {s.job: {cluster.nodes[cluster.node_of[d]].device_type for d in s.devices} for s in run.spans}
    assert types == {"a": {"V100"}, "b": {"K80"}, "c": {"K80"}, "d": {"V100"}, "e": {"V100"}}
    assert times(run) == dict.fromkeys("abcde", 100)

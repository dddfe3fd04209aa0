"""What every policy must satisfy where jobs and devices differ: types, tenants, deadlines, and jobs that adapt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from test_fleet_conformance import BRIEF, EVERY, Watched, name_of, shares

from trainyard.fleet.catalog import CATALOG, Entry
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import Scheduler, scheduler_of
from trainyard.fleet.snapshot import Need
from trainyard.fleet.workload.application import Application, SelfTuned
from trainyard.fleet.workload.goodput import Limits
from trainyard.fleet.workload.job import Adaptive, Job, declared_job
from trainyard.hardware.cluster import Cluster

SEEDS = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=(pytest.mark.slow, pytest.mark.long))])
TYPES = ("V100", "K80")
MIXED = Cluster.of_pools((("V100", 2, 4), ("K80", 3, 2)))
ALIKE = Cluster.uniform(3, 4, "V100")
TENANTS = {
    "hived": {"quotas": (("a", 4, 1), ("b", 4, 1))},
    "antman": {"quotas": (("a", 6),)},
}


def application() -> Application:
    """What tunes itself on up to four devices, wherever they lie."""
    rows, sizes = {}, np.array([64.0, 512.0])
    for num_nodes in range(1, 5):
        for per_node in product(range(1, 5), repeat=num_nodes):
            wait_s = 0.01 * (sum(per_node) - 1) + 0.02 * (num_nodes - 1)
            if sum(per_node) <= 4:
                rows[per_node] = np.array([[n, 0.05 + 0.001 * n + wait_s, wait_s] for n in (32, 256)])
    noise = np.array([[10.0, 40.0, 160.0]] * 2)
    loss = np.array([[1.0, 0.5, 0.4]] * 2)
    ends = np.array([2000.0, 5000.0, 9000.0])
    limits = Limits(64, 512, 32, 256)
    return Application("own", limits, ends, sizes, np.ones((2, 3)), noise, loss, rows, None, 4, 4)


TUNED = SelfTuned(application())


def workload(seed: int) -> list[Job]:
    """Of two tenants: jobs for some types or all, gangs and jobs that can be resized, with deadlines, priorities, and
    without guarantees; some adapt their batch sizes."""
    rng = np.random.default_rng(seed)
    jobs = []
    for i, arrival_s in enumerate(np.sort(rng.integers(0, 6000, 21)).astype(float).tolist()):
        # On the cluster of one type, nobody is for the other alone.
        kinds = [(), ("V100",), TYPES, ("V100", "P100")][i % 4]
        size, length_s = int(rng.choice([1, 1, 2, 3, 4, 6])), float(rng.integers(50, 3000))
        job = declared_job(
            f"job{i}",
            arrival_s,
            size,
            length_s,
            float(rng.choice([0.3, 0.6, 1.0])),
            device_types=kinds,
            virtual_cluster=str(rng.choice(["a", "b"])),
            deadline_s=arrival_s + length_s * float(rng.uniform(0.8, 6)) if i % 2 else None,
            guaranteed=bool(rng.random() < 0.8),
            priority=int(rng.integers(3)),
            weight=float(rng.choice([1.0, 2.0])),
            yields=bool(rng.random() < 0.5),
        )
        if i % 3 == 0:
            job = replace(job, min_devices=max(1, size // 2), max_devices=min(6, 2 * size))
        elif i % 5 == 0:
            job = replace(job, num_devices=1, min_devices=1, max_devices=4, profile=TUNED, work=9000.0)
        jobs.append(job)
    return jobs


def cluster_for(policy: Policy) -> Cluster:
    """Two types of devices, if the policy is for that."""
    try:
        policy.start(MIXED)
    except FleetError as error:
        if "of one type" not in str(error):
            raise
        return ALIKE
    return MIXED


def jobs_for(cluster: Cluster, seed: int) -> list[Job]:
    """On two types, some jobs run on the second alone."""
    jobs = workload(seed)
    if cluster is MIXED:
        return [replace(job, device_types=("K80",)) if i % 7 == 2 else job for i, job in enumerate(jobs)]
    return jobs


def text_of(entry: Entry, variant: str) -> str:
    options = {**BRIEF.get(entry.name, {}), **TENANTS.get(entry.name, {}), **entry.variants.get(variant, {})}
    return f"{entry.name}({', '.join(f'{k}={v!r}' for k, v in options.items())})"


def run(scheduler: Scheduler, seed: int) -> FleetRun:
    cluster = cluster_for(scheduler.policy)
    return scheduler.simulate(jobs_for(cluster, seed), cluster, keep_spans=True)


@cache
def plain_run(text: str, seed: int) -> FleetRun:
    """Of a policy that nobody watches; what several tests look at is simulated once."""
    return run(scheduler_of(text), seed)


@EVERY
@SEEDS
def test_jobs_end_on_devices_that_they_can_have(entry: Entry, variant: str, seed: int) -> None:
    done = plain_run(text_of(entry, variant), seed)
    worked = check_jobs_end_on_devices_that_they_can_have(done, seed, shares(entry, variant))
    jobs = {job.name: job for job in jobs_for(done.cluster, seed)}
    for name in done.names:
        if shares(entry, variant):  # A span does not say how much of its devices it had.
            assert worked[name] >= jobs[name].work - 1e-6 or isinstance(jobs[name].profile, Adaptive)
        elif not isinstance(jobs[name].profile, Adaptive):
            assert worked[name] == pytest.approx(jobs[name].work)


def check_jobs_end_on_devices_that_they_can_have(
    done: FleetRun, seed: int, shared: bool = False
) -> dict[str, float]:
    """Each as a whole on one type, none on devices of another; returns the time that each had its devices."""
    cluster = done.cluster
    jobs = {job.name: job for job in jobs_for(cluster, seed)}
    assert {*done.names, *(name for name, _ in done.refused)} == set(jobs)
    assert len(done.names) + len(done.refused) == len(jobs)
    assert all(why for _, why in done.refused)
    assert len(done.names) >= len(jobs) // 2
    worked, free_from_s = dict.fromkeys(done.names, 0.0), dict.fromkeys(range(len(cluster.node_of)), 0.0)
    for span in sorted(done.spans, key=lambda span: span.start_s):
        job = jobs[span.job]
        types = {cluster.nodes[node].device_type for node in cluster.node_of[list(span.devices)].tolist()}
        assert len(types) == 1
        assert types <= set(job.device_types or TYPES)
        assert job.least_devices <= len(set(span.devices)) == len(span.devices) <= job.most_devices
        assert span.start_s >= job.arrival_s
        for device in () if shared else span.devices:
            assert free_from_s[device] <= span.start_s
            free_from_s[device] = span.end_s
        worked[span.job] += (span.end_s - span.start_s) * len(span.devices) / job.num_devices
    return worked


@EVERY
def test_decisions_are_pure_and_repeat(entry: Entry, variant: str) -> None:
    text = text_of(entry, variant)
    check_repeats(scheduler_of(text), plain_run(text, 0))


def check_repeats(scheduler: Scheduler, second: FleetRun) -> None:
    """As `test_fleet_conformance.check_repeats`, of these jobs."""
    first = run(replace(scheduler, policy=Watched(scheduler.policy)), 0)
    assert (first.names, first.spans, first.refused) == (second.names, second.spans, second.refused)
    np.testing.assert_array_equal(first.finish_s, second.finish_s)


@dataclass
class Ignorant(Watched):
    """A policy that is not told something."""

    untold: Need = "length"

    @property
    def needs(self) -> frozenset[Need]:
        return self.policy.needs - {self.untold}


@pytest.mark.parametrize(("entry", "need"), [(e, need) for e in CATALOG for need in e.needs], ids=name_of)
def test_what_is_declared_is_asked_for(entry: Entry, need: Need) -> None:
    """No policy says that it needs what it can do without, or it would seem to know more than it does."""
    scheduler = scheduler_of(entry.name)
    with pytest.raises(FleetError, match=f"asks for '{need}' must declare it"):
        run(replace(scheduler, policy=Ignorant(scheduler.policy, untold=need)), 0)

"""Partitions that share no node: jobs of one start and end as if the others were not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import finished
from shared_data import needs_data

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.place.nodes import PLACEMENTS
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.node_changes import NodeChange
from trainyard.hardware.parse import parse_cluster

CASE = Path(__file__).parents[3] / "shared" / "cases" / "traces" / "partition_srtf.csv"


@dataclass(frozen=True)
class EveryOther:
    """A policy of a user: at every second decision the last to arrive comes first."""

    needs: frozenset[Need] = frozenset()
    preempts: bool = True
    traits: Traits = Traits(supports=ORDERED)  # noqa: RUF009  (frozen)

    def start(self, cluster: Cluster) -> int:
        return cluster.num_devices

    def decide(self, snapshot: Snapshot, state: int) -> tuple[Allocation, int]:
        order = np.arange(snapshot.num_jobs)[:: 1 if state % 2 else -1]
        room = int(snapshot.cluster.devices_of_type.sum())
        assert snapshot.num_devices.max() <= room
        assert snapshot.free.sum() + snapshot.held.sum() == room
        return Allocation(Queue(order), ask_again_s=snapshot.now_s + 7.0 * room), state + 1


POLICIES = (
    "fifo", "fifo(backfill=True)", 'fifo(backfill="easy")', "sjf", "srtf", "srtf(steady=True)", "las",
    "tiresias(thresholds=(300.0, 900.0))", "tiresias(thresholds=(300.0,), promote_knob=1.0)",
    "tiresias(thresholds=(300.0,), samples=(100.0, 400.0, 800.0))", "of a user",
)  # fmt: skip
# Nodes of a line, and of each partition.
CLUSTERS = (
    ("4x4", ((0, 1), (2, 3))),
    ("6x2", ((0, 3), (1, 4, 5), (2,))),
    ("4x2+2x4@2/rack", ((0, 1, 4), (2, 3, 5))),
    ("2x2xA+3x4xB@8cpu", ((0, 2), (1, 3, 4))),
)


def jobs_of(seed: int, cluster: Cluster, num_jobs: int) -> list[Job]:
    """Jobs of all partitions, some of which come at one moment; users allow some of them too little time."""
    rng, jobs, now_s = np.random.default_rng(seed), list[Job](), 0.0
    for number in range(num_jobs):
        now_s += float(rng.choice((0, 0, 10, 60, 200)))
        partition = int(rng.integers(1, len(cluster.members)))
        size = int(rng.integers(1, 1 + cluster.devices_of_partition[partition].max()))
        length_s = float(rng.choice((0, 50, 100, 150, 400)))
        limit_s = None if rng.random() < 0.2 else float(rng.choice((0.5, 1.0, 2.0))) * length_s + 1.0
        name, own = cluster.partitions[partition - 1][0], f"job{number}"
        jobs.append(declared_job(own, now_s, size, length_s, limit_s=limit_s, virtual_cluster=name))
    return jobs


def divided(text: str, partitions: Sequence[Sequence[int]]) -> Cluster:
    named = tuple((f"p{number}", frozenset(nodes)) for number, nodes in enumerate(partitions))
    return replace(parse_cluster(text), partitions=named)


def parts(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """Every partition as a cluster of its own."""
    return [
        (name, replace(cluster, nodes=tuple(cluster.nodes[node] for node in sorted(nodes)), partitions=()))
        for name, nodes in cluster.partitions
    ]


def what_happened(run: FleetRun) -> dict[str, tuple[float, ...]]:
    """Starts, ends, waiting and losses of devices of all jobs."""
    columns = run.first_start_s, run.finish_s, run.waiting_s, run.num_preempted, run.num_starts
    return dict(zip(run.names, zip(*(column.tolist() for column in columns), strict=True), strict=True))


def policy_of(text: str) -> Policy:
    return EveryOther() if text == "of a user" else parse_policy(text)


@settings(max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    cluster=st.sampled_from(CLUSTERS),
    place=st.sampled_from(sorted(PLACEMENTS)),
    num_jobs=st.integers(2, 24),
)
def test_together_is_as_apart(
    seed: int, policy: str, cluster: tuple[str, Sequence[Sequence[int]]], place: str, num_jobs: int
) -> None:
    whole = divided(*cluster)
    jobs = jobs_of(seed, whole, num_jobs)
    together = what_happened(simulate_fleet(jobs, whole, policy_of(policy), place=place))
    assert len(together) == num_jobs
    for name, part in parts(whole):
        own = [job for job in jobs if job.virtual_cluster == name]
        cut = [replace(job, virtual_cluster="") for job in own]
        expected = {job.name: together[job.name] for job in own}
        assert what_happened(simulate_fleet(own, whole, policy_of(policy), place=place)) == expected
        assert what_happened(simulate_fleet(cut, part, policy_of(policy), place=place)) == expected


@needs_data(CASE)
def test_a_running_job_keeps_its_devices_before_a_longer_one() -> None:
    cluster, jobs = parse_cluster(str(CASE.with_suffix(".yaml"))), list(read_workload(CASE))
    done = finished(scheduler_of("srtf").simulate(jobs, cluster))
    alone = scheduler_of("srtf").simulate([job for job in jobs if job.virtual_cluster == "a"], cluster)
    assert done["j9"] == 5453
    assert finished(alone) == {name: end_s for name, end_s in done.items() if name != "j11"}


def of(name: str, partition: str, arrival_s: float, size: int, length_s: float) -> Job:
    return declared_job(name, arrival_s, size, length_s, virtual_cluster=partition)


def test_a_job_without_a_partition_joins_them_while_it_is_there() -> None:
    """fifo holds up everybody behind it, since it may have any node; once it has ended, each waits in its own queue."""
    cluster = divided("4x2", ((0, 1), (2, 3)))
    jobs = [
        of("a", "p0", 0, 4, 100),
        of("any", "", 10, 6, 50),
        of("behind", "p1", 20, 1, 10),
        of("b", "p1", 160, 3, 100),
        of("wide", "p1", 170, 4, 10),
        of("narrow", "p0", 180, 1, 10),
    ]
    done = finished(scheduler_of("fifo").simulate(jobs, cluster))
    assert done == {"a": 100, "any": 150, "behind": 110, "b": 260, "wide": 270, "narrow": 190}


def test_a_policy_has_a_state_for_each_domain_and_begins_anew_when_they_are_joined() -> None:
    asked: list[tuple[int, int, int]] = []

    @dataclass(frozen=True)
    class Noted(EveryOther):
        def decide(self, snapshot: Snapshot, state: int) -> tuple[Allocation, int]:
            asked.append((int(snapshot.now_s), snapshot.num_jobs, state))
            return Allocation(Queue(np.arange(snapshot.num_jobs))), state + 1

    jobs = [
        of("a", "p0", 0, 1, 100),
        of("b", "p1", 10, 1, 100),
        of("c", "p1", 20, 1, 100),
        of("d", "", 30, 1, 10),
    ]
    simulate_fleet(jobs, divided("2x2+2x4", ((0, 1), (2, 3))), Noted())
    # The first state is the number of devices that the policy is asked about.
    assert asked[:4] == [(0, 1, 4), (10, 1, 8), (20, 2, 9), (30, 4, 12)]
    assert asked[4:6] == [(40, 1, 4), (40, 2, 8)]


def test_partitions_that_share_nodes_are_one_domain() -> None:
    """By number, too: no job loses its devices to one that cannot have them."""
    nodes = {"small": {0}, "both": {0, 1}, "other": {1, 2}, "apart": {3}}
    named = tuple((name, frozenset(own)) for name, own in nodes.items())
    cluster = replace(parse_cluster("4x4"), partitions=named)
    jobs = [
        of("a", "small", 0, 4, 300),
        of("b", "other", 0, 4, 500),
        of("c", "both", 10, 4, 400),  # on the node that b leaves
        of("d", "other", 20, 8, 200),  # by number on all, but c is shorter by then
        of("e", "apart", 30, 4, 1000),
        of("f", "small", 40, 4, 10),
    ]
    run = scheduler_of("srtf").simulate(jobs, cluster, keep_spans=True)
    assert finished(run)["f"] == 50
    assert {span.devices for span in run.spans if span.job == "e"} == {(12, 13, 14, 15)}
    for span in run.spans:
        job = next(job for job in jobs if job.name == span.job)
        assert {device // 4 for device in span.devices} <= nodes[job.virtual_cluster]
    ends_s = finished(run)
    assert ends_s["e"] == 1030
    assert ends_s["a"] == 310
    assert run.num_preempted.sum() >= 1


def test_nodes_that_come_and_go_leave_other_partitions_alone() -> None:
    text, nodes = "4x2", ((0, 1), (2, 3))
    cluster = divided(text, nodes)
    cluster = replace(
        cluster,
        changes=(NodeChange(50.0, "leave", frozenset({2, 3})), NodeChange(500.0, "come", frozenset({2, 3}))),
    )
    jobs = [of("a", "p0", 0, 4, 100), of("b", "p1", 0, 4, 100), of("c", "p0", 60, 4, 100)]
    done = finished(scheduler_of("srtf").simulate(jobs, cluster))
    assert done == {"a": 100, "c": 200, "b": 550}

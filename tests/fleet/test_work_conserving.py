"""No device lies idle beside a job that waits, that the policy would take, and that has a place there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.place.find import are_in_racks, find_place, usable_nodes, without_nodes_of
from trainyard.fleet.place.nodes import PLACEMENTS
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.snapshot import Ints
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

# fifo waits behind the first job of its queue, and has a test of its own.
POLICIES = (
    "fifo(backfill=True)",
    "sjf",
    "srtf",
    "las",
    "edf",
    "tiresias",
    "gavel_max_min",
    "drf(backfill=True)",
)
ALL = np.zeros(0, np.int64)
CLUSTERS = {
    text: parse_cluster(text)
    for text in ("2x3", "3x4", "2x4+2x2", "4x2@2/rack", "3x4@8cpu", "2x4xA+3x2xB", "2x3xA@6cpu,12GB+2x2xB")
} | {
    "partitions": replace(
        parse_cluster("3x4+2x2"), partitions=(("a", frozenset({0, 1})), ("b", frozenset({1, 2, 3})))
    ),
    "partitions apart": replace(
        parse_cluster("5x4"), partitions=(("a", frozenset({0, 1})), ("b", frozenset({2, 3})))
    ),
    "partitions of types": replace(
        parse_cluster("3x2xA+2x4xB@8cpu"),
        partitions=(("a", frozenset({0, 1, 2})), ("b", frozenset({2, 3, 4}))),
    ),
}


def drawn(seed: int, cluster: Cluster) -> list[Job]:
    """Jobs of all sizes that some type has; some run on one type alone, some ask for more processors than their share."""
    rng = np.random.default_rng(seed)
    arrivals_s = np.sort(rng.integers(0, 3000, 25)).astype(float)
    jobs = []
    for number, arrival_s in enumerate(arrivals_s.tolist()):
        kinds = rng.choice(cluster.device_types, 1) if rng.random() < 0.3 else cluster.device_types
        partition = int(rng.integers(1 + len(cluster.partitions)))
        sizes = cluster.devices_per_node * cluster.members[partition]
        most = max(
            int(sizes[cluster.type_of_node == cluster.device_types.index(kind)].sum()) for kind in kinds
        )
        if not most:
            continue
        size = int(min(most, rng.choice([1, 1, 1, 2, 2, 3, 4, 5, 8])))
        cpus = float(size) * 3.0 if cluster.largest_host[0] and size <= 2 and rng.random() < 0.3 else 0.0
        jobs.append(
            declared_job(
                f"job{number}",
                arrival_s,
                size,
                float(rng.integers(1, 2000)),
                device_types=tuple(kinds),
                cpus=cpus,
                virtual_cluster=["", *(name for name, _ in cluster.partitions)][partition],
            )
        )
    return jobs


def looking(see: Callable[[Allocator, Ints, Allocation], None]) -> Any:
    """`Allocator.apply`, after which somebody looks at who has what."""
    apply = Allocator.apply

    def applied(self: Allocator, rows: Ints, allocation: Allocation, now_s: float, cluster: Cluster) -> Ints:
        changed = apply(self, rows, allocation, now_s, cluster)
        see(self, rows, allocation)
        return changed

    return applied


def has_place(allocator: Allocator, row: int, unblocked: Ints = ALL) -> bool:
    """Whether a job could have devices that nobody has."""
    table = allocator.table
    _, nodes, by_type, auxiliary, members = allocator.free.tables
    usable = usable_nodes(table.partition[row], members, unblocked)
    asked = table.num_devices[row], table.allowed[row], usable, allocator.how, table.needs[row]
    return len(find_place(*asked, nodes, by_type, auxiliary, are_in_racks(nodes))) > 0


def check_devices(allocator: Allocator) -> None:
    """Nobody has a device that another has, and those that are free are those that nobody has."""
    table, held = allocator.table, list[int]()
    for row in table.active.tolist():
        if (grant := table.grants[row]) is not None:
            assert len(grant.devices) == table.num_devices[row]
            held += grant.devices
            assert allocator.cluster.members[
                table.partition[row], allocator.cluster.node_of[list(grant.devices)]
            ].all()
    assert len(set(held)) == len(held)
    assert sorted(held) == np.flatnonzero(allocator.free.taken()).tolist()
    assert allocator.free.total == len(allocator.cluster.node_of) - len(held)
    free = np.bincount(allocator.cluster.node_of, ~allocator.free.taken(), len(allocator.cluster.nodes))
    np.testing.assert_array_equal(free, allocator.free.by_node)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.sampled_from(sorted(CLUSTERS)),
    place=st.sampled_from(sorted(PLACEMENTS)),
    spans=st.booleans(),
)
def test_nobody_waits_beside_devices_that_would_do(
    policy: str, seed: int, nodes: str, place: str, spans: bool
) -> None:
    cluster = CLUSTERS[nodes]
    assume(policy != "edf" or cluster.is_one_pool)
    assume(policy != "gavel_max_min" or not cluster.partitions)
    looks = [0]

    def see(allocator: Allocator, rows: Ints, allocation: Allocation) -> None:
        looks[0] += 1
        check_devices(allocator)
        for row in rows[allocator.table.held[rows] == 0].tolist():
            # What a fraction of time on one type is for, it does not have on another.
            given = allocation.given
            assert isinstance(given, Queue)
            if given.device_type is None or len(cluster.device_types) == 1:
                assert not has_place(allocator, row), f"job {row} waits beside {allocator.free.by_node}"

    jobs = drawn(seed, cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocator, "apply", looking(see))
        done = scheduler_of(policy, place).simulate(jobs, cluster, keep_spans=spans)
    assert looks[0] >= 10
    assert len(done.names) + len(done.refused) == len(jobs)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.sampled_from(sorted(CLUSTERS)),
    place=st.sampled_from(sorted(PLACEMENTS)),
)
def test_in_a_queue_only_those_wait_that_share_a_type_with_one_before_them(
    seed: int, nodes: str, place: str
) -> None:
    cluster = CLUSTERS[nodes]

    def see(allocator: Allocator, rows: Ints, allocation: Allocation) -> None:
        check_devices(allocator)
        table, unblocked = allocator.table, ALL
        _, nodes, _, _, members = allocator.free.tables
        decided = set(rows.tolist())  # other partitions may be decided on later at this moment
        for row in [row for row in table.waiting().tolist() if row in decided]:
            assert not has_place(allocator, row, unblocked)
            unblocked = without_nodes_of(table.allowed[row], table.partition[row], members, unblocked, nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocator, "apply", looking(see))
        scheduler_of("fifo", place).simulate(drawn(seed, cluster), cluster)

"""A cluster some of whose nodes are away: what is left of it, and that every policy makes do with that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from test_fleet_conformance import CLUSTER, EVERY, plain_run, text_of, workload

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.catalog import Entry
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.periods import Rounds
from trainyard.fleet.place.buddies import buddies
from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.keep import keeping
from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.policies.hived.policy import HiveD
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.node_changes import NodeChange
from trainyard.hardware.parse import parse_cluster


@dataclass
class Heard(PolicyWrapper):
    """A policy, and what it was told of nodes."""

    away: dict[float, frozenset[int]] = field(default_factory=dict)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        self.away[snapshot.now_s] = snapshot.cluster.away
        assert snapshot.free[list(snapshot.cluster.away)].sum() == 0
        for grant in snapshot.grants:
            assert grant is None or snapshot.cluster.is_usable[list(grant.devices)].all()
        return super().decide(snapshot, state)


@EVERY
def test_every_policy_ends_all_jobs_while_nodes_come_and_go(entry: Entry, variant: str) -> None:
    """Those that it does not refuse without that, but for jobs with deadlines; and it uses no node that is away."""
    text = text_of(entry, variant)
    scheduler = scheduler_of(text)
    heard = Heard(scheduler.policy)
    hazards = Hazards(
        checkpoint_every_s=60.0, node_failure_every_s=4000.0, node_repair_s=1000.0, seed=len(text)
    )
    changes = NodeChange(500.0, "leave", frozenset({0})), NodeChange(1500.0, "come", frozenset({0}))
    run = simulate_fleet(
        workload(1),
        replace(CLUSTER, changes=changes),
        heard,
        place=scheduler.place,
        rounds=scheduler.rounds,
        hazards=hazards,
        keep_spans=True,
    )
    calm = plain_run(text, 1)
    assert set(run.names) | {name for name, _ in run.refused} == {job.name for job in workload(1)}
    assert {name for name, _ in run.refused} == {name for name, _ in calm.refused}
    assert run.num_failures > 0
    assert len(set(heard.away.values())) > 2
    for span in run.spans:
        if span.start_s in heard.away:
            away = [
                node for node in heard.away[span.start_s] if set(CLUSTER.node_of[list(span.devices)]) & {node}
            ]
            assert not away, (span, heard.away[span.start_s])


def test_what_is_left_of_a_cluster() -> None:
    whole = parse_cluster("2x4xV100+2x2xK80")
    left = whole.without({0, 3})
    assert (left.num_devices, left.devices_per_node.tolist()) == (6, [0, 4, 2, 0])
    assert left.devices_of_type.tolist() == [4, 2]
    assert np.flatnonzero(left.is_usable).tolist() == [4, 5, 6, 7, 8, 9]
    assert left.node_of.tolist() == whole.node_of.tolist()
    assert left.whole == whole
    assert whole.without({0, 2}).compact(3, 1) == (2, 1)  # it is still known how its nodes look


def test_no_placement_uses_what_is_away() -> None:
    left = Cluster.uniform(3, 4).without({1})
    free = FreeDevices(left)
    assert (free.total, free.by_node.tolist()) == (8, [4, 0, 4])
    none = np.zeros(0, np.int64)
    _, given = free.place(np.array([8]), none, np.array([-1]), none, 0, True)
    assert given.each() == [(0, 1, 2, 3, 8, 9, 10, 11)]
    assert keeping(left, [{0: 1, 2: 4}], [None]) == [(0, 8, 9, 10, 11)]
    assert buddies(left, [4, 4], [None, None]) == [(0, 1, 2, 3), (8, 9, 10, 11)]


def test_hived_moves_a_guaranteed_job_to_a_healthy_cell() -> None:
    """A virtual cluster with one node of three gets another one for it, and one with all three waits."""
    away = {0}

    class Gone(HiveD):
        def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
            return super().decide(replace(snapshot, cluster=snapshot.cluster.without(away)), state)

    jobs = [replace(declared_job(name, 0.0, 4, 100.0), virtual_cluster=name) for name in ("a", "b")]
    run = simulate_fleet(jobs, CLUSTER, Gone(quotas=(("a", 4, 1), ("b", 4, 1))), keep_spans=True)
    assert sorted(span.devices[0] // 4 for span in run.spans) == [1, 2]
    # With one node left for both, the second has it when the first is done.
    run = simulate_fleet(jobs, Cluster.uniform(2, 4), Gone(quotas=(("a", 4, 1), ("b", 4, 1))))
    assert run.finish_s.tolist() == [100.0, 200.0]


def test_elasticflow_refuses_nobody_for_nodes_that_will_be_back() -> None:
    jobs = [
        declared_job(f"job{i}", 3000.0 * i, 8, 60.0, deadline_s=3000.0 * i + 30 * 86400) for i in range(31)
    ]
    hazards = Hazards(node_failure_every_s=20_000.0, node_repair_s=600.0, seed=3)
    run = scheduler_of("elasticflow").simulate(jobs, Cluster.uniform(2, 4), hazards=hazards)
    assert len(run.names) == 31
    assert max(run.first_wait_s) > 0


def test_finish_times_are_fair_to_jobs_that_waited_for_nodes() -> None:
    """What a job has done is known again when it comes back into the decision."""
    remembered: dict[int, float] = {}

    class Asked(PolicyWrapper):
        def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
            allocation, after = super().decide(snapshot, state)
            past = dict(zip(after.kept.serial.tolist(), after.kept.past_s.tolist(), strict=True))
            assert all(
                past.get(serial, 0.0) >= before for serial, before in remembered.items() if serial in past
            )
            assert set(snapshot.serial.tolist()) <= set(past)
            remembered.update(past)
            return allocation, after

    jobs = [
        declared_job("big", 0.0, 8, 8000.0),
        *(declared_job(f"small{i}", 0.0, 2, 8000.0) for i in range(2)),
    ]
    hazards = Hazards(checkpoint_every_s=60.0, node_failure_every_s=6000.0, node_repair_s=2000.0, seed=1)
    run = simulate_fleet(
        jobs, Cluster.uniform(2, 4), Asked(FinishTimeFairness()), rounds=Rounds(360.0), hazards=hazards
    )
    assert run.num_failures > 2

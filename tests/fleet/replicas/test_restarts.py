"""Restarts that take as long as a job's model does, where it comes to lie otherwise than before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.replicas.restarts import Restarts
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

ROUNDS = Restarts(100.0, by_model={"bert": 30.0, "ncf": 5.0})


@dataclass(frozen=True)
class Moving:
    """One job, placed in every round where it is said."""

    places: tuple[tuple[int, ...], ...]
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=True, init=False)

    def start(self, cluster: Cluster) -> int:
        return 0

    def decide(self, snapshot: Snapshot, state: int) -> tuple[Allocation, int]:
        devices = self.places[min(state, len(self.places) - 1)]
        again_s = snapshot.now_s + ROUNDS.round_s
        return Allocation(Placed(np.zeros(1, np.int64), [devices]), again_s), state + 1


def end_s(*places: tuple[int, ...], model: str = "bert") -> float:
    """Of a job of 250 s on two devices, of a cluster of two nodes of one type and one of another."""
    cluster = Cluster.of_pools((("slow", 2, 2), ("fast", 1, 2)))
    jobs = [declared_job("job", 0.0, 2, 250.0, model=model)]
    return simulate_fleet(jobs, cluster, Moving(places), rounds=ROUNDS).makespan_s


def test_every_model_has_its_time() -> None:
    cluster = Cluster.uniform(1, 3)
    jobs = [declared_job(name, 0.0, 1, 50.0, model=name) for name in ("bert", "ncf", "other")]
    run = simulate_fleet(jobs, cluster, fifo(), rounds=ROUNDS)
    assert dict(zip(run.names, run.finish_s.tolist(), strict=True)) == {"bert": 80, "ncf": 55, "other": 50}


def test_who_stays_does_not_restart() -> None:
    assert end_s((0, 1)) == 30 + 250


def test_who_moves_to_nodes_that_are_alike_does_not_restart() -> None:
    assert end_s((0, 1), (2, 3), (0, 1)) == 30 + 250


def test_another_type_or_other_numbers_on_nodes_are_a_restart() -> None:
    assert end_s((0, 1), (4, 5)) == 2 * 30 + 250
    assert end_s((0, 1), (0, 2), (2, 3)) == 3 * 30 + 250


def test_a_round_without_devices_ends_in_a_restart() -> None:
    assert end_s((0, 1), (), (0, 1)) == 100 + 2 * 30 + 250

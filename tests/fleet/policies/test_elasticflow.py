"""ElasticFlow's claims: admitted jobs end in time, hopeless ones are refused; and the authors' own baseline."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from runs import finished
from shared_data import DATA, needs_data

from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.place.buddies import buddies
from trainyard.fleet.policies.edf import EDF
from trainyard.fleet.policies.elasticflow.policy import ElasticFlow
from trainyard.fleet.policies.elasticflow.shares import (
    Demands,
    elastic_allocation,
    minimum_satisfactory_shares,
)
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.edf import EDFInElasticFlow
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, by_arrival
from trainyard.fleet.workload.readers.elasticflow import read_elasticflow
from trainyard.fleet.workload.speeds import Speeds
from trainyard.hardware.cluster import Cluster

published = needs_data(DATA)

CURVE = {1: 1.0, 2: 1.5, 4: 2.0}
"""Work per second by devices: more of them help, but ever less."""


def elastic(name: str, arrival_s: float, work: float, deadline_s: float | None, most: int = 4) -> Job:
    profile = Speeds(tuple(("T4", n, rate) for n, rate in CURVE.items() if n <= most))
    return Job(name, arrival_s, 1, work, profile, min_devices=1, max_devices=most, deadline_s=deadline_s)


def demands(*jobs: tuple[float, float]) -> Demands:
    """Work left and deadline in slots, by the curve above."""
    rows = len(jobs)
    return Demands(
        np.array([left for left, _ in jobs], float),
        np.array([deadline for _, deadline in jobs], float),
        np.zeros(rows, np.int64),
        np.full(rows, len(CURVE)),
        np.tile(list(CURVE), (rows, 1)),
        np.tile(list(CURVE.values()), (rows, 1)),
    )


def devices(counts: list[int], held: list[tuple[int, ...] | None]) -> list[tuple[int, ...]]:
    grants = [None if own is None else Grant(own) for own in held]
    return buddies(Cluster.uniform(2, 4), counts, grants)


def test_satisfactory_share_is_the_least_that_ends_in_time() -> None:
    """3 slots of work: one device until slot 3, two until 2, four until 1.5."""
    for deadline, share in ((3.0, 0), (2.9, 1), (2.0, 1), (1.9, 2), (1.5, 2), (1.4, -1)):
        assert minimum_satisfactory_shares(demands((3.0, deadline)), 4, 0.0).tolist() == [share]


def test_shares_fill_what_earlier_deadlines_leave() -> None:
    """The first job has both devices until slot 2; only then is one free for the second (algorithm 1)."""
    assert minimum_satisfactory_shares(demands((3.0, 2.0), (3.0, 5.0)), 2, 0.0).tolist() == [1, 0]
    assert minimum_satisfactory_shares(demands((3.0, 2.0), (3.0, 4.0)), 2, 0.0).tolist() == [1, 1]
    assert minimum_satisfactory_shares(demands((3.0, 2.0), (3.0, 3.9)), 2, 0.0).tolist() == [1, -1]


def test_spare_devices_go_where_they_cost_least() -> None:
    """To the job that loses nothing by sharing out its work, although the other one comes first (algorithm 2)."""
    pair = demands((6.0, 9.0), (6.0, 9.5))
    pair.work[1] = (1.0, 2.0, 4.0)
    assert elastic_allocation(pair, 3, 0.0)[0].tolist() == [1, 2]
    assert elastic_allocation(pair, 5, 0.0)[0].tolist() == [1, 4]
    assert elastic_allocation(pair, 6, 0.0)[0].tolist() == [2, 4]


def test_a_job_is_looked_at_again_when_it_first_needs_more() -> None:
    """The first job has both devices until slot 2, and then the second needs them; alone, none needs more later."""
    found, next_need = elastic_allocation(demands((3.0, 2.0), (3.0, 4.0)), 2, 0.0)
    assert (found.tolist(), next_need) == ([2, 0], 2.0)
    assert elastic_allocation(demands((3.0, 2.0)), 2, 0.0)[1] == np.inf


def test_a_job_that_cannot_end_in_time_is_refused() -> None:
    jobs = [elastic("short", 0, 100, 49), elastic("long", 0, 100, 50)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4, "T4"), ElasticFlow(slot_s=1))
    assert finished(run) == {"long": 50}
    assert [name for name, _ in run.refused] == ["short"]
    assert "deadline" in run.refused[0][1]


def test_who_is_admitted_is_not_driven_out() -> None:
    """The second job would end in time alone; the first was there before."""
    jobs = [elastic("first", 0, 100, 60), elastic("second", 10, 60, 41)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4, "T4"), ElasticFlow(slot_s=1))
    assert list(run.names) == ["first"]
    assert run.num_missed == 1  # the one that was refused


def test_jobs_without_deadline_run_on_the_rest() -> None:
    jobs = [elastic("any", 0, 100, None), elastic("soon", 0, 100, 60)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4, "T4"), ElasticFlow(slot_s=1))
    assert run.num_missed == 0
    assert len(run.names) == 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rounds", [None, Rounds(10.0), Rounds(2.5)])
def test_admitted_jobs_end_in_time(seed: int, rounds: Rounds | None) -> None:
    """Where nothing is lost by restarts, admission is a promise."""
    draw = np.random.default_rng(seed)
    jobs = []
    for k in range(60):
        arrival_s, work = float(draw.uniform(0, 2000)), float(draw.uniform(20, 400))
        jobs.append(
            elastic(
                str(k), arrival_s, work, arrival_s + work * draw.uniform(0.5, 4), int(draw.choice([1, 2, 4]))
            )
        )
    run = simulate_fleet(
        by_arrival(jobs), Cluster.uniform(2, 4, "T4"), ElasticFlow(slot_s=10.0), rounds=rounds
    )
    assert not (run.finish_s > run.deadline_s).any()
    assert run.num_jobs == len(jobs)
    assert run.num_missed == len(run.refused)
    assert 0 < len(run.refused) < len(jobs)


def test_buddies_do_not_fragment() -> None:
    """Single devices on both nodes make room for a job of a whole one; who is not in the way stays."""
    assert devices([1, 1, 4, 2], [(0,), (4,), None, None]) == [(5,), (4,), (0, 1, 2, 3), (6, 7)]
    assert devices([2, 1, 1], [(6, 7), (5,), None]) == [(6, 7), (5,), (0,)]


def test_gangs_have_blocks_to_themselves() -> None:
    """3 devices are a block of 4; more than a node has are whole nodes."""
    assert devices([3, 2], [None, (2, 3)]) == [(4, 5, 6), (2, 3)]
    assert buddies(Cluster.uniform(3, 4), [6, 1], [None, Grant((0,))]) == [(4, 5, 6, 7, 8, 9), (0,)]


def test_needs_nodes_that_can_be_halved() -> None:
    with pytest.raises(FleetError, match="power of two"):
        ElasticFlow().start(Cluster.uniform(2, 6))


@published
def test_edf_as_the_authors_simulator() -> None:
    with (DATA / "reference" / "fleet" / "others.csv").open() as file:
        in_time = {
            r["policy"]: int(r["value"]) for r in csv.DictReader(file) if r["simulator"] == "elasticflow"
        }
    run = _testbed(EDFInElasticFlow())
    assert int((run.finish_s <= run.deadline_s).sum()) == in_time["edf"]


@published
def test_more_deadlines_are_met_than_by_earliest_deadline_first() -> None:
    """Figure 6's direction, on the authors' trace of 195 jobs."""
    flow, edf = _testbed(ElasticFlow()), _testbed(EDF())
    assert not (flow.finish_s > flow.deadline_s).any()
    assert len(flow.names) > int((edf.finish_s <= edf.deadline_s).sum())


def _testbed(policy: EDF | ElasticFlow) -> FleetRun:
    folder = DATA / "cluster" / "elasticflow"
    jobs = list(read_elasticflow(folder / "traces" / "elasticVpollux_e.csv", folder / "throughputs_T4"))
    return simulate_fleet(jobs, Cluster.uniform(16, 4, "T4"), policy, place="packed")

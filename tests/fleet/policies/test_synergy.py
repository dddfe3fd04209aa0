"""Synergy's claims: nobody is slower than with a proportional share, all together faster; and the authors' own means."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from runs import finished
from shared_data import DATA, needs_data

from trainyard.fleet.errors import FleetError
from trainyard.fleet.place.packing import Packing, proportional
from trainyard.fleet.policies.synergy import Synergy
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.synergy import FirstFit, SynergyProgram
from trainyard.fleet.reproduce.synergy import printed_hours, static_run
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.fleet.workload.readers.synergy import read_synergy
from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.parse import parse_cluster

published = needs_data(DATA)

GB = 1e9


def nodes(count: int) -> Cluster:
    """The paper's: 8 devices, 24 CPUs, 500 GB."""
    return Cluster(f"{count} nodes", (Node.named("V100", 8, 24, 500 * GB),) * count)


@dataclass(frozen=True)
class Hungry:
    """As fast as its CPUs and its memory allow, up to so much per device."""

    cpus: float
    memory_bytes: float

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        own = grant.cpus / spot.num_devices, grant.memory_bytes / spot.num_devices
        return spot.num_devices * min(1.0, own[0] / self.cpus, own[1] / self.memory_bytes)


def hungry(name: str, num_devices: int, cpus: float, memory_gb: float = 62.5) -> Job:
    return Job(name, 0.0, num_devices, 1000.0 * num_devices, Hungry(cpus, memory_gb * GB))


def ends(jobs: list[Job], cluster: Cluster, policy: Synergy) -> dict[str, float]:
    run = simulate_fleet(jobs, cluster, policy)
    return finished(run)


def test_cpus_that_one_does_not_need_go_to_another() -> None:
    """Four jobs want 5 CPUs each and four 1: together 24, where a proportional share is 3."""
    jobs = [hungry(f"hungry {k}", 1, 5) for k in range(4)] + [hungry(f"frugal {k}", 1, 1) for k in range(4)]
    assert set(ends(jobs, nodes(1), Synergy()).values()) == {1000.0}
    fair = ends(jobs, nodes(1), Synergy(allocation="fair"))
    assert fair["hungry 0"] == pytest.approx(1000 * 5 / 3)
    assert fair["frugal 0"] == 1000


def test_who_has_more_than_a_share_gives_it_back() -> None:
    """Two jobs of 12 CPUs leave none for the third: no device idles, and nobody has less than a proportional share."""
    packing = Packing(nodes(1))
    for job in range(3):
        packing.add(job, (1.0, 12.0, 20 * GB))
    cpus = sorted(packing.needs[job][1] for job in range(3))
    assert cpus == [3.0, 3.0, 12.0]


@pytest.mark.parametrize("first_fit", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_full_nodes_are_shared_out(seed: int, first_fit: bool) -> None:
    """Every device is in use, no node gives out more than it has, and everybody's share suffices."""
    draw, cluster = np.random.default_rng(seed), nodes(4)
    packing, left, wanted = FirstFit(cluster) if first_fit else Packing(cluster), 32, []
    while left:
        count = int(min(left, draw.choice([1, 1, 2, 4, 8, 12])))
        wanted.append(
            (float(count), count * float(draw.integers(1, 13)), count * float(draw.uniform(10, 250)) * GB)
        )
        left -= count
    for job, needs in enumerate(wanted):
        packing.add(job, needs)
    assert (packing.free >= -1e-3).all()
    assert packing.free[:, 0].tolist() == [0.0] * 4
    for job, needs in enumerate(wanted):
        assert sum(packing.rows[job].values()) == needs[0]
        least = np.minimum(needs, proportional(cluster) * needs[0])
        assert (packing.needs[job] >= least * (1 - 1e-9)).all()


def test_a_job_that_fits_a_node_is_not_spread() -> None:
    packing = Packing(nodes(2))
    for job, count in enumerate((6.0, 4.0, 2.0, 4.0)):
        packing.add(job, (count, count, count * GB))
    assert packing.rows == {0: {0: 6}, 1: {1: 4}, 2: {0: 2}, 3: {1: 4}}


def test_what_nodes_do_not_have_is_not_given_out() -> None:
    packing = Packing(Cluster.uniform(1, 8))
    packing.add(0, (2.0, 0.0, 0.0))
    assert packing.rows == {0: {0: 2}}


def test_devices_of_one_type() -> None:
    with pytest.raises(FleetError, match="one type"):
        Synergy().start(parse_cluster("1x8xV100+1x8xK80"))


def static_trace(policy: Synergy) -> FleetRun:
    folder = DATA / "cluster" / "synergy"
    trace = folder / "deploy_trace" / "static_100job_6_3_1100.0"
    return static_run(read_synergy(trace, folder / "model_sensitivity.json"), policy)


@published
@pytest.mark.parametrize("allocation", ["fair", "tune"])
def test_as_the_authors_simulator(allocation: Literal["fair", "tune"]) -> None:
    with (DATA / "reference" / "fleet" / "others.csv").open() as file:
        theirs = {r["policy"]: float(r["value"]) for r in csv.DictReader(file) if r["simulator"] == "synergy"}
    found = printed_hours(static_trace(SynergyProgram(allocation=allocation)))
    assert found == pytest.approx(theirs[f"fifo + {allocation}"], abs=1e-9)


@published
@pytest.mark.parametrize("order", ["fifo", "srtf", "las"])
def test_jobs_end_sooner_than_with_proportional_shares(order: Literal["fifo", "srtf", "las"]) -> None:
    """Figures 7 and 8: under every queue."""
    tune, fair = static_trace(Synergy(order)), static_trace(Synergy(order, allocation="fair"))
    assert tune.mean_completion_s < 0.97 * fair.mean_completion_s

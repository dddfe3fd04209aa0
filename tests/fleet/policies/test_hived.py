"""HiveD's claims: the cells of a virtual cluster are there whatever others do; the rest is used as long as it is idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.policy import HiveD, hived
from trainyard.fleet.policies.hived.virtual import Layout, Quotas
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.records import FleetRun
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.report.fleet_league import devices_table


def times(run: FleetRun) -> dict[str, float]:
    return dict(zip(run.names, run.completion_s.tolist(), strict=True))


def test_one_tenant_does_not_fragment_anothers_nodes() -> None:
    """Two nodes, one for each of two tenants. With quotas of devices alone, small jobs of both lie on both nodes, and
    when one tenant's have ended it has a node's worth of devices, but no node."""
    cluster = Cluster.uniform(2, 8)
    small = [
        declared_job(f"{owner} {i}", i, 1, length_s, virtual_cluster=owner)
        for i in range(8)
        for owner, length_s in (("one", 1000), ("two", 50))
    ]
    large = declared_job("large", 100, 8, 10, virtual_cluster="two")
    quota = times(simulate_fleet([*small, large], cluster, fifo()))
    cells = times(simulate_fleet([*small, large], cluster, hived(quotas=(("one", 8, 1), ("two", 8, 1)))))
    assert quota["large"] > 900
    assert cells == {**quota, "large": 10}


def workload(seed: int, owners: tuple[str, ...] = ("one", "two")) -> list[Job]:
    """Jobs of some virtual clusters: the same ones, whether there are others or not."""
    draw = np.random.default_rng(seed)
    jobs = []
    for i in range(60):
        owner, guaranteed = str(draw.choice(["one", "two"])), bool(draw.random() < 0.6)
        size, length_s = int(draw.choice([1, 1, 2, 3, 4, 8])), float(draw.uniform(50, 500))
        rest = {"virtual_cluster": owner, "guaranteed": guaranteed, "priority": int(draw.integers(3))}
        if owner in owners:
            jobs.append(declared_job(f"{owner}{i}", 10.0 * i, size, length_s, **rest))
    return jobs


QUOTAS = (("one", 8, 2), ("one", 4, 1), ("two", 8, 1))


@st.composite
def quotas(draw: st.DrawFn) -> Quotas:
    """Cells of all sizes that four nodes of eight devices have, and at least a node for each of two tenants."""
    found, left = [("one", 8, 1), ("two", 8, 1)], 16
    for size in sorted(draw(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=12)), reverse=True):
        if size <= left:
            found.append((draw(st.sampled_from(["one", "two"])), size, 1))
            left -= size
    return tuple(found)


@settings(max_examples=25)
@given(quotas(), st.integers(0, 2**32))
def test_a_virtual_cluster_is_as_good_as_a_private_one(shares: Quotas, seed: int) -> None:
    """Sharing safety: guaranteed jobs of a tenant end as if there were neither others nor opportunistic jobs."""
    cluster = Cluster.uniform(4, 8)
    private = [job for job in workload(seed, ("one",)) if job.guaranteed]
    alone = times(simulate_fleet(private, cluster, hived(quotas=shares)))
    shared = times(simulate_fleet(workload(seed), cluster, hived(quotas=shares)))
    assert {name: shared[name] for name in alone} == alone


@pytest.mark.parametrize("seed", range(5))
def test_opportunistic_jobs_use_what_is_idle_and_delay_no_guaranteed_one(seed: int) -> None:
    cluster, jobs = Cluster.uniform(4, 8), workload(seed)
    guaranteed = simulate_fleet([job for job in jobs if job.guaranteed], cluster, hived(quotas=QUOTAS))
    together = simulate_fleet(jobs, cluster, hived(quotas=QUOTAS))
    assert {name: times(together)[name] for name in guaranteed.names} == times(guaranteed)
    assert together.busy > guaranteed.busy
    assert together.num_preemptions > guaranteed.num_preemptions


def test_cells_are_taken_in_their_order_as_in_the_authors_program() -> None:
    """Not from the least urgent job: that loses its cell to the one that lost its own, and both restart."""
    jobs = [
        declared_job("middle", 0.0, 4, 1000.0, priority=5),
        declared_job("low", 0.0, 4, 1000.0, priority=0),
        declared_job("high", 100.0, 4, 1000.0, priority=10),
    ]
    run = simulate_fleet(jobs, Cluster.uniform(1, 8), hived())
    assert times(run) == {"middle": 1000.0, "high": 1000.0, "low": 1900.0}
    assert dict(zip(run.names, run.num_starts.tolist(), strict=True)) == {"middle": 2, "high": 1, "low": 2}
    assert (run.num_preemptions, run.num_moves) == (1, 1)
    (columns, rows) = devices_table([run])
    assert dict(zip(columns, rows[0], strict=True))["moved"] == "1"


def test_wrong_settings() -> None:
    with pytest.raises(FleetError, match="not both"):
        hived("some.yaml", QUOTAS)
    with pytest.raises(FleetError, match="cells of 3 devices; there are cells of 1, 2, 4, 8"):
        hived(quotas=(("one", 3, 1),)).start(Cluster.uniform(1, 8))
    with pytest.raises(
        FleetError, match="5 cells of type device-8; beside pinned and larger ones device-8 has room for 4"
    ):
        hived(quotas=(("one", 8, 5),)).start(Cluster.uniform(4, 8))
    layout = Layout.of_cluster(Cluster.uniform(4, 8))
    with pytest.raises(FleetError, match="take the `cluster` of the layout"):
        HiveD(layout).start(Cluster.uniform(8, 4))

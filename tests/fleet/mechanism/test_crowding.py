"""Jobs that share a node slow each other, as much as they use of it together."""

from __future__ import annotations

import pytest
from runs import finished

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.queues import fifo, srtf
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster


def ends_s(jobs: list[Job], cluster: Cluster, crowding: Crowding, place: str = "packed") -> dict[str, float]:
    run = simulate_fleet(jobs, cluster, fifo(), place=place, crowding=crowding)
    return finished(run)


def test_two_jobs_on_one_core_take_twice_as_long_while_both_run() -> None:
    jobs = [declared_job("long", 0.0, 1, 100.0), declared_job("short", 20.0, 1, 10.0)]
    found = ends_s(jobs, Cluster.uniform(1, 2), Crowding(1.0))
    # The short one needs 20 s at half speed, in which the long one does 10 s of its work.
    assert found == pytest.approx({"short": 40.0, "long": 110.0})


def test_starting_takes_longer_beside_others_too() -> None:
    jobs = [declared_job(name, 0.0, 1, 10.0) for name in "ab"]
    run = simulate_fleet(
        jobs, Cluster.uniform(1, 2), fifo(), costs=Costs(start_s=4.0), crowding=Crowding(1.0)
    )
    assert run.finish_s.tolist() == [28.0, 28.0]


def test_a_job_does_not_crowd_itself() -> None:
    assert ends_s([declared_job("wide", 0.0, 4, 100.0)], Cluster.uniform(1, 4), Crowding(2.0)) == {
        "wide": 100.0
    }


def test_a_wide_job_loses_less_to_a_narrow_one_than_the_other_way_round() -> None:
    jobs = [declared_job("wide", 0.0, 3, 30.0), declared_job("narrow", 0.0, 1, 10.0)]
    found = ends_s(jobs, Cluster.uniform(1, 4), Crowding(2.0))
    # Four devices at work where two would be fast: the narrow one at 1/2, the wide one, measured at 2/3 of its devices'
    # speed, at 3/4 of that.
    assert found == pytest.approx({"narrow": 20.0, "wide": 20.0 + (30.0 - 15.0)})


def test_nodes_do_not_slow_each_other() -> None:
    jobs = [declared_job("a", 0.0, 1, 10.0), declared_job("b", 0.0, 1, 10.0)]
    assert ends_s(jobs, Cluster.uniform(2, 1), Crowding(1.0)) == pytest.approx({"a": 10.0, "b": 10.0})


@pytest.mark.parametrize(("only_places", "end_s"), [(False, 15.0), (True, 10.0)])
def test_jobs_on_one_device_do_not_slow_each_other_where_devices_are_only_places(
    only_places: bool, end_s: float
) -> None:
    # A guaranteed job that keeps its device busy for 3/4, and one that needs it for 1/2 and has the rest until then.
    jobs = [
        declared_job("a", 0.0, 1, 10.0, busy=0.75),
        declared_job("b", 0.0, 1, 10.0, busy=0.5, guaranteed=False),
    ]
    run = simulate_fleet(jobs, Cluster.uniform(1, 1), AntMan(), crowding=Crowding(only_places=only_places))
    assert run.finish_s.tolist() == pytest.approx([10.0, end_s])


def test_a_job_over_nodes_goes_at_the_pace_of_the_slowest() -> None:
    jobs = [declared_job("both", 0.0, 2, 20.0), declared_job("one", 0.0, 1, 5.0)]
    found = ends_s(jobs, Cluster.uniform(2, 2), Crowding(1.0), place="spread")
    assert found == pytest.approx({"one": 10.0, "both": 25.0})


def test_it_is_told_apart_from_restarts_and_preemption() -> None:
    jobs = [declared_job("first", 0.0, 2, 50.0), declared_job("urgent", 10.0, 2, 5.0)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 2), srtf(), crowding=Crowding(1.0))
    assert finished(run) == {"urgent": 15.0, "first": 55.0}


def test_enough_devices_is_no_interference() -> None:
    assert not Crowding().is_there
    jobs = [declared_job(name, 0.0, 1, 10.0) for name in "ab"]
    assert ends_s(jobs, Cluster.uniform(1, 2), Crowding(2.0)) == {"a": 10.0, "b": 10.0}


def test_none_at_all_is_refused() -> None:
    with pytest.raises(FleetError, match="more than 0 devices"):
        Crowding(0.0)

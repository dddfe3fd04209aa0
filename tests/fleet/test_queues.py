"""Queue disciplines on the inputs of Tiresias' simulator, against its own outputs."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import pytest
from runs import finished
from shared_data import DATA

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo, las, sjf, srtf
from trainyard.fleet.policy import Priority
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Job, by_arrival, declared_job
from trainyard.fleet.workload.speeds import Speeds
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster
from trainyard.reading.arguments import WrongTypeError

CLUSTERS = {"60_job.csv": Cluster.uniform(4, 4), "cluster01_job.csv": Cluster.uniform(32, 4)}
POLICIES: dict[str, Callable[[], Priority]] = {
    "fifo": fifo,
    "fjf": lambda: fifo(backfill=True),
    "shortest": lambda: srtf(steady=True),
    "shortest-gpu": lambda: srtf(by_device_time=True, steady=True),
}


def published() -> list[tuple[str, str, float, float, int]]:
    if not DATA.exists():
        return []
    with (DATA / "reference" / "fleet" / "tiresias.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["schedule"] in POLICIES]
    return [
        (r["trace"], r["schedule"], float(r["avg_jct_s"]), float(r["makespan_s"]), int(r["preemptions"]))
        for r in rows
    ]


@pytest.mark.parametrize(("trace", "name", "completion_s", "makespan_s", "preemptions"), published())
def test_as_the_authors_simulator(
    trace: str, name: str, completion_s: float, makespan_s: float, preemptions: int
) -> None:
    with (DATA / "cluster" / "tiresias" / trace).open() as file:
        jobs = by_arrival(
            [
                declared_job(r["job_id"], float(r["submit_time"]), int(r["num_gpu"]), float(r["duration"]))
                for r in csv.DictReader(file)
            ]
        )
    run = simulate_fleet(jobs, CLUSTERS[trace], POLICIES[name](), place="anywhere")
    assert run.mean_completion_s == pytest.approx(completion_s, abs=1e-3)
    assert run.makespan_s == makespan_s
    assert run.num_preemptions == preemptions


def test_a_blocked_queue_is_looked_at_again_when_devices_become_free() -> None:
    """Not before; and when it is not blocked any more, as many may be free as when it was."""
    jobs = [declared_job("a", 0.0, 3, 10.0), declared_job("blocks", 1.0, 2, 50.0)]
    jobs += [declared_job("late", 3.0, 1, 50.0), declared_job("later", 11.0, 1, 5.0)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4), fifo())
    assert dict(zip(run.names, run.first_start_s, strict=True)) == {
        "a": 0,
        "blocks": 10,
        "late": 10,
        "later": 11,
    }
    assert run.num_decisions == 4


def test_shortest_waiting_job_goes_first_and_nothing_is_taken_away() -> None:
    jobs = [declared_job("a", 0, 1, 9), declared_job("b", 1, 1, 5), declared_job("c", 2, 1, 3)]
    assert simulate_fleet(jobs, Cluster.uniform(1, 1), sjf()).names == ("a", "c", "b")


def test_least_attained_service_shares_in_turns() -> None:
    jobs = [declared_job("a", 0, 1, 2), declared_job("b", 0, 1, 2), declared_job("c", 0, 1, 1)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 1), las(quantum_s=1.0))
    assert finished(run) == {"c": 3.0, "a": 4.0, "b": 5.0}


def stepping(name: str, arrival_s: float, steps: int, **steps_per_s: float) -> Job:
    """A job of one device that does so many steps in a second, by device type."""
    speeds = tuple((kind, 1, rate) for kind, rate in steps_per_s.items())
    return Job(name, arrival_s, 1, float(steps), Speeds(speeds))


def training(name: str, arrival_s: float, steps: int, **steps_per_s: float) -> Job:
    """The same as a training, which is of the kind that adapts itself."""
    trains = Training("gpt-tiny", 4, steps)
    return training_job(name, arrival_s, 1, trains, Predicted(trains, {1: steps_per_s["V100"]}))


JOBS_OF = pytest.mark.parametrize("job", [stepping, training])


@JOBS_OF
@pytest.mark.parametrize("policy", [sjf(), srtf(), srtf(by_device_time=True)])
def test_the_shortest_job_takes_least_time_and_not_fewest_steps(
    job: Callable[..., Job], policy: Priority
) -> None:
    jobs = [job("slow", 0, 100, V100=1.0), job("quick", 0, 1000, V100=100.0)]
    assert finished(simulate_fleet(jobs, parse_cluster("1x1xV100"), policy)) == {"quick": 10, "slow": 110}


@JOBS_OF
@pytest.mark.parametrize(("steps", "first"), [(400, "quick"), (600, "slow")])
def test_what_a_running_job_has_done_counts(job: Callable[..., Job], steps: int, first: str) -> None:
    """When the quick one comes, the slow one would take 50 s more, and the quick one 40 s or 60 s."""
    jobs = [job("slow", 0, 100, V100=1.0), job("quick", 50, steps, V100=10.0)]
    assert simulate_fleet(jobs, parse_cluster("1x1xV100"), srtf()).names[0] == first


class Watched(PolicyWrapper):
    """Notes how long jobs still take when they are decided on."""

    def __init__(self, policy: Priority) -> None:
        super().__init__(policy)
        self.left_s: list[list[float]] = []

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        self.left_s.append(snapshot.left_s.tolist())
        return super().decide(snapshot, state)


@pytest.mark.parametrize("policy", [sjf(), srtf()])
def test_on_several_types_the_fastest_one_counts(policy: Priority) -> None:
    """On the first type the last job would be the longest; one that runs nowhere is behind all."""
    jobs = [stepping("nowhere", 0, 1, P100=1.0), stepping("even", 0, 30, K80=1.0, V100=1.0)]
    jobs += [declared_job("declared", 0, 1, 20.0), stepping("varied", 0, 100, K80=1.0, V100=10.0)]
    watched = Watched(policy)
    with pytest.raises(FleetError, match="waiting for ever, 'nowhere' first"):
        simulate_fleet(jobs, parse_cluster("1x1xK80+1x1xV100"), watched)
    assert watched.left_s[0] == [float("inf"), 30.0, 20.0, 10.0]


def test_every_type_has_a_queue_unless_there_is_one_for_all() -> None:
    """A job of one type does not wait behind those that wait for another, as under Slurm with a partition for each."""
    cluster = parse_cluster("1x2xA100+1x2xV100")
    jobs = [
        declared_job("a", 0, 2, 100, device_types=("A100",)),
        declared_job("b", 1, 2, 100, device_types=("A100",)),
        declared_job("c", 2, 2, 10, device_types=("V100",)),
        declared_job("either", 3, 1, 10),
    ]
    assert finished(simulate_fleet(jobs, cluster, fifo())) == {"a": 100, "c": 12, "b": 200, "either": 22}
    one = finished(simulate_fleet(jobs, cluster, fifo(one_queue=True)))
    assert one == {"a": 100, "b": 200, "c": 110, "either": 120}


def test_easy_has_a_reservation_for_every_type_unless_there_is_one_queue() -> None:
    cluster = parse_cluster("1x2xA100+1x4xV100")
    jobs = [
        declared_job(name, arrival_s, size, length_s, device_types=(kind,), limit_s=length_s)
        for name, kind, arrival_s, size, length_s in (
            ("a", "A100", 0.0, 2, 100.0),
            ("first", "A100", 1.0, 2, 100.0),
            ("b", "V100", 2.0, 3, 100.0),
            ("wide", "V100", 3.0, 4, 100.0),
            ("long", "V100", 4.0, 1, 500.0),
        )
    ]
    each, one = (
        simulate_fleet(jobs, cluster, fifo(backfill="easy", one_queue=is_one)) for is_one in (False, True)
    )
    assert finished(each) == {"a": 100, "first": 200, "b": 102, "wide": 202, "long": 702}
    assert finished(one) == {"a": 100, "first": 200, "b": 102, "wide": 604, "long": 504}
    assert (each.queues, one.queues) == ("one per device type", "one")


def test_nothing_is_taken_for_a_job_that_can_have_a_type_that_is_free() -> None:
    jobs = [declared_job("long", 0, 2, 300, device_types=("A100",)), declared_job("either", 190, 1, 10)]
    run = simulate_fleet(jobs, parse_cluster("1x2xA100+1x1xV100"), srtf())
    assert finished(run) == {"either": 200, "long": 300}
    # Where none is free, the first type is: the job that needs both devices of it waits.
    jobs.insert(1, declared_job("other", 100, 1, 200, device_types=("V100",)))
    run = simulate_fleet(jobs, parse_cluster("1x2xA100+1x1xV100"), srtf())
    assert finished(run) == {"either": 200, "other": 300, "long": 310}


def test_easy_starts_jobs_without_a_limit() -> None:
    """Behind one that may run for ever, the third delays nobody; behind one that ends, it may."""
    jobs = [declared_job("a", 0, 2, 100), declared_job("b", 1, 4, 10), declared_job("c", 2, 1, 10)]
    limited = declared_job("d", 3, 1, 10, limit_s=20.0)
    easy = fifo(backfill="easy")
    assert finished(simulate_fleet(jobs, Cluster.uniform(1, 4), easy)) == {"a": 100, "b": 110, "c": 12}
    jobs[0] = declared_job("a", 0, 2, 100, limit_s=100.0)
    done = finished(simulate_fleet([*jobs, limited], Cluster.uniform(1, 4), easy))
    assert done == {"a": 100, "b": 110, "c": 120, "d": 13}


def test_jobs_of_a_preemptible_partition_lose_what_others_need() -> None:
    """The last to come loses first, nobody in vain, and they come back when others have ended."""
    jobs = [
        declared_job("low", 0.0, 2, 100.0, virtual_cluster="night"),
        declared_job("later", 1.0, 2, 100.0, virtual_cluster="night"),
        declared_job("fits", 2.0, 4, 10.0, virtual_cluster="day"),
        declared_job("urgent", 5.0, 2, 50.0),
        declared_job("all", 6.0, 8, 5.0, virtual_cluster="day"),
        declared_job("small", 7.0, 2, 20.0, virtual_cluster="night"),
    ]
    run = simulate_fleet(jobs, parse_cluster("2x4"), fifo(True, preemptible=("night",)), keep_spans=True)
    assert run.spans is not None
    had = [(span.job, span.start_s, span.end_s) for span in run.spans]
    assert sorted(had) == [
        ("all", 55.0, 60.0),
        ("fits", 2.0, 12.0),
        ("later", 1.0, 5.0),
        ("later", 12.0, 55.0),
        ("later", 60.0, 113.0),
        ("low", 0.0, 55.0),
        ("low", 60.0, 105.0),
        ("small", 12.0, 32.0),
        ("urgent", 5.0, 55.0),
    ]


def test_a_preemptible_partition_goes_with_first_fit() -> None:
    with pytest.raises(FleetError, match=r"preemptible=.*with backfill='easy'; allowed is backfill=True"):
        fifo("easy", preemptible=("night",))
    with pytest.raises(WrongTypeError, match="preemptible is the string 'night'; allowed is a list of names"):
        fifo(True, preemptible="night")  # type: ignore[arg-type]

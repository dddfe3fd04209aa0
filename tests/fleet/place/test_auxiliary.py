"""Jobs that ask for processors and memory, on nodes that say what they have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from runs import finished

from trainyard.fleet.errors import FleetError
from trainyard.fleet.place.auxiliary import memory_in_doubt, whole_nodes_in_doubt
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Job, by_arrival, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

CLUSTER = parse_cluster("2x4xA@16cpu,64GB+1x8xB@64cpu")


def simulated(
    jobs: Sequence[Job], cluster: Cluster, policy: str = "fifo", place: str = "consolidated"
) -> FleetRun:
    return scheduler_of(policy, place).simulate(jobs, cluster, keep_spans=True)


def drawn_jobs(chance: random.Random, count: int, *, most_cpus: float) -> tuple[Job, ...]:
    jobs = []
    for number in range(count):
        size = chance.choice([1, 1, 1, 2, 3, 4, 8])
        cpus = chance.choice([0.0, chance.uniform(0.5, most_cpus)])
        memory_bytes = chance.choice([0.0, chance.uniform(1e9, 16e9)])
        more = {"cpus": cpus * size, "memory_bytes": memory_bytes * size}
        jobs.append(declared_job(f"{number}", chance.uniform(0, 300), size, chance.uniform(1, 100), **more))
    return by_arrival(jobs)


def test_a_job_waits_for_processors_though_devices_are_free() -> None:
    """The first has 13 of 16, the others ask for no more than their four each."""
    jobs = [declared_job("wide", 0, 1, 10, cpus=13), declared_job("a", 1, 1, 10), declared_job("b", 2, 2, 10)]
    cluster = parse_cluster("1x4@16cpu")
    assert finished(simulated(jobs, cluster)) == {"wide": 10, "a": 20, "b": 20}
    assert finished(simulated(jobs, parse_cluster("1x4"))) == {"wide": 10, "a": 11, "b": 12}


def test_a_job_that_asks_for_less_leaves_more_to_others() -> None:
    jobs = [declared_job("narrow", 0, 2, 10, cpus=2), declared_job("wide", 0, 2, 10, cpus=14)]
    assert finished(simulated(jobs, parse_cluster("1x4@16cpu"))) == {"narrow": 10, "wide": 10}


def test_a_large_job_takes_as_many_nodes_as_give_it_what_it_asks_for() -> None:
    """Six processors with each device, so two devices of each node; `consolidated` does not wait for whole nodes."""
    run = simulated([declared_job("a", 0, 4, 10, cpus=24)], parse_cluster("2x4@16cpu"))
    (span,) = run.spans or ()
    assert span.devices == (0, 1, 4, 5)


def test_one_that_is_preempted_gives_back_what_it_had() -> None:
    """By devices both may run; by processors the more urgent one takes those of the other."""
    jobs = [declared_job("long", 0, 1, 100, cpus=16), declared_job("short", 10, 1, 10, cpus=16)]
    cluster = parse_cluster("1x2@16cpu")
    assert finished(simulated(jobs, cluster, "srtf")) == {"short": 20, "long": 110}
    assert finished(simulated([*jobs, declared_job("also", 12, 2, 5)], cluster, "srtf")) == {
        "also": 17,
        "short": 25,
        "long": 115,
    }


def test_it_is_said_where_gib_are_taken_for_gb() -> None:
    """Slurm's 60G with every device are GiB; eight of them are more than 480 GB."""
    jobs = [
        declared_job("whole", 0, 8, 10, memory_bytes=480 * 2**30),
        declared_job("less", 0, 1, 10, memory_bytes=1e9),
    ]
    assert "1 of 2, the first for 60 GiB" in memory_in_doubt(jobs, parse_cluster("2x8@480GB"))
    assert not memory_in_doubt(jobs, parse_cluster("2x8@480GiB"))
    assert not memory_in_doubt(jobs, parse_cluster("2x8@240GB"))  # that is another matter
    assert not memory_in_doubt(jobs, parse_cluster("2x8"))
    assert not whole_nodes_in_doubt(jobs, parse_cluster("2x8@480GB"))
    larger = declared_job("larger", 0, 1, 10, memory_bytes=120 * 2**30)
    said = memory_in_doubt([jobs[0], larger], parse_cluster("2x8@480GB+2x4@480GB"))
    assert "its share of a node, 60 GB" in said
    assert "2 of 2, the first for 60 GiB" in said


@pytest.mark.parametrize(
    ("cluster", "num_devices", "memory_gib", "is_in_doubt"),
    [
        ("2x8@96cpu", 8, 0, True),
        ("2x8@128cpu", 8, 0, False),
        ("2x8@128cpu,2000GB", 8, 2048, True),
        ("2x8@128cpu,2000GB", 16, 2048, False),
        ("3x8@96cpu,2000GB", 16, 4100, True),
        ("2x8@96cpu+1x8@128cpu", 8, 0, False),
        ("1x8@96cpu", 8, 0, False),  # it can never run, which is said otherwise
        ("2x4@64cpu", 8, 0, False),
        ("2x8@96cpu", 1, 0, False),
    ],
)
def test_it_is_said_where_jobs_of_a_node_fit_on_none(
    cluster: str, num_devices: int, memory_gib: int, is_in_doubt: bool
) -> None:
    job = declared_job("whole", 0, num_devices, 10, cpus=128, memory_bytes=memory_gib * 2.0**30)
    said = whole_nodes_in_doubt([job], parse_cluster(cluster))
    assert (f"1 of 1, the first, whole, for {num_devices} devices with 128 processors" in said) == is_in_doubt


@pytest.mark.parametrize(
    ("job", "cluster"),
    [
        (declared_job("a", 0, 1, 10, cpus=17), "2x4@16cpu"),
        (declared_job("a", 0, 1, 10, memory_bytes=65e9), "2x4@64GB"),
        (declared_job("a", 0, 8, 10, cpus=48), "2x4@16cpu"),
        (declared_job("a", 0, 1, 10, cpus=17, device_types=("A",)), "2x4xA@16cpu+1x4xB@32cpu"),
    ],
)
def test_more_than_nodes_have_is_refused(job: Job, cluster: str) -> None:
    with pytest.raises(FleetError, match=f"job 'a' asks for {job.num_devices} devices with .* Ask for less"):
        scheduler_of("fifo").simulate([job], parse_cluster(cluster), strict=True)
    simulated(
        [replace(job, device_types=())], parse_cluster("2x4")
    )  # where nodes do not say, all have enough


@pytest.mark.parametrize("place", ["consolidated", "packed", "anywhere", "spread"])
@pytest.mark.parametrize("policy", ["fifo", "sjf", "srtf", "las", "tiresias"])
def test_no_node_gives_more_than_it_has(policy: str, place: str) -> None:
    chance = random.Random(policy + place)
    for _ in range(5):
        jobs = {job.name: job for job in drawn_jobs(chance, 40, most_cpus=8.0)}
        run = simulated(list(jobs.values()), CLUSTER, policy, place)
        spans = run.spans or ()
        assert set(run.names) == set(jobs)
        for moment_s in {span.start_s for span in spans}:
            cpus, memory_bytes = [0.0] * 3, [0.0] * 3
            for span in spans:
                if span.start_s <= moment_s < span.end_s:
                    job = jobs[span.job]
                    for device in span.devices:
                        node = int(CLUSTER.node_of[device])
                        host = CLUSTER.nodes[node]
                        cpus[node] += job.cpus / job.num_devices or host.cpus / host.num_devices
                        memory_bytes[node] += job.memory_bytes / job.num_devices or 64e9 / host.num_devices
            assert all(used <= host.cpus + 1e-6 for used, host in zip(cpus, CLUSTER.nodes, strict=True))
            assert all(used <= 64e9 + 1.0 for used in memory_bytes[:2])


@pytest.mark.parametrize("place", ["consolidated", "packed", "anywhere", "spread"])
@pytest.mark.parametrize("policy", ["fifo", "sjf", "srtf", "las", "tiresias"])
def test_who_asks_for_a_proportional_share_runs_as_if_it_did_not_ask(policy: str, place: str) -> None:
    cluster = parse_cluster("4x4@16cpu")
    jobs = drawn_jobs(random.Random(policy + place), 60, most_cpus=4.0)
    plain = [replace(job, cpus=0.0, memory_bytes=0.0) for job in jobs]
    asking = [replace(job, cpus=4.0 * job.num_devices, memory_bytes=0.0) for job in jobs]
    first, second = (simulated(each, cluster, policy, place) for each in (plain, asking))
    assert finished(first) == finished(second)
    assert first.spans == second.spans

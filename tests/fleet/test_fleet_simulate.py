"""The simulator of the fleet level: time, costs, placement, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import finished

from trainyard.fleet.allocation import Allocation, Placed, Queue
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.place.nodes import PLACEMENTS
from trainyard.fleet.policies.queues import fifo, srtf
from trainyard.fleet.policy import Priority
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import Rounds, simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster


@dataclass(frozen=True)
class Scripted:
    """A policy that does what a function says."""

    says: Callable[[Snapshot], Allocation]
    needs: frozenset[Need] = field(default_factory=frozenset)
    preempts: bool = True

    def start(self, cluster: Cluster) -> None: ...

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        return self.says(snapshot), None


def test_a_queue_on_one_device() -> None:
    jobs = [declared_job("a", 0, 1, 10), declared_job("b", 1, 1, 5), declared_job("c", 2, 1, 1)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 1), fifo())
    assert finished(run) == {"a": 10, "b": 15, "c": 16}
    assert run.first_wait_s.tolist() == [0, 9, 13]
    assert run.busy == 1.0


def test_restarting_costs_time() -> None:
    """The long job is stopped for the short one, and loses two seconds when it has its device again."""
    jobs = [declared_job("long", 0, 1, 10), declared_job("short", 4, 1, 1)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 1), srtf(), costs=Costs(restart_s=2))
    assert finished(run) == {"long": 4 + 1 + 2 + 6, "short": 5}
    assert run.num_preemptions == 1


def test_starting_together_takes_longer() -> None:
    """Two start at once, and each waits for the other; the third starts alone."""
    jobs = [declared_job("a", 0, 1, 10), declared_job("b", 0, 1, 10), declared_job("c", 5, 1, 10)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 3), fifo(), costs=Costs(start_s=2, together_s=3))
    assert finished(run) == {"a": 2 + 3 + 10, "b": 2 + 3 + 10, "c": 5 + 2 + 10}


def test_starts_that_overlap_slow_each_other_for_as_long() -> None:
    jobs = [declared_job(name, start_s, 1, 100) for name, start_s in (("a", 0), ("b", 5), ("c", 30))]
    run = simulate_fleet(jobs, Cluster.uniform(1, 3), fifo(), costs=Costs(start_s=10, together_s=4))
    # Half of the first start is left when the second begins.
    assert finished(run) == {"a": 0 + 10 + 2 + 100, "b": 5 + 10 + 2 + 100, "c": 30 + 10 + 100}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["restart_s", "start_s", "together_s"])
def test_costs_are_times(name: str, value: float) -> None:
    with pytest.raises(FleetError, match=f"^{name} is a time from 0 to 1e\\+09 seconds, got {value:g}$"):
        Costs(**{name: value})


def test_rounds_begin_and_end_on_their_boundaries() -> None:
    jobs = [declared_job("a", 5, 1, 30), declared_job("b", 130, 1, 60)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 1), fifo(), rounds=Rounds(60))
    assert run.first_start_s.tolist() == [60, 180]
    assert finished(run) == {"a": 90, "b": 240}


def test_refused_jobs_are_told_why() -> None:
    def says(s: Snapshot) -> Allocation:
        big = [i for i in range(s.num_jobs) if s.num_devices[i] > 1]
        return Allocation(
            Queue(np.array([i for i in range(s.num_jobs) if i not in big], np.int64)),
            refused=dict.fromkeys(big, "too wide"),
        )

    run = simulate_fleet(
        [declared_job("a", 0, 2, 5), declared_job("b", 0, 1, 5)], Cluster.uniform(1, 2), Scripted(says)
    )
    assert run.refused == (("a", "too wide"),)
    assert run.names == ("b",)


NOTHING = Allocation(Queue(np.zeros(0, np.int64)))


@pytest.mark.parametrize(
    ("jobs", "policy", "message"),
    [
        ([declared_job("wide", 0, 9, 1)], fifo(), "'wide' asks for 9 devices .* has 4"),
        ([declared_job("a", 5, 1, 1), declared_job("b", 2, 1, 1)], fifo(), "'b' arrives at 2 s, before 'a'"),
        ([declared_job("a", 0, 1, 1)], Scripted(lambda s: NOTHING), "waiting for ever, 'a' first"),
        (
            [declared_job("a", 0, 1, 1)],
            Scripted(lambda s: Allocation(Queue(np.zeros(1, np.int64)), s.now_s)),
            "give a later time",
        ),
        ([declared_job("a", 0, 1, 1)], Priority(lambda s: s.left), "must declare it in `needs`"),
        (
            [declared_job("a", 0, 1, 1), declared_job("b", 0, 1, 1)],
            Scripted(lambda s: Allocation(Placed(np.arange(s.num_jobs), [(0,)] * s.num_jobs))),
            "device 0 out 2 times, to jobs a, b",
        ),
        *(
            ([declared_job("a", 0, 1, 1)], Scripted(lambda s, given=given: Allocation(given)), message)
            for given, message in (
                (np.zeros(1, np.int64), "gives a ndarray; give a Queue, Placed or TimeFractions"),
                (Queue(np.array([1])), "names job 1; jobs of this snapshot are 0 to 0"),
                (Queue(np.array([-1])), "names job -1; jobs of this snapshot are 0 to 0"),
                (Queue(np.array([0, 0])), "names job 'a' twice"),
                (
                    Queue(np.array([0]), np.array([1, 1])),
                    "names 1 jobs, and num_devices of 2; give each its own",
                ),
                (Placed(np.array([0]), []), "names 1 jobs, and devices of 0; give each its own"),
            )
        ),
    ],
)
def test_what_cannot_be_is_refused(jobs: list[Job], policy: Any, message: str) -> None:
    with pytest.raises(FleetError, match=message):
        simulate_fleet(jobs, Cluster.uniform(1, 4), policy, strict=True)


def test_jobs_run_on_the_types_that_they_can_run_on() -> None:
    jobs = [
        declared_job("a", 0, 1, 10, device_types=("K80",)),
        declared_job("b", 0, 1, 10, device_types=("K80",)),
    ]
    run = simulate_fleet(jobs, parse_cluster("1x4xV100+1x1xK80"), fifo(backfill=True), keep_spans=True)
    assert finished(run) == {"a": 10, "b": 20}
    assert {span.devices for span in run.spans} == {(4,)}


def test_cluster_reads_its_text() -> None:
    cluster = parse_cluster("2x8xV100+4x4xK80")
    assert (cluster.num_devices, cluster.device_types, cluster.devices_of_type.tolist()) == (
        32,
        ("V100", "K80"),
        [16, 16],
    )


@pytest.mark.parametrize(
    ("policy", "restart_s"),
    [("las", 60.0), ("gandiva(pack=False)", 60.0), ("gavel_max_min", 360.0), ("synergy(order='las')", 310.0)],
)
def test_jobs_that_restart_for_ever(policy: str, restart_s: float) -> None:
    """Where they lose their devices while they restart; a little sooner, they end, if late."""
    jobs, cluster, scheduler = (
        [declared_job(name, 0.0, 1, 1000.0) for name in "ab"],
        Cluster.uniform(1, 1),
        scheduler_of(policy),
    )
    with pytest.raises(FleetError, match=r"2 jobs were started \d+ times in a row and did no work"):
        scheduler.simulate(jobs, cluster, costs=Costs(restart_s, restart_s))
    assert len(scheduler.simulate(jobs, cluster, costs=Costs(0.5 * restart_s, 0.5 * restart_s)).names) == 2


@pytest.mark.parametrize(
    ("cluster", "num_jobs", "length_s", "policy", "restart_s", "hazards"),
    [
        # Nodes fail so often that whenever anybody looks, jobs stand at their last checkpoint.
        (Cluster.uniform(1, 8), 8, 3600.0, "fifo", 0.0, Hazards(node_failure_every_s=80.0, node_repair_s=10.0)),
        # Two jobs take turns for as long as one of two nodes is away.
        (Cluster.uniform(2, 1), 2, 7200.0, "las", 90.0,
         Hazards(node_failure_every_s=4 * 3600.0, node_repair_s=3 * 86400.0, seed=6)),
    ],
)  # fmt: skip
def test_jobs_that_start_often_and_end(
    cluster: Cluster, num_jobs: int, length_s: float, policy: str, restart_s: float, hazards: Hazards
) -> None:
    jobs = [declared_job(str(n), 0.0, 1, length_s) for n in range(num_jobs)]
    run = scheduler_of(policy).simulate(jobs, cluster, costs=Costs(restart_s), hazards=hazards)
    assert len(run.names) == num_jobs


def test_a_device_that_jobs_share_is_in_use_once() -> None:
    jobs = [
        declared_job("a", 0.0, 1, 100.0, 0.3),
        replace(declared_job("b", 0.0, 1, 100.0, 0.3), guaranteed=False),
    ]
    run = scheduler_of("antman").simulate(jobs, Cluster.uniform(1, 1))
    assert run.device_s.sum() > run.makespan_s, "they share no device"
    assert run.busy == pytest.approx(1.0)
    assert run.busy_device_s == pytest.approx(run.makespan_s)


def test_whole_numbers_of_seconds_are_compiled_for_as_others_are() -> None:
    job, costs = declared_job("a", 3, 1, 100, weight=2), Costs(60, 30, 1)
    found = (job.arrival_s, job.work, job.weight, costs.restart_s, costs.start_s, costs.together_s)
    assert found == (3.0, 100.0, 2.0, 60.0, 30.0, 1.0)
    assert {type(value) for value in found} == {float}


@pytest.mark.parametrize("round_s", [0.0, -1.0, float("nan"), float("inf")])
def test_rounds_that_are_none(round_s: float) -> None:
    with pytest.raises(FleetError, match=r"a round lasts from 0\.001 s to 1e\+09 s; got"):
        scheduler_of("gavel_max_min", round_s=round_s)


JOBS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 8), st.integers(1, 30)), min_size=1, max_size=25
).map(lambda rows: [declared_job(str(i), float(a), n, float(s)) for i, (a, n, s) in enumerate(sorted(rows))])


@settings(max_examples=60)
@given(
    JOBS,
    st.sampled_from(sorted(PLACEMENTS)),
    st.sampled_from([fifo(), fifo(backfill=True), srtf()]),
    st.sampled_from([None, Rounds(7.0)]),
)
def test_no_device_has_two_jobs_and_all_work_is_done(
    jobs: list[Job], place: str, policy: Priority, rounds: Rounds | None
) -> None:
    cluster = Cluster.uniform(2, 4)
    run = simulate_fleet(jobs, cluster, policy, place=place, rounds=rounds, keep_spans=True)
    assert sorted(run.names) == sorted(job.name for job in jobs)
    by_device: dict[int, list[tuple[float, float]]] = {}
    work: dict[str, float] = {}
    for span in run.spans:
        work[span.job] = work.get(span.job, 0.0) + span.end_s - span.start_s
        for device in span.devices:
            by_device.setdefault(device, []).append((span.start_s, span.end_s))
    for spans in by_device.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))
    assert work == pytest.approx({job.name: job.work for job in jobs})
    again = simulate_fleet(jobs, cluster, policy, place=place, rounds=rounds, keep_spans=True)
    assert again.spans == run.spans


def test_unfairness_is_against_an_equal_share() -> None:
    """Two gangs of the whole cluster: in turn one has half of its fair time, the other all; a lone job has its own."""
    cluster = Cluster.uniform(1, 4)
    run = simulate_fleet(
        [declared_job("a", 0.0, 4, 100.0), declared_job("b", 0.0, 4, 100.0)], cluster, fifo()
    )
    # b is there with a for 100 s and alone for 100 s: 1.5 jobs on average.
    assert run.fair_s.tolist() == [200.0, 150.0]
    assert run.unfairness.tolist() == pytest.approx([0.5, 200 / 150])
    alone = simulate_fleet([declared_job("a", 5.0, 1, 100.0)], cluster, fifo())
    assert alone.unfairness.tolist() == [1.0]


def test_a_job_without_work_is_treated_fairly() -> None:
    """It takes no time with any share, also if it has to wait for devices."""
    jobs = [declared_job("a", 0.0, 1, 0.0), declared_job("b", 0.0, 4, 10.0), declared_job("c", 0.0, 4, 0.0)]
    run = simulate_fleet(jobs, Cluster.uniform(1, 4), fifo())
    assert dict(zip(run.names, run.unfairness.tolist(), strict=True)) == {"a": 1.0, "b": 0.5, "c": 1.0}
    assert (run.worst_unfairness, run.wronged) == (1.0, 0.0)

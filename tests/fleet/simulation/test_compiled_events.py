"""Policies that decide in Python while jobs come and end in compiled code: the same run as step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leases import Lending
from restless import Restless
from step_by_step import MIXED, by_steps, check_same, crowded
from test_fleet_mixed import TUNED

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.policy import Policy, Priority
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.simulation.compiled_events import Clock, CompiledEvents
from trainyard.fleet.simulation.run_progress import ProgressCheck
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

NUM_JOBS = 80
EXAMPLES = Path(__file__).parents[3] / "examples" / "fleet"


@dataclass(frozen=True)
class Loops:
    """Looks at every job; of those that have waited for long, it refuses one after the other."""

    needs: frozenset[Need] = frozenset({"limit"})
    preempts: bool = False

    def start(self, cluster: Cluster) -> int:
        return 0

    def decide(self, snapshot: Snapshot, state: int) -> tuple[Allocation, int]:
        order = sorted(range(snapshot.num_jobs), key=lambda i: (snapshot.jobs[i].num_devices, -i))
        late = {i: "too late" for i in order if snapshot.waiting_s[i] > 6000.0 and (i + state) % 5 == 0}
        queue = Queue(np.array([i for i in order if i not in late], np.int64))
        return Allocation(queue, ask_again_s=snapshot.now_s + 90.0, refused=late), state + 1


POLICIES: dict[str, Callable[[], Policy]] = {
    "loops": Loops,
    "restless": Restless,
    "lending": lambda: Lending(500.0),
    "lending anew": lambda: Lending(500.0, preempts=True),
    "fair": lambda: parse_policy(f"{EXAMPLES}/fair.py:Shares"),
    "finish time": lambda: parse_policy(f"{EXAMPLES}/finish_time.py:FinishTime"),
    "narrowest first": lambda: Priority(lambda s: s.num_devices.astype(float)),
    "in turn": lambda: Priority(lambda s: s.arrival_s, backfill=False, in_turn=True),
    **{
        name: lambda name=name: parse_policy(name)
        for name in ("srtf(steady=True)", "edf", "gandiva", "antman")
    },
}


QUICK = ("loops", "restless", "lending anew")


def wishing(jobs: list[Job]) -> list[Job]:
    """Some jobs are ended after a time, some have limits and deadlines, and some ask for processors."""
    return [
        replace(
            job,
            killed_after_s=400.0 if number % 7 == 0 else None,
            limit_s=900.0 if number % 3 == 0 else None,
            deadline_s=job.arrival_s + 3000.0 if number % 4 == 0 else None,
            cpus=5.0 * job.num_devices if number % 5 == 0 else 0.0,
        )
        for number, job in enumerate(jobs)
    ]


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Moments that were over whenever compiled code went on."""
    found: list[int] = []
    go_on = CompiledEvents.next

    def noted(self: CompiledEvents, clock: Clock) -> int:
        found.append(clock.num_moments)
        return go_on(self, clock)

    monkeypatch.setattr(CompiledEvents, "next", noted)
    return found


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES],
)
@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (MIXED, {"costs": Costs(restart_s=30.0, start_s=10.0)}),
        (parse_cluster("4x8@32cpu,64GB"), {"keep_spans": True, "costs": Costs(5.0, 0.0, 3.0)}),
    ],
    ids=["mixed", "processors"],
)
def test_it_is_the_same_run(
    name: str,
    cluster: Cluster,
    options: dict[str, Any],
    moments: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "gandiva":  # jobs take turns that are as short as a restart
        monkeypatch.setattr(ProgressCheck, "look_every", 1000)
    jobs = wishing(crowded(NUM_JOBS))
    if name == "edf":  # it is for one type
        cluster = parse_cluster("5x8")
    if len(cluster.device_types) == 1:
        jobs = [replace(job, device_types=()) for job in jobs]
    run = simulate_fleet(jobs, cluster, POLICIES[name](), **options)
    assert moments[0] == 20
    assert moments[-1] > NUM_JOBS
    moments.clear()
    check_same(run, by_steps(jobs, cluster, POLICIES[name](), **options))
    assert not moments
    assert len(run.names) + len(run.refused) == NUM_JOBS
    assert run.is_killed.any()


def test_jobs_that_adapt_themselves_and_gangs_come_and_end(moments: list[int]) -> None:
    """Also on overlapping partitions, and with jobs that are left out on the way."""
    nodes = (("a", frozenset({0, 1})), ("b", frozenset({1, 2, 3})))
    cluster = replace(parse_cluster("4x8"), partitions=nodes)
    jobs = [
        replace(job, device_types=(), virtual_cluster=("a", "b", "")[i % 3])
        for i, job in enumerate(crowded(NUM_JOBS))
    ]
    for number in range(10, NUM_JOBS, 10):
        jobs[number] = replace(jobs[number], num_devices=1, profile=TUNED, work=9000.0)
        jobs[number + 1] = replace(jobs[number + 1], num_devices=4, gang=(2, 2))
        jobs[number + 2] = replace(jobs[number + 2], num_devices=100)
    run = simulate_fleet(jobs, cluster, parse_policy("srtf(steady=True)"))
    assert moments
    check_same(run, by_steps(jobs, cluster, parse_policy("srtf(steady=True)")))
    assert len(run.left_out) > 5


def test_jobs_that_run_already_come_in_python(moments: list[int]) -> None:
    """Between others that come in compiled code, and as the last one."""
    jobs = [
        replace(job, ran_s=100.0 if number in (40, 41, 60, NUM_JOBS - 1) else 0.0)
        for number, job in enumerate(crowded(NUM_JOBS))
    ]
    given = jobs, Cluster.of_pools([("V100", 20, 8), ("K80", 20, 4)]), Loops()
    run = simulate_fleet(*given, costs=Costs(start_s=10.0))
    assert moments[-1] > 60
    moments.clear()
    check_same(run, by_steps(*given, costs=Costs(start_s=10.0)))
    assert not moments


def test_usage_is_counted_in_python(moments: list[int]) -> None:
    jobs = [replace(job, user=f"user{number % 3}") for number, job in enumerate(crowded(NUM_JOBS))]
    run = simulate_fleet(jobs, MIXED, parse_policy("fair_share"))
    assert not moments
    check_same(run, by_steps(jobs, MIXED, parse_policy("fair_share")))


def test_jobs_of_a_snapshot_are_the_same_objects_at_every_decision() -> None:
    """A row of the table is another job's later."""
    seen: dict[int, object] = {}

    def key(snapshot: Snapshot) -> Any:
        for serial, job in zip(snapshot.serial.tolist(), snapshot.jobs, strict=True):
            assert seen.setdefault(serial, job) is job
            assert job.name == f"job{serial}"
        return snapshot.num_devices.astype(float)

    jobs = [replace(job, name=f"job{number}") for number, job in enumerate(crowded(NUM_JOBS))]
    simulate_fleet(jobs, MIXED, Priority(key, preempts=True))
    assert len(seen) == NUM_JOBS

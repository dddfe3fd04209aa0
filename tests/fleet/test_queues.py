"""Queue disciplines on the inputs of Tiresias' simulator, against its own outputs."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import finished

from trainyard.fleet.policies.queues import fifo, las, sjf, srtf
from trainyard.fleet.policy import Priority
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.site import Site
from trainyard.fleet.workload.job import by_arrival, declared_job

DATA = Path(__file__).parents[3] / "shared" / "data"
SITES = {"60_job.csv": Site.uniform(4, 4), "cluster01_job.csv": Site.uniform(32, 4)}
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
    run = simulate_fleet(jobs, SITES[trace], POLICIES[name](), place="anywhere")
    assert run.mean_completion_s == pytest.approx(completion_s, abs=1e-3)
    assert run.makespan_s == makespan_s
    assert run.num_preemptions == preemptions


def test_a_blocked_queue_is_looked_at_again_when_devices_become_free() -> None:
    """Not before; and when it is not blocked any more, as many may be free as when it was."""
    jobs = [declared_job("a", 0.0, 3, 10.0), declared_job("blocks", 1.0, 2, 50.0)]
    jobs += [declared_job("late", 3.0, 1, 50.0), declared_job("later", 11.0, 1, 5.0)]
    run = simulate_fleet(jobs, Site.uniform(1, 4), fifo())
    assert dict(zip(run.names, run.first_start_s, strict=True)) == {
        "a": 0,
        "blocks": 10,
        "late": 10,
        "later": 11,
    }
    assert run.num_decisions == 4


def test_shortest_waiting_job_goes_first_and_nothing_is_taken_away() -> None:
    jobs = [declared_job("a", 0, 1, 9), declared_job("b", 1, 1, 5), declared_job("c", 2, 1, 3)]
    assert simulate_fleet(jobs, Site.uniform(1, 1), sjf()).names == ("a", "c", "b")


def test_least_attained_service_shares_in_turns() -> None:
    jobs = [declared_job("a", 0, 1, 2), declared_job("b", 0, 1, 2), declared_job("c", 0, 1, 1)]
    run = simulate_fleet(jobs, Site.uniform(1, 1), las(quantum_s=1.0))
    assert finished(run) == {"c": 3.0, "a": 4.0, "b": 5.0}

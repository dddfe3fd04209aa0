"""Replicas are policies: what every policy of the catalog must satisfy, they must, too, but that failures are unknown."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import test_fleet_mixed as mixed
from test_fleet_conformance import (
    CLUSTER,
    SEEDS,
    check_every_job_ends,
    check_no_device_is_given_twice,
    check_repeats,
    check_told_why,
    run,
    workload,
)
from test_gang_shapes import check_heeds_workers_or_refuses_them

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.periods import Rounds
from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas import gavel
from trainyard.fleet.replicas.elasticflow import ElasticFlowProgram
from trainyard.fleet.replicas.gavel import (
    CostProgram,
    FinishTimeProgram,
    HierarchicalProgram,
    MakespanProgram,
    MaxMinProgram,
    ThroughputProgram,
    WaterFillingProgram,
)
from trainyard.fleet.replicas.gavel_fifo import FifoProgram
from trainyard.fleet.replicas.gavel_rounds import GavelRounds
from trainyard.fleet.replicas.tiresias_in_pollux import TiresiasInPollux
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.scheduler import Scheduler, scheduler_of
from trainyard.fleet.traits import traits_of
from trainyard.hardware.cluster import Cluster

PROGRAMS = {
    program.__name__: program
    for program in (
        *(ElasticFlowProgram, MaxMinProgram, WaterFillingProgram, HierarchicalProgram, MakespanProgram),
        *(FinishTimeProgram, FifoProgram, CostProgram, ThroughputProgram),
    )
}
"""Those with rounds of their own."""
MAKERS: dict[str, Callable[[], Scheduler]] = {
    **{name: lambda name=name: of_program(name) for name in PROGRAMS},
    "TiresiasInPollux": lambda: Scheduler(
        "TiresiasInPollux", TiresiasInPollux((3250.0, 7200.0)), "emptiest", Rounds(60.0)
    ),
}
EVERY = pytest.mark.parametrize("name", MAKERS)


def of_program(name: str) -> Scheduler:
    policy = PROGRAMS[name]()
    rounds = traits_of(policy).rounds
    assert rounds is not None
    return Scheduler(name, policy, "consolidated", rounds(None))


@cache
def plain_run(name: str, seed: int) -> FleetRun:
    return run(MAKERS[name](), seed)


@cache
def mixed_run(name: str, seed: int) -> FleetRun:
    return mixed.run(MAKERS[name](), seed)


@EVERY
@SEEDS
def test_every_job_ends_with_its_work_done(name: str, seed: int) -> None:
    done, jobs = plain_run(name, seed), workload(seed)
    worked = check_every_job_ends(done, jobs)
    if name != "ElasticFlowProgram":  # whose jobs keep their devices to the end of a slot, and lose time
        assert worked == pytest.approx({job.name: job.work for job in jobs if job.name in worked})


@EVERY
@SEEDS
def test_no_device_is_given_twice(name: str, seed: int) -> None:
    check_no_device_is_given_twice(plain_run(name, seed))


@EVERY
def test_decisions_are_pure_and_repeat(name: str) -> None:
    check_repeats(MAKERS[name](), plain_run(name, 0))


@EVERY
def test_every_job_that_waits_is_told_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_told_why(MAKERS[name](), monkeypatch)


@EVERY
def test_workers_are_heeded_or_refused(name: str) -> None:
    check_heeds_workers_or_refuses_them(MAKERS[name]())


@EVERY
@mixed.SEEDS
def test_jobs_end_on_devices_that_they_can_have(name: str, seed: int) -> None:
    done = mixed_run(name, seed)
    worked = mixed.check_jobs_end_on_devices_that_they_can_have(done, seed)
    if name != "ElasticFlowProgram":
        for job in mixed.jobs_for(done.cluster, seed):
            if job.name in worked and job.profile is not mixed.TUNED:
                assert worked[job.name] == pytest.approx(job.work)


@EVERY
def test_decisions_about_mixed_jobs_are_pure_and_repeat(name: str) -> None:
    mixed.check_repeats(MAKERS[name](), mixed_run(name, 0))


def test_the_command_line_names_one_by_its_file() -> None:
    found = scheduler_of(f"{gavel.__file__}:MaxMinProgram(aware=False)", round_s=120.0)
    assert found.rounds == GavelRounds(120.0, shuffle=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_know_no_failures_and_run_no_real_jobs(name: str, tmp_path: Path) -> None:
    scheduler = of_program(name)
    for hazards, crowding in ((Hazards(node_failure_every_s=1e4), None), (None, Crowding(1.0))):
        with pytest.raises(FleetError, match="rounds as published know no failures"):
            scheduler.simulate([], CLUSTER, hazards=hazards, crowding=crowding)
    cluster = Cluster.uniform(1, 2, "local")
    with pytest.raises(FleetError, match="run jobs for real in rounds of a length"):
        Driver(cluster, scheduler.policy, LocalBackend(cluster, tmp_path), rounds=scheduler.rounds)

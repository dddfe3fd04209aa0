"""What `trainyard fleet run` says: each event as it happens, and how many jobs run, wait, are over and are to come."""

from __future__ import annotations

import pytest

from trainyard.cli.fleet.run_log import RunLog, counted
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job

GRANT = Grant((0,))


def job(name: str) -> Job:
    return training_job(name, 0.0, 1, Training("gpt-tiny", 4, 8))


def counts_after(*happened: tuple[str, Happening]) -> str:
    said: list[str] = []
    told: list[tuple[str, str]] = []
    log = RunLog(3, said.append, lambda stage, part: told.append((stage, part)))
    for name, what in happened:
        log.hear(Event(1.5, job(name), what, GRANT))
    assert len(said) == len(happened)
    assert {stage for stage, _ in told} == {"running the jobs"}
    return told[-1][1]


A, B = "a", "b"
ARRIVES, RUNS, LEAVES, ENDS = Happening.ARRIVES, Happening.RUNS, Happening.LEAVES, Happening.ENDS


@pytest.mark.parametrize(
    ("happened", "counts"),
    [
        ((), "0 of 3 over, 0 running, 0 waiting, 3 to come"),
        (((A, ARRIVES),), "0 of 3 over, 0 running, 1 waiting, 2 to come"),
        (((A, ARRIVES), (A, RUNS), (B, ARRIVES)), "0 of 3 over, 1 running, 1 waiting, 1 to come"),
        (((A, RUNS), (B, ARRIVES), (A, LEAVES), (B, RUNS)), "0 of 3 over, 1 running, 1 waiting, 1 to come"),
        (((A, RUNS), (A, Happening.FAILS)), "0 of 3 over, 0 running, 1 waiting, 2 to come"),
        (((A, RUNS), (A, ENDS), (B, Happening.GIVEN_UP)), "2 of 3 over, 0 running, 0 waiting, 1 to come"),
    ],
)  # fmt: skip
def test_jobs_are_counted_by_what_they_do(happened: tuple[tuple[str, Happening], ...], counts: str) -> None:
    assert counts_after(*happened) == counts


def test_an_event_is_said_with_its_time() -> None:
    said: list[str] = []
    RunLog(1, said.append, lambda stage, part: None).hear(
        Event(61.25, job(A), LEAVES, GRANT, "its lease ends")
    )
    assert said == ["   61.2 s  a leaves device 0: its lease ends"]


def test_a_job_is_reported_before_it_is_worked_on() -> None:
    told: list[str] = []
    for number, each in enumerate(
        counted([job(A), job(B)], "checking", lambda *news: told.append(": ".join(news)))
    ):
        assert told[-1] == f"checking: {number + 1} of 2, {each.name}"
    assert len(told) == 2

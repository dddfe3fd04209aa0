"""Speeds are those of whole steps, however few fit into the time of a measurement."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sleeping_clock import Clock

from trainyard.fleet.run import measure
from trainyard.fleet.run.backend import USUAL_LIMITS, Progress
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster


@pytest.mark.parametrize("step_s", [0.05, 0.7, 1.9])
def test_a_measurement_ends_with_a_step(
    step_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    job = training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8))
    (tmp_path / "a").mkdir()
    backend: Any = SimpleNamespace(
        cluster=Cluster.uniform(1, 1, "local"),
        jobs_per_device=lambda node: 1,
        directory=lambda name: JobDirectory(tmp_path / name),
        limits=USUAL_LIMITS,
        start=lambda job, grant: (tmp_path / "a").mkdir(exist_ok=True),
        stop=lambda names: None,
        progress=lambda name: Progress(int((clock.now_s - 3.0) / step_s)),
    )
    trial = measure.one_start(job, backend, 5.0)
    assert 1 / trial.steps_per_s == pytest.approx(step_s, abs=0.02)
    assert trial.start_s == pytest.approx(3.0, abs=0.04)


@pytest.mark.parametrize(
    ("size", "jobs_per_device", "beside"),
    [(1, 1, [1, 2, 3]), (1, 2, [1, 2, 3, 0, 1, 2, 3]), (2, 2, [2, 0, 2]), (4, 1, [])],
)
def test_all_other_places_are_busy(
    size: int, jobs_per_device: int, beside: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_running", lambda job, places, backend: list(places.values()))
    backend: Any = SimpleNamespace(
        cluster=Cluster.uniform(2, 2, "local"),
        jobs_per_device=lambda node: jobs_per_device,
        is_one_machine=True,
    )
    job = training_job("a", 0.0, size, Training("gpt-tiny", 4, 8))
    assert measure._busy_elsewhere(job, backend) == beside


def test_slow_first_steps_belong_to_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    ends_s = [5.0, 7.0] + [7.0 + 0.5 * i for i in range(1, 100)]
    backend: Any = SimpleNamespace(
        cluster=Cluster.uniform(1, 1, "local"),
        jobs_per_device=lambda node: 1,
        directory=lambda name: JobDirectory(tmp_path / name),
        limits=USUAL_LIMITS,
        start=lambda job, grant: (tmp_path / "a").mkdir(exist_ok=True),
        stop=lambda names: None,
        progress=lambda name: Progress(sum(end_s <= clock.now_s for end_s in ends_s)),
    )
    trial = measure.one_start(training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8)), backend, 5.0)
    assert trial.steps_per_s == pytest.approx(2.0, rel=0.02)
    assert trial.start_s == pytest.approx(
        6.0, abs=0.1
    )  # two steps took 7 s, of which one is what two take later


MEASURE = """
import sys
from pathlib import Path

from trainyard.fleet.run.backend import BackendOptions, JobLimits
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.run.measure import measured_alone
from trainyard.hardware.cluster import Cluster
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job

options = BackendOptions(limits=JobLimits(heartbeat_s=5.0))
backend = LocalBackend(Cluster.uniform(1, 1, "local"), Path(sys.argv[1]), options)
measured_alone([training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8))], backend, seconds=3600.0)
"""


def _wait_until(is_so: Callable[[], object]) -> None:
    limit_s = time.monotonic() + 120.0
    while not is_so():
        assert time.monotonic() < limit_s
        time.sleep(0.05)


def test_who_measures_is_killed_and_no_training_runs_on(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "measured-0-on-1")
    measuring = subprocess.Popen([sys.executable, "-c", MEASURE, str(tmp_path)])
    try:
        _wait_until(lambda: directory.watched.exists() and directory.groups())
        beat = directory.watching()
        _wait_until(lambda: directory.watching() != beat)
        assert directory.groups()
    finally:
        measuring.kill()
        measuring.wait()
    _wait_until(lambda: not directory.groups())
    assert directory.killing.read_text() == "the process that was to end it is gone"

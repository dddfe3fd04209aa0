"""What a start takes on a backend, measured once for predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sleeping_clock import Clock

from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.run import measure, startup
from trainyard.fleet.run.backend import USUAL_LIMITS, Progress
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.startup import measured_start
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.own import read_form
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import kinds_of, training_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

START_S, STEP_S, STOP_S, COMMAND_S = 7.0, 0.5, 0.75, 0.5


class Starts:
    """A backend on which starts take known times; it keeps what was started, and where."""

    def __init__(self, clock: Clock, folder: Path, failure: str | None = None) -> None:
        self.clock, self.folder, self.failure = clock, folder, failure
        self.cluster = Cluster.uniform(2, 2, "local")
        self.limits = USUAL_LIMITS
        self.started: list[tuple[Job, Grant]] = []
        self.began_s = 0.0

    def jobs_per_device(self, node: int) -> int:
        return 1

    def directory(self, name: str) -> JobDirectory:
        return JobDirectory(self.folder / name)

    def start(self, job: Job, grant: Grant) -> None:
        (self.folder / job.name).mkdir()
        self.started.append((job, grant))
        self.began_s = self.clock.now_s

    def stop(self, names: list[str]) -> None:
        if self.started[-1][0].command is None:
            self.clock.sleep(STOP_S)

    def progress(self, name: str) -> Progress:
        past_s = self.clock.now_s - self.began_s
        if self.failure is not None:
            return Progress(0, failure=self.failure)
        if self.started[-1][0].command is not None:
            return Progress(None, ended=past_s >= COMMAND_S)
        return Progress(max(0, int((past_s - START_S) / STEP_S)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(measure, "time", found)
    monkeypatch.setattr(startup, "time", found)
    return found


def training(name: str, num_devices: int, steps: int = 8) -> Job:
    return training_job(name, 0.0, num_devices, Training("gpt-tiny", 4, steps))


def command(name: str, folder: Path) -> Job:
    text = json.dumps(
        {"name": name, "num_devices": 1, "command": "sleep 9", "length_s": 9, "folder": str(folder)}
    )
    return read_form(text, folder / "form", own_files=True)


def test_a_training_counts_its_start_and_its_stop(clock: Clock, tmp_path: Path) -> None:
    backend: Any = Starts(clock, tmp_path)
    told: list[str] = []
    stages: list[str] = []
    costs = measured_start(
        [training("wide", 4), training("b", 2), training("c", 1)],
        backend,
        tell=told.append,
        progress=lambda stage, part: stages.append(f"{stage}: {part}"),
    )
    assert costs.start_s == costs.restart_s == pytest.approx(START_S + STOP_S, abs=0.1)
    assert [(job.num_devices, grant.devices) for job, grant in backend.started] == [(2, (0, 1))]
    assert told == [f"a start of gpt-tiny on 2 devices takes {costs.start_s:.1f} s"]
    assert stages == ["measuring a start: 1 of 1, gpt-tiny on 2 devices; then the prediction"]
    assert not list(tmp_path.iterdir())


def test_jobs_of_both_kinds_have_the_mean(clock: Clock, tmp_path: Path) -> None:
    backend: Any = Starts(clock, tmp_path)
    jobs = [training("a", 1), *(command(name, tmp_path.parent) for name in ("b", "c", "d"))]
    costs = measured_start(jobs, backend)
    assert costs.start_s == pytest.approx((START_S + STOP_S + 3 * COMMAND_S) / 4, abs=0.1)
    started = [job.command for job, _ in backend.started if job.command is not None]
    assert started == [Command("true", str(tmp_path.parent))], "the command itself is not run"


def test_a_job_starts_on_a_type_that_it_can_have(clock: Clock, tmp_path: Path) -> None:
    backend: Any = Starts(clock, tmp_path)
    backend.cluster = parse_cluster("1x2xV100-32G+1x2xlocal")
    job = training_job("a", 0.0, 1, Training("gpt-tiny", 4, 8), device_types=("local",))
    measured_start([job], backend)
    node = backend.cluster.node_of[backend.started[0][1].devices[0]]
    assert backend.cluster.nodes[node].device_type == "local"


@pytest.mark.parametrize("kind", ["training", "command"])
def test_what_cannot_start_is_one_error(kind: str, clock: Clock, tmp_path: Path) -> None:
    backend: Any = Starts(clock, tmp_path, failure="there is no room")
    job = training("a", 1) if kind == "training" else command("a", tmp_path.parent)
    with pytest.raises(
        FleetError, match=r"a start of .* was not measured: .*there is no room.*Give --start and --restart"
    ):
        measured_start([job], backend)
    assert [path for path in tmp_path.iterdir() if kind == "command"] == []


def test_trainings_that_are_equally_fast_are_one_kind() -> None:
    jobs = [training("a", 2), training("b", 2, steps=99), training("c", 1)]
    assert [(job.name, job.num_devices) for job in kinds_of(jobs)] == [("b", 2), ("c", 1)]


@pytest.mark.slow
def test_the_prediction_counts_starts_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real run of a training and a command, with nothing said of starts."""
    trace = tmp_path / "jobs.yaml"
    trace.write_text(
        "jobs:\n"
        "- {name: trained, arrival_s: 0, num_devices: 1, model: gpt-tiny, batch_size: 4, steps: 5}\n"
        "- {name: said, arrival_s: 0, num_devices: 1, command: sleep 1, length_s: 1}\n"
    )
    folder = tmp_path / "jobs"
    to = ("--trace", str(trace), "--cluster", "1x1xlocal", "--folder", str(folder), "--policy", "fifo")
    assert cli.main(("fleet", "run", *to, "--json")) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    costs = found["costs"]
    assert costs["start_s"] == costs["restart_s"] > 0.1
    by_name = {job["job"]: job for job in found["jobs"]}
    assert by_name["said"]["predicted_jct_s"] > 1.0 + costs["start_s"]
    lines = err.splitlines()
    assert lines[0].startswith("a start of gpt-tiny on 1 device takes ")
    assert lines[1].startswith("a start of a command on 1 device takes ")
    assert lines[2].startswith("not predicted: the start of a command itself")
    assert lines[3].startswith("2 jobs; predicted to be done after ")
    assert lines[-1].endswith(" ends")
    assert not list(folder.glob("measured*"))
    shutil.rmtree(folder)
    assert cli.main(("fleet", "run", *to, "--json", "--restart", "3s")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["costs"] == {"restart_s": 3.0, "start_s": 3.0, "together_s": 0.0}

"""Nodes that give no heartbeat any more are found out by whoever runs their jobs, unless it was away itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run import directory_backend
from trainyard.fleet.run.backend import BackendOptions, JobLimits, Progress
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.node_watch import NodeWatch
from trainyard.fleet.run.slurm import _batch, _Row
from trainyard.fleet.workload.job import Grant
from trainyard.fleet.workload.training import Training
from trainyard.hardware.cluster import Cluster
from trainyard.job.run.processes.logs import Metrics
from trainyard.processes import ProcessLimits, ProcessState, ProcessWatch


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Suspended(DirectoryBackend):
    """A backend whose jobs run for ever, and that is told what to do."""

    suspended, killed, cpu_s = False, 0, 0.0

    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        raise AssertionError("no job of these tests is launched")

    def is_over(self, name: str) -> bool:
        return False

    def kill(self, name: str) -> None:
        self.killed += 1

    def is_suspended(self, name: str) -> bool:
        return self.suspended


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    found = JobDirectory(tmp_path / "a")
    found.set_up(Training("gpt-tiny", 4, 8))
    return found


def test_a_node_that_gives_no_sign_is_named(directory: JobDirectory) -> None:
    clock = Clock()
    watch = NodeWatch(60.0, clock)
    for _ in range(100):  # before its nodes have begun, nothing is known of a job
        assert watch.problem(directory) is None
        clock.now_s += 3.0
    directory.beat(0)
    directory.beat(2)
    found = None
    while found is None:
        directory.beat(0)
        found = watch.problem(directory)
        clock.now_s += 1.0
    assert found == "the node of rank 2 gave no heartbeat for 63 s: its processes are stopped, or it is lost"
    watch.forget("a")
    assert watch.problem(directory) is None


def test_a_node_of_this_machine_that_gets_no_core_is_not_stopped(directory: JobDirectory) -> None:
    """The system says so; it counts as stopped if it uses no CPU for ten minutes, or a signal has stopped it."""

    def watched_s(is_stopped: bool) -> tuple[float, str]:
        clock = Clock()
        watch = NodeWatch(60.0, clock)
        while (
            found := watch.problem(directory, lambda: {"0": ProcessState(5.0, is_stopped, not is_stopped)})
        ) is None:
            clock.now_s += 3.0
        return clock.now_s - 1000.0, found

    directory.beat(0)
    assert watched_s(is_stopped=True) == (63.0, f"the node of rank 0 gave no heartbeat for 63 s: {_WHY}")
    said = f"the node of rank 0 gave no heartbeat and used no CPU for 603 s: {_WHY}"
    assert watched_s(is_stopped=False) == (603.0, said)


_WHY = "its processes are stopped, or it is lost"


def test_who_was_away_itself_begins_to_count_anew(directory: JobDirectory) -> None:
    clock = Clock()
    watch = NodeWatch(60.0, clock)
    directory.beat(0)
    for _ in range(4):
        assert watch.problem(directory) is None
        clock.now_s += 3600.0


def test_a_new_start_has_given_no_sign(directory: JobDirectory) -> None:
    directory.beat(0)
    (directory.path / directory.new_meeting()).touch()
    assert directory.heartbeats()
    directory.allow()
    assert not directory.heartbeats()
    assert not list(directory.path.glob("meeting-*"))


def test_a_backend_ends_a_job_without_signs(directory: JobDirectory) -> None:
    """One that its cluster manager holds back gives none, and is well."""
    clock = Clock()
    backend = Suspended(
        Cluster.uniform(1, 1, "A100-80G"),
        directory.path.parent,
        BackendOptions(limits=JobLimits(heartbeat_s=60.0)),
    )
    backend._node_watch = NodeWatch(60.0, clock)
    directory.beat(0)
    backend.suspended = True
    for _ in range(10):
        assert backend.progress("a").failure is None
        clock.now_s += 10.0
    backend.suspended = False
    while (progress := backend.progress("a")).failure is None:
        assert not backend.killed
        clock.now_s += 10.0
    assert progress.failure.startswith("the node of rank 0 gave no heartbeat for 70 s")
    assert progress.killed
    assert backend.killed == 1
    assert directory.progress(is_over=True) == progress


class Slow(Suspended):
    """A backend that sees whether its jobs work."""

    def leaving_watch(self, name: str) -> ProcessWatch | None:
        limits = ProcessLimits(self.patience_s, idle_s=self.patience_s)
        return ProcessWatch(1, limits, lambda _: self.cpu_s, directory_backend.time.monotonic)


@pytest.mark.parametrize(
    ("backend", "works", "left_s"), [(Suspended, True, 121), (Slow, False, 121), (Slow, True, 1201)]
)
def test_a_job_that_works_has_cpu_seconds_to_leave(
    backend: type[Suspended],
    works: bool,
    left_s: int,
    directory: JobDirectory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine it gets a tenth of a core."""
    clock = Clock()
    monkeypatch.setattr(directory_backend.time, "monotonic", clock)
    runs = backend(Cluster.uniform(1, 1, "A100-80G"), directory.path.parent)
    runs.leave("a")
    while not runs.killed:
        clock.now_s += 1.0
        if works:
            runs.cpu_s += 0.1
        assert not runs.has_left("a")
    assert clock.now_s - 1000.0 == left_s


@pytest.mark.parametrize(
    ("states", "suspended"),
    [("RUNNING", False), ("COMPLETING", False), ("PENDING", True), ("RUNNING SUSPENDED", True), ("", False)],
)
def test_slurm_suspends_what_does_not_run(states: str, suspended: bool) -> None:
    assert _batch([_Row("7", state, "") for state in states.split()]).suspended == suspended


def test_limits_are_more_than_nothing() -> None:
    with pytest.raises(FleetError, match="stall_s is more than 0, got -1"):
        JobLimits(stall_s=-1.0)


def test_no_sign_is_written_where_there_is_no_folder(tmp_path: Path) -> None:
    gone = JobDirectory(tmp_path / "gone")
    gone.beat(0)  # nor is this an error: it is said again soon
    assert gone.heartbeats() == {}
    assert not gone.path.exists()
    gone.path.mkdir()
    gone.beat(0)
    assert len(gone.heartbeats()) == 1


def test_how_far_a_job_is_while_its_metrics_are_begun_anew(directory: JobDirectory) -> None:
    step = {"seconds": 0.5, "peak_memory_bytes": [1], "losses": {"loss": 1.0}}
    metrics = Metrics(directory.logs, goes_on=True, most_bytes=600)
    assert directory.progress(is_over=False) == Progress(0)
    for number in range(20):
        metrics.write({"step": number} | step)
        assert directory.progress(is_over=False).steps == number + 1
    assert directory.progress(is_over=False).step_s == 0.5
    assert (directory.logs / "metrics.1.jsonl").exists()
    assert max(directory.losses()) == 19

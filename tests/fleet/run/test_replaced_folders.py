"""Folders of jobs that are no folders, lead elsewhere, or are replaced while their jobs run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from backend_trials import nodes_of, wait_for

from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.node import _wait
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.workload.job import Grant
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.job.run.processes.rank_processes import RankProcesses

TRAINING = Training("gpt-tiny", 4, 8)


class Prompt(DirectoryBackend):
    """A backend of which every job that can be started ends at once."""

    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        assert directory.training() == TRAINING

    def progress(self, name: str) -> Progress:
        return Progress(8, ended=True)

    def is_over(self, name: str) -> bool:
        return not self.directory(name).groups()

    def kill(self, name: str) -> None:
        raise AssertionError("nothing runs")


def file(folder: Path) -> None:
    (folder / "bad").touch()


def dangling(folder: Path) -> None:
    (folder / "bad").symlink_to(folder / "nowhere" / "at" / "all")


def loop(folder: Path) -> None:
    (folder / "bad").symlink_to(folder / "bad")


def of_another_job(folder: Path) -> None:
    JobDirectory(folder / "other").set_up(Training("gpt-tiny", 8, 8))
    (folder / "bad").symlink_to(folder / "other")


def with_a_file_for_a_log(folder: Path) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / "log").touch()


def with_no_training(folder: Path) -> None:
    JobDirectory(folder / "bad").set_up(TRAINING)
    (folder / "bad" / "training.json").write_bytes(b"\x00\xff")


@pytest.mark.parametrize(
    "spoil", [file, dangling, loop, of_another_job, with_a_file_for_a_log, with_no_training]
)
def test_a_folder_that_cannot_be_a_jobs_fails_that_job_only(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    backend = Prompt(nodes_of(1), tmp_path)
    spoil(tmp_path)
    driver = Driver(backend.cluster, srtf(), backend, patience=Patience(retry_s=0.0))
    given_up, now_s = dict[str, str](), 0.0
    for name in ("bad", "good"):
        driver.submit(training_job(name, 0.0, 1, TRAINING, Predicted(TRAINING, {1: 1.0})), 0.0)
    while driver.names:
        driver.step(now_s)
        given_up |= driver.given_up
        assert not driver.trouble
        now_s += 1.0
        assert now_s < 100.0, driver.waiting
    assert list(given_up) == ["bad"]
    assert given_up["bad"].startswith("job 'bad' failed 5 times, the last time with: it cannot be started: ")
    assert backend.has_left("bad")


def wait_as_a_node(directory: JobDirectory, said: int) -> None:
    """What a node does while its one rank does nothing; exits as it does."""
    sys.stderr = os.fdopen(said, "w", buffering=1)
    with directory.locked(0):
        processes = RankProcesses([0], directory.logs, 60.0, 60.0)

        def be_rank() -> None:
            processes.begin(0)
            os.write(said, b"runs\n")
            signal.pause()

        processes.start(0, be_rank)
        try:
            code = _wait(directory, directory.identity(), processes, 60.0)
        finally:
            processes.end()
    os._exit(code)


@pytest.mark.parametrize("how", ["deleted", "moved", "a link"])
def test_a_job_whose_folder_is_replaced_ends(how: str, tmp_path: Path) -> None:
    """Its scheduler, if started anew, finds nothing of it there, and starts it once more."""
    directory, elsewhere = JobDirectory(tmp_path / "a"), tmp_path / "elsewhere"
    directory.set_up(TRAINING)
    elsewhere.mkdir()
    hear, say = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=wait_as_a_node, args=(directory, say))
    process.start()
    os.close(say)
    try:
        with os.fdopen(hear) as heard:
            assert heard.readline() == "runs\n"
            directory.path.rename(tmp_path / "moved")
            if how == "a link":
                directory.path.symlink_to(elsewhere)
            elif how == "moved":
                directory.path.mkdir()
            wait_for(lambda: process.exitcode is not None)
            assert process.exitcode == 1
            assert f"{directory.path} was deleted or replaced" in heard.read()
    finally:
        process.kill()
        process.join()
    assert not list(elsewhere.iterdir())
    assert not JobDirectory(tmp_path / "moved").groups()

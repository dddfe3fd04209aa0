"""When a job that keeps failing is given up, and what counts as its own failure."""

from __future__ import annotations

import errno
import math
import os
import time
from pathlib import Path

import pytest

from trainyard.fleet.run import job_directory
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.fault import is_disk_fault
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.patience import Failures, Patience
from trainyard.fleet.workload.training import Training
from trainyard.job.run.errors import NotSavedError
from trainyard.private import opener

BUG, KILL = Progress(4, failure="ValueError: no"), Progress(4, failure="its processes are gone", killed=True)


def test_waits_get_longer_until_a_failing_job_is_given_up() -> None:
    failures, waits_s, given_up = Failures(), [], False
    while not given_up:
        given_up = failures.note(BUG, 100.0, Patience())
        waits_s.append(failures.retry_s - 100.0)
    assert waits_s == [0.0, 5.0, 20.0, 80.0, 320.0]


def test_a_job_that_is_killed_has_other_limits() -> None:
    failures, waits_s = Failures(), []
    for _ in range(20):
        assert not failures.note(KILL, 100.0, Patience())
        waits_s.append(failures.retry_s - 100.0)
    assert waits_s == [0.0] + 19 * [5.0]
    assert failures.note(KILL, 100.0, Patience())


def test_a_new_checkpoint_makes_failures_forgotten() -> None:
    failures, patience = Failures(), Patience(max_failures=1, max_kills=1)
    for steps in range(4, 40, 4):
        assert not failures.note(Progress(steps, failure="no"), 100.0, patience)
        assert failures.retry_s == 100.0
    assert failures.note(Progress(36, failure="no"), 100.0, patience)


def test_what_all_jobs_lack_is_no_failure_of_one() -> None:
    """A daemon waits for it for ever, a run for ten minutes; what failed before counts anew."""
    lack = Progress(4, failure="no space", lacks=True)
    failures, waits_s, endless = Failures(), [], Patience(lacks_s=math.inf)
    for _ in range(100):
        assert not failures.note(lack, 100.0, endless)
        waits_s.append(failures.retry_s - 100.0)
        assert failures.lack == "no space"
    assert waits_s == [5.0, 10.0, 20.0, 40.0] + 96 * [80.0]
    assert not failures.note(lack, 700.0, Patience())
    assert failures.note(lack, 701.0, Patience())
    assert not failures.note(BUG, 701.0, Patience())
    assert (failures.own, failures.lacks, failures.lack) == (1, 0, "")
    assert not failures.note(lack, 1500.0, Patience())


def full(path: str, flags: int) -> int:
    """Makes a file, in which there is no room."""
    os.close(opener(path, flags))
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("lacks", [True, False])
def test_a_full_disk_is_told_from_what_a_job_did_wrong(
    lacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no room to say why, or a node that failed for it says something else."""
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    monkeypatch.setattr(job_directory, "opener", full)
    directory.fail("OSError: [Errno 28]", lacks=lacks)
    monkeypatch.undo()
    if lacks:
        directory.fail("rank 0 ended with exit code 1")
    progress = directory.progress(is_over=True)
    assert (progress.lacks, progress.killed, progress.repeats) == (True, False, False)
    assert progress.failure == "there is no room on the disk, not even to say what failed"
    directory.allow()
    directory.fail("OSError: [Errno 28]", lacks=True)
    assert directory.progress(is_over=True).failure == "OSError: [Errno 28]"
    directory.allow()
    directory.fail("ValueError: no")
    assert not directory.progress(is_over=True).lacks


def test_a_heartbeat_is_seen_where_the_disk_was_full_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    directory, seen = JobDirectory(tmp_path), set[str]()
    for _ in range(3):
        directory.beat(0)
        seen |= set(directory.heartbeats().values())
        time.sleep(0.05)  # the clock of a file system has ticks
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("number", "is_one"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.ENOMEM, False)]
)
def test_faults_of_the_disk_are_found_behind_others(number: int, is_one: bool) -> None:
    cause, error = OSError(number, "no"), NotSavedError("no checkpoint could be written")
    assert not is_disk_fault(error)
    error.__cause__ = cause
    assert is_disk_fault(error) == is_disk_fault(cause) == is_one


@pytest.mark.parametrize("first", ["the kill", "what follows from it"])
def test_what_follows_from_a_kill_is_no_failure_of_the_job(first: str, tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    notes = [("rank 1 was ended by SIGKILL", True), ("RuntimeError: connection closed by peer", False)]
    for why, killed in notes if first == "the kill" else notes[::-1]:
        directory.fail(why, killed=killed)
    progress = directory.progress(is_over=True)
    assert (progress.failure, progress.killed) == ("rank 1 was ended by SIGKILL", True)
    directory.allow()
    directory.fail("ValueError: no")
    assert not directory.progress(is_over=True).killed


def test_what_would_happen_again_is_not_tried_again(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    directory.fail("rank 1 was ended by SIGKILL", killed=True)
    directory.fail("step 3 is not finite", repeats=True)
    progress = directory.progress(is_over=True)
    assert (progress.failure, progress.killed, progress.repeats) == ("step 3 is not finite", False, True)
    assert Failures().note(progress, 100.0, Patience())
    directory.allow()
    assert not directory.progress(is_over=True).repeats


def test_the_first_reason_stays_also_where_two_nodes_say_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Training("gpt-tiny", 4, 8))
    monkeypatch.setattr(Path, "exists", lambda _: False)  # neither sees what the other is about to write
    directory.fail("first")
    directory.fail("second")
    monkeypatch.undo()
    assert directory.progress(is_over=True).failure == "first"

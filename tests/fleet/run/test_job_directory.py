"""Who lives in the folder of a job, as its locks say."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.job_directory import JobDirectory


def test_a_lock_says_which_group_lives_and_nobody_waits_for_one_that_does_not(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    with (tmp_path / "lock-0").open("a+") as lock:
        assert directory.groups() == []
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BackendError, match="lock-0 is locked by a process that has not said yet which"):
            directory.groups()
        lock.write("123")
        lock.flush()
        assert directory.groups() == [123]


def test_processes_whose_lock_was_deleted_are_not_taken_for_gone(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    with directory.locked(0), directory.locked(2):
        assert directory.groups() == [os.getpgid(0)] * 2
        (tmp_path / "lock-0").unlink()
        assert directory.groups() == [os.getpgid(0)]
        (tmp_path / "lock-2").unlink()
        with pytest.raises(FleetError, match="which was deleted; end them"):
            directory.groups()
    assert directory.groups() == []


def test_who_only_looks_is_waited_for_however_long_that_takes(tmp_path: Path) -> None:
    """It may get no core in the middle."""
    directory = JobDirectory(tmp_path)
    with (tmp_path / "lock-0").open("a+") as looking:
        whole = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(looking, fcntl.LOCK_SH)
        fcntl.flock(whole, fcntl.LOCK_EX)
        with pytest.raises(BackendError, match="another process looks at"):
            directory.groups()
        for after_s, lock in ((1.0, looking.fileno()), (2.0, whole)):
            threading.Timer(after_s, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        with directory.locked(0):
            assert directory.groups() == [os.getpgid(0)]
        os.close(whole)


def test_who_holds_a_job_is_not_waited_for(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    with directory.locked(0), pytest.raises(FleetError, match="runs already; stop it first"):
        directory.locked(0).__enter__()

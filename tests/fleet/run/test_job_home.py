"""Who lives in the folder of a job, as its locks say."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from trainyard.fleet.run.home import JobHome
from trainyard.fleet.site import FleetError


def test_a_lock_says_which_group_lives_and_nobody_waits_for_one_that_does_not(tmp_path: Path) -> None:
    home = JobHome(tmp_path)
    with (tmp_path / "lock-0").open("a+") as lock:
        assert home.groups() == []
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FleetError, match="lock-0 is locked by a process that does not say which"):
            home.groups()
        lock.write("123")
        lock.flush()
        assert home.groups() == [123]

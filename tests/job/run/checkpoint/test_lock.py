"""One run at a time in a folder; the lock is gone with the last process that has it."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import plans
import pytest

from trainyard.cli import main as cli
from trainyard.job.run.checkpoint import lock
from trainyard.job.run.checkpoint.lock import FolderLock, check_free, locked
from trainyard.job.run.config import StepMetrics
from trainyard.job.run.errors import CheckpointError
from trainyard.job.run.train import train
from trainyard.locks import can_share

_HOLDS = """
import sys, time
from pathlib import Path
from trainyard.job.run.checkpoint.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_RETRY_S", 0.0)


def test_a_second_run_is_told_who_is_there_until_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        said = (
            rf"another run writes checkpoints to .*: process {other.pid} on {os.uname().nodename} .*since 2"
        )
        with pytest.raises(CheckpointError, match=said):
            check_free(tmp_path)
        other.kill()
        other.wait()
    with locked(tmp_path):
        pass


def test_a_second_training_in_a_folder_is_refused_while_the_first_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the function and by the command line, to begin or to go on, at each step of the first."""
    said = f"another run writes checkpoints to {tmp_path}: process {os.getpid()} on"
    command = ("train", "gpt-tiny", "--rows", str(plans.ROWS), "--checkpoint", str(tmp_path), "--steps", "4")
    refused = list[str]()

    def second(step: StepMetrics) -> None:
        with pytest.raises(CheckpointError, match=re.escape(said)):
            train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(4, tmp_path))
        for more in ((), ("--resume",)):
            assert cli.main((*command, *more)) == 2
            refused.append(capsys.readouterr().err)

    result = train(plans.MODEL, plans.plan(), plans.DATA_SOURCE, plans.config(2, tmp_path), on_step=second)
    assert len(result.metrics) == 2
    assert len(refused) == 4
    assert all(said in text for text in refused)
    check_free(tmp_path)


def test_who_only_looks_is_waited_for_however_long_that_takes(tmp_path: Path) -> None:
    """It may get no core in the middle; it keeps no other that looks from looking."""
    with locked(tmp_path):
        pass
    with (tmp_path / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        check_free(tmp_path)
        threading.Timer(1.0, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with locked(tmp_path), pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
            check_free(tmp_path)


def test_whether_a_file_can_be_shared_is_found_out_without_holding_it(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open() as other:
        assert can_share(one.fileno())
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not can_share(one.fileno())


def _hold(held: FolderLock, told: multiprocessing.Event) -> None:
    told.wait()
    held.close()


def test_it_is_held_as_long_as_a_process_that_was_started_with_it(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Event()
    with locked(tmp_path) as held:
        process = spawn.Process(target=_hold, args=(held, told))
        process.start()
    with pytest.raises(CheckpointError, match="another run writes checkpoints to"):
        check_free(tmp_path)
    told.set()
    process.join()
    check_free(tmp_path)


def test_nothing_is_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "lock").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="symbolic links"):
        check_free(tmp_path)
    assert (tmp_path / "kept").read_text() == "kept"


def test_file_systems_without_locks_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", fails)
    with locked(tmp_path) as held:
        assert "knows no locks" in held.note


def test_a_lock_whose_file_was_deleted_is_still_held(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(CheckpointError, match="another run writes checkpoints"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


def test_it_is_held_where_folders_are_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "lock_folder", lambda folder, how: None)
    with locked(tmp_path) as held:
        assert not held.note
        with pytest.raises(CheckpointError, match="another run writes checkpoints to"):
            check_free(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    for folder in (tmp_path / "runs", tmp_path / "runs" / "first"):
        with (
            pytest.raises(CheckpointError, match=r"runs.* is a file, where the folder .* would be"),
            locked(folder),
        ):
            pass

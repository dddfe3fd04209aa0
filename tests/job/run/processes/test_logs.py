"""What a run writes down is for its user alone, and has a limit."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import plans
import pytest
from private_modes import usual_umask, wrong_modes

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.checkpoint.quota import QuotaError, checkpoint_bytes
from trainyard.job.run.config import StepMetrics
from trainyard.job.run.processes.logs import Metrics, cut, metrics_files
from trainyard.job.run.processes.stopping import StopRequest
from trainyard.job.run.run_recorder import Callbacks, RunRecorder
from trainyard.job.run.train import train
from trainyard.private import make_private, only_for_user, require_private, write_private
from trainyard.reading import read_text


def test_a_log_that_is_too_long_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log, short = tmp_path / "rank-0.log", tmp_path / "rank-1.log"
    lines = [f"line {number}\n" for number in range(1000)]
    short.write_text("".join(lines[:10]))
    with log.open("a", buffering=1) as printing:  # as a process that goes on
        printing.writelines(lines)
        cut([log, short, tmp_path / "rank-2.log"], most_bytes=4000)
        printing.write("and on\n")
    kept = log.read_text()
    assert len(kept) < 2200
    assert kept.startswith("line 0\nline 1\n")
    assert kept.endswith("line 998\nline 999\nand on\n")
    assert "left out, because this log had grown to 8890 bytes" in kept
    assert short.read_text() == "".join(lines[:10])


def test_metrics_that_are_too_long_become_the_older_ones(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "log", goes_on=False, most_bytes=1000)
    for step in range(250):
        metrics.write({"step": step})
    metrics.close()
    older, newer = metrics_files(tmp_path / "log")
    assert max(older.stat().st_size, newer.stat().st_size) <= 1020
    steps = [json.loads(line)["step"] for file in (older, newer) for line in file.read_text().splitlines()]
    assert steps == list(range(steps[0], 250))


def test_a_file_of_metrics_has_64_mib(tmp_path: Path) -> None:
    """Holes take no room on the disk."""
    file = tmp_path / "metrics.jsonl"
    file.touch()
    os.truncate(file, 64 * 2**20 - 40)
    metrics = Metrics(tmp_path, goes_on=True)
    metrics.write({"step": 0})
    assert metrics_files(tmp_path) == (file,)
    metrics.write({"step": 1, "more": "x" * 40})
    metrics.close()
    older, newer = metrics_files(tmp_path)
    assert 64 * 2**20 < older.stat().st_size < 64 * 2**20 + 100
    assert newer.stat().st_size == 0


def test_half_a_line_of_a_killed_process_is_ended(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"st')
    metrics = Metrics(tmp_path, goes_on=True)
    metrics.write({"step": 1})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == ['{"step": 0}', '{"st', '{"step": 1}']


@pytest.mark.parametrize("left", [0, 5])
def test_a_full_disk_ends_no_training_and_lines_stay_whole(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a line is written in parts, or half of it is."""
    room, notes = [1000], list[str]()

    def write(handle: int, line: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = written(handle, line[: min(7, room[0])])
        room[0] -= count
        return count

    written = os.write
    recorder = RunRecorder(
        plans.config(9, tmp_path, log=tmp_path),
        StopRequest(),
        Callbacks(on_note=notes.append),
    )
    recorder.open(tmp_path)
    monkeypatch.setattr(os, "write", write)
    for step, room[0] in ((0, 1000), (1, left), (2, 0), (3, 1000)):
        recorder.on_step(StepMetrics(step, {"loss": 1.0}, 1.0, 1.0, 1.0, 1.0, (1,), (1,), False))
    recorder.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if line.endswith("}")] == [0, 3]
    assert notes == [f"metrics of some steps are not written to {tmp_path}: No space left on device"]


def test_what_a_training_writes_is_for_its_user(tmp_path: Path) -> None:
    with usual_umask():
        config = plans.config(2, tmp_path / "runs" / "one", log=tmp_path / "runs" / "one" / "log")
        train(plans.MODEL, plans.plan(data=2), plans.DATA_SOURCE, config)
    assert (tmp_path / "runs" / "one" / "log" / "rank-1.log").exists()
    assert not wrong_modes(tmp_path / "runs")


def test_folders_that_were_there_keep_theirwrong_modes(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)
    make_private(theirs / "new" / "newer")
    with only_for_user():
        (theirs / "new" / "file").touch()
    write_private(theirs / "new" / "newer" / "other", "")
    assert theirs.stat().st_mode & 0o777 == 0o755
    assert not wrong_modes(theirs / "new")
    make_private(theirs)
    assert theirs.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
@pytest.mark.parametrize("link", [False, True])
def test_a_secret_that_others_read_is_refused(tmp_path: Path, link: bool, mode: int) -> None:
    """Of a link, what counts is where it leads."""
    secret = named = tmp_path / "tokens"
    write_private(secret, "ann:12345678\n")
    if link:
        named = tmp_path / "link"
        named.symlink_to(secret)
    assert read_text(named, check=require_private) == "ann:12345678\n"
    secret.chmod(mode)
    with pytest.raises(ValueError, match=rf"mode {mode:o} lets others .*: chmod 600 {named}"):
        read_text(named, check=require_private)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "tokens"
    write_private(secret, "ann:12345678\n")
    os.chown(secret, 12345, -1)
    with pytest.raises(ValueError, match="belongs to another user, of number 12345"):
        read_text(secret, check=require_private)


def test_a_secret_is_checked_where_it_is_read(tmp_path: Path) -> None:
    """Another file that has taken its name meanwhile is neither looked at nor read."""
    secret, other = tmp_path / "tokens", tmp_path / "other"
    write_private(secret, "ann:12345678\n")
    write_private(other, "eve:12345678\n")
    other.chmod(0o644)

    def check(path: Path, opened: int) -> None:
        other.replace(secret)
        require_private(path, opened)

    assert read_text(secret, check=check).startswith("ann")


def test_checkpoints_are_as_large_as_said(tmp_path: Path) -> None:
    model = plans.MODEL()
    one = checkpoint_bytes(model.module, plans.OPTIMIZER)
    result = train(model, plans.plan(), plans.DATA_SOURCE, plans.config(1, tmp_path / "a"))
    written = sum(file.stat().st_size for file in result.checkpoint.iterdir())
    assert one <= written < 1.1 * one + 100_000
    numbers = sum(parameter.numel() for parameter in model.module.parameters())
    assert checkpoint_bytes(model.module, OptimizerConfig("sgd")) == one - 2 * 4 * numbers
    # With the one that is being written, there are three.
    with pytest.raises(
        QuotaError, match=r"takes 0\.\d+ GB, and 3 of them .* that --max-checkpoint-size allows"
    ):
        train(
            model,
            plans.plan(),
            plans.DATA_SOURCE,
            plans.config(1, tmp_path / "b", max_checkpoint_bytes=3 * one - 1),
        )
    assert not list((tmp_path / "b").glob("step-*"))

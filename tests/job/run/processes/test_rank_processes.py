"""The ranks of a training on one machine are started, watched and ended together."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from trainyard.job.run.processes.rank_processes import RankProcesses, how_it_ended


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[RankProcesses]:
    started = RankProcesses((2, 3), tmp_path, 60.0, 60.0)
    yield started
    started.end()


def _be_rank(processes: RankProcesses, rank: int, code: int) -> None:
    processes.begin(rank)
    os.write(1, f"this is {rank}\n".encode())
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _ended(processes: RankProcesses) -> dict[int, int | None]:
    while None in (codes := processes.exit_codes()).values():
        processes.wait([rank for rank, code in codes.items() if code is None])
    return codes


def test_each_has_a_log_and_an_exit_code(processes: RankProcesses, tmp_path: Path) -> None:
    processes.start(2, _be_rank, processes, 2, 3)
    processes.start(3, _be_rank, processes, 3, -signal.SIGKILL)
    assert _ended(processes) == {2: 3, 3: -signal.SIGKILL}
    assert [(tmp_path / f"rank-{rank}.log").read_text() for rank in (2, 3)] == ["this is 2\n", "this is 3\n"]


def _print_much(processes: RankProcesses, rank: int, told: Connection) -> None:
    """Print 64 MiB and a little more, and then wait."""
    processes.begin(rank)
    line = b"x" * 1023 + b"\n"
    os.write(1, b"the first line\n")
    for _ in range(64):
        os.write(1, line * 1024)
    os.write(1, b"the last line\n")
    told.send(0)
    signal.pause()


def test_a_log_of_over_64_mib_is_cut_by_a_look_and_at_the_end(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    log, other = tmp_path / "rank-2.log", tmp_path / "node.log"
    log.touch()
    os.truncate(log, 64 * 2**20)  # a hole is as long, and takes no room
    processes = RankProcesses((2,), tmp_path, 60.0, 60.0, other_logs=[other])
    assert processes.problem([]) is None
    assert log.stat().st_size == 64 * 2**20
    log.unlink()
    processes.start(2, _print_much, processes, 2, theirs)
    with ExitStack() as ending:
        ending.callback(processes.end)
        assert ours.recv() == 0
        assert log.stat().st_size > 64 * 2**20
        other.touch()
        os.truncate(other, 65 * 2**20)
        assert processes.problem([2]) is None
        assert max(log.stat().st_size, other.stat().st_size) <= 33 * 2**20
        kept = log.read_bytes()
        assert kept.startswith(b"the first line\n")
        assert kept.endswith(b"the last line\n")
        assert b"left out, because this log had grown to 67108893 bytes" in kept
        os.truncate(log, 65 * 2**20)
    assert log.stat().st_size <= 33 * 2**20


def test_whoever_waits_hears_of_the_first_that_ends_and_of_what_can_be_read(processes: RankProcesses) -> None:
    ours, theirs = Pipe()
    processes.start(2, time.sleep, 1000.0)
    processes.start(3, sys.exit, 0)
    assert processes.wait([2, 3], [ours], 60.0) == ([3], [])
    theirs.send(0)
    assert processes.wait([2], [ours], 60.0) == ([], [ours])
    began_s = time.monotonic()
    assert processes.wait([2]) == ([], [])
    assert time.monotonic() - began_s < 30.0  # so that whoever waits looks whether the ranks work
    assert [processes.is_time_to_look() for _ in range(2)] == [True, False]


def test_all_are_ended_whatever_they_do(processes: RankProcesses) -> None:
    for rank in (2, 3):
        processes.start(rank, signal.pause)
    began_s = time.monotonic()
    processes.end()
    assert time.monotonic() - began_s < 30.0
    assert processes.exit_codes() == {}


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "ended with exit code 0"), (-9, "was ended by SIGKILL"), (-35, "was ended by signal 35")],
)
def test_what_is_said_of_an_end(code: int, said: str) -> None:
    assert how_it_ended(code) == said

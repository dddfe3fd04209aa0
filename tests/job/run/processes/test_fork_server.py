"""Processes are forked from a server, which may hang or be gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from trainyard.job.run.processes import fork_server
from trainyard.job.run.processes.fork_server import (
    WorkerError,
    context,
    has_ended,
    run_ranks,
    start,
    warm_up,
)
from trainyard.processes import ProcessLimits, ProcessWatch, forking


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """One that loads nothing."""
    forkserver._forkserver._stop()
    monkeypatch.setattr(fork_server, "_PRELOAD", ["os"])
    warm_up()
    found = forking.fork_server()
    yield found
    if found.is_running():
        found.kill()
    forkserver._forkserver._stop()


def _check_that_another_is_started(why: str) -> None:
    with pytest.raises(WorkerError, match=rf"was killed, for it {why}.*; another server is started"):
        start(context().Process(target=os.getpid))
    start(process := context().Process(target=os.getpid))
    process.join()
    assert process.exitcode == 0


def test_a_server_that_uses_no_cpu_makes_room_for_another(
    server: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_LIMITS", ProcessLimits(cpu_s=60.0, idle_s=1.0))
    server.suspend()
    _check_that_another_is_started("used no CPU for")


def test_a_server_that_is_not_scheduled_for_a_while_goes_on(server: psutil.Process) -> None:
    server.suspend()
    threading.Timer(1.0, server.resume).start()
    start(process := context().Process(target=os.getpid))
    process.join()
    assert process.exitcode == 0
    assert forking.fork_server() == server


def test_a_server_that_loads_for_ever_makes_room_for_another(
    server: psutil.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forkserver._forkserver._stop()
    endless = tmp_path / "endless.py"
    endless.write_text(f"import os\nwhile os.path.exists({str(tmp_path / 'first')!r}): pass\n")
    (tmp_path / "first").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(fork_server, "_PRELOAD", ["endless"])
    monkeypatch.setattr(forking, "_LIMITS", ProcessLimits(cpu_s=0.5))
    with pytest.raises(WorkerError, match=r"was killed, for it used 0.* CPU seconds"):
        start(context().Process(target=os.getpid))
    (tmp_path / "first").unlink()
    start(process := context().Process(target=os.getpid))
    process.join()
    assert process.exitcode == 0


def test_what_a_server_has_forked_may_use_any_cpu(
    server: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_LIMITS", ProcessLimits(cpu_s=0.5))
    start(busy := context().Process(target=_spin))
    server.suspend()
    watch = ProcessWatch(busy.pid, ProcessLimits(cpu_s=1.0))
    starting = threading.Thread(target=start, args=(context().Process(target=os.getpid),))
    starting.start()
    while watch.look() is None:
        time.sleep(0.01)
    server.resume()
    starting.join()
    busy.kill()
    assert forking.fork_server() == server


def _sleep(*_: object) -> None:
    time.sleep(10_000.0)


def _spin(*_: object) -> None:
    while True:
        pass


def _wait_for_the_last(rank: int) -> int:
    """The others wait for a rank that was stopped for a moment."""
    if rank == 1:
        resume = [sys.executable, "-c", _RESUME, str(os.getpid())]
        subprocess.Popen(resume)
        os.kill(os.getpid(), signal.SIGSTOP)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)


_RESUME = "import os, signal, sys, time; time.sleep(1.0); os.kill(int(sys.argv[1]), signal.SIGCONT)"


def test_ranks_that_are_stopped_for_a_moment_answer() -> None:
    assert run_ranks(2, _wait_for_the_last) == [2, 2]


@pytest.mark.parametrize(
    ("work", "limits", "why"),
    [
        (_spin, ProcessLimits(cpu_s=3.0), "used [0-9.]+ CPU seconds"),
        (_sleep, ProcessLimits(cpu_s=600.0, idle_s=2.0), "used no CPU for"),
    ],
)
def test_ranks_that_pass_their_limits_are_ended(
    work: Callable[[int], None], limits: ProcessLimits, why: str
) -> None:
    with pytest.raises(WorkerError, match=rf"ranks \[0\] gave no answer: together, all ranks {why}"):
        run_ranks(1, work, limits=limits)


def test_a_process_has_ended_whether_or_not_the_server_says_so(server: psutil.Process) -> None:
    start(process := context().Process(target=time.sleep, args=[1000.0]))
    assert not has_ended(process)
    server.suspend()
    os.kill(process.pid, signal.SIGKILL)
    while not has_ended(process):
        time.sleep(0.01)
    assert process.exitcode is None

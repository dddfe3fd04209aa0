"""Processes are forked from a server, which may hang or be gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver

import psutil
import pytest

from trainyard.job.run.processes import fork_server
from trainyard.job.run.processes.fork_server import WorkerError, context, has_ended, start, warm_up


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """One that loads nothing, and has a second to answer."""
    forkserver._forkserver._stop()
    monkeypatch.setattr(fork_server, "_PRELOAD", ["os"])
    monkeypatch.setattr(fork_server, "_FORK_S", 1.0)
    warm_up()
    found = fork_server._server()
    yield found
    if found.is_running():
        found.kill()
    forkserver._forkserver._stop()


def test_a_server_that_does_not_answer_makes_room_for_another(server: psutil.Process) -> None:
    server.suspend()
    with pytest.raises(
        WorkerError, match=r"did not answer within 1 s and was killed; another one is started"
    ):
        start(context().Process(target=os.getpid))
    start(process := context().Process(target=os.getpid))
    process.join()
    assert process.exitcode == 0


def test_a_process_has_ended_whether_or_not_the_server_says_so(server: psutil.Process) -> None:
    start(process := context().Process(target=time.sleep, args=[1000.0]))
    assert not has_ended(process)
    server.suspend()
    os.kill(process.pid, signal.SIGKILL)
    while not has_ended(process):
        time.sleep(0.01)
    assert process.exitcode is None

"""Processes of the fork server."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest

from trainyard.processes import forking


def test_a_server_that_ends_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system closes what a process holds before it says that the process has ended."""
    servers = list[int]()
    original = forking.fork_server

    def found_before_it_ends() -> Any:
        server = original()
        servers.append(server.pid)
        if len(servers) == 1:
            server.kill()
            os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
            monkeypatch.setattr("multiprocessing.forkserver._forkserver.ensure_running", lambda: None)
        else:
            monkeypatch.undo()
        return server

    monkeypatch.setattr(forking, "fork_server", found_before_it_ends)
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    forking.start_forked(process)
    process.join()
    assert process.exitcode == 0
    assert len(servers) == 2

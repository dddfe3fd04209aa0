"""Start processes through multiprocessing's fork server, and kill a server that does not answer."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

import psutil

from trainyard.processes.errors import ProcessLostError
from trainyard.processes.heap import heap_of_children
from trainyard.processes.main_module import starting_without_main
from trainyard.processes.watch import ExceededLimit, ProcessLimits, own_cpu_seconds, watchdog

__all__ = ["fork_server", "start_forked"]

_making = threading.Lock()
# Loading the modules that processes begin with takes some seconds, before the first one is forked.
_LIMITS = ProcessLimits(cpu_s=120.0)


def start_forked(process: BaseProcess) -> None:
    """Start a process of a context of the fork server. It runs the main module only if that is safe.

    Raises
    ------
    ProcessLostError
        If the fork server was ended because it did not answer, or if it and the next one ended by themselves. The next
        process gets another fork server.
    """
    exceeded = list[ExceededLimit]()
    for is_last in (False, True):
        server = fork_server()
        try:
            # Only the CPU of the server itself counts; processes that it forked before may use any amount.
            give_up = partial(_give_up, server, exceeded)
            with starting_without_main(), watchdog(server.pid, _LIMITS, give_up, own_cpu_seconds):
                process.start()
            return
        except (EOFError, ConnectionError) as error:
            _end(server)
            if exceeded:
                raise ProcessLostError(
                    f"lost the fork server, which was killed, for it {exceeded[0]}"
                ) from error
            if is_last:
                raise ProcessLostError("lost the fork server, which ended") from error


def _give_up(server: psutil.Process, exceeded: list[ExceededLimit], limit: ExceededLimit) -> None:
    exceeded.append(limit)
    with suppress(psutil.Error, OSError):
        server.kill()


def fork_server() -> psutil.Process:
    """Return the fork server of this process; a new one, if the one before has ended.

    What it forks keeps the memory that it frees (see `trainyard.processes.heap`), whoever starts the server.
    """
    with _making, heap_of_children():
        forkserver.ensure_running()
    return psutil.Process(getattr(forkserver, "_forkserver")._forkserver_pid)  # noqa: B009


def _end(server: psutil.Process) -> None:
    """Wait until the system says that the server has ended; until then multiprocessing would ask it again."""
    with suppress(psutil.Error, OSError):
        server.kill()
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # multiprocessing waits for it itself later

"""Kill one process and its children, whatever became of its id."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

import psutil

__all__ = ["ProcessHandle"]


class ProcessHandle:
    """A process that can be killed later, also while no file can be opened, and never another one with its id.

    Parameters
    ----------
    pid : id of the process. If it has ended already, there is nothing to kill.

    Raises
    ------
    OSError
        If no file can be opened now.
    """

    def __init__(self, pid: int) -> None:
        self._lock = threading.Lock()
        self._process: psutil.Process | None = None
        self._handle: int | None = None
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            self._process = psutil.Process(pid)
            if hasattr(os, "pidfd_open"):
                self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill the process, and its children as far as the system tells them now."""
        children = list[psutil.Process]()
        with suppress(psutil.Error, OSError):
            if self._process is not None and self._process.is_running():
                children += self._process.children(recursive=True)
        self._kill_process()
        for child in children:
            with suppress(psutil.Error, OSError):
                child.kill()

    def close(self) -> None:
        """Let go of the process."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _kill_process(self) -> None:
        with self._lock, suppress(psutil.Error, OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif self._process is not None:
                self._process.kill()

"""Processes that end with others: a child with its parent, and all below a process with that."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

__all__ = ["die_with_parent", "killing_descendants"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies, and now if it has died already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def killing_descendants() -> Iterator[None]:
    """Adopt orphaned descendants while the context is open, and kill all descendants at its end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        this = psutil.Process()
        while children := this.children():  # those of one that dies become this one's
            for each in (*this.children(recursive=True), *children):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            for child in children:
                with suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)

"""A lock on the folder of a run: one run at a time writes checkpoints there.

It is held by the process that was called and by those that it starts, and is gone when the last of them is, however they
end. On a file system that several machines share it holds between them where that keeps ``flock`` (NFS from version 4 on,
Lustre and others if they are mounted so).
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from trainyard.job.run.errors import CheckpointError
from trainyard.locks import NO_LOCKS, lock_folder
from trainyard.private import make_private

_LOCK = "lock"
_TRIES, _RETRY_S = 40, 0.05  # who only looks holds it for a moment


class FolderLock:
    """A lock that is held until this object and its copies in other processes are closed.

    Parameters
    ----------
    descriptors : of the file and of the folder, which are locked; none where the file system knows no locks.
    """

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self._descriptors = descriptors

    @property
    def note(self) -> str:
        """What to say where nothing could be locked; else empty."""
        if self._descriptors:
            return ""
        return "the file system of the checkpoints knows no locks: a second run in their folder would not be noticed"

    def close(self) -> None:
        """This process does not hold it any more."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()

    def __reduce__(self) -> Any:
        """A process that is started with it holds it, too."""
        return _received, tuple(map(reduction.DupFd, self._descriptors))


def _received(*duplicates: Any) -> FolderLock:
    return FolderLock(tuple(duplicate.detach() for duplicate in duplicates))


@contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Hold a folder, which is made if it does not exist.

    Raises
    ------
    CheckpointError
        If another run holds it; the message says who.
    """
    make_private(folder)
    lock = FolderLock(_opened(folder))
    try:
        yield lock
    finally:
        lock.close()


def check_free(folder: Path) -> None:
    """Whether another run holds a folder.

    Raises
    ------
    CheckpointError
        If one does.
    """
    if (folder / _LOCK).exists():
        with locked(folder):
            pass


def _opened(folder: Path) -> tuple[int, ...]:
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole = lock_folder(folder)
        except BlockingIOError:
            time.sleep(_RETRY_S)
        except OSError as error:
            os.close(file)
            if error.errno in NO_LOCKS:
                return ()
            raise
        else:
            os.ftruncate(file, 0)
            os.pwrite(file, _holder().encode(), 0)
            return (file,) if whole is None else (file, whole)
    said = os.pread(file, 1000, 0).decode(errors="replace").strip()
    os.close(file)
    raise CheckpointError(
        f"another run writes checkpoints to {folder}: {said or 'it does not say who'}; wait until it has ended, stop it, "
        "or give another folder (--checkpoint)"
    )


def _holder() -> str:
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if module is None else f"python -m {module.name}"
    command = " ".join([program, *sys.argv[1:2]])
    return f"process {os.getpid()} on {socket.gethostname()} ({command}), since {datetime.now():%Y-%m-%d %H:%M:%S}\n"

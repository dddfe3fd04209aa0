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
from trainyard.locks import NO_LOCKS, can_share, lock_folder, locked_folder
from trainyard.private import make_private

_LOCK = "lock"
_TRIES, _RETRY_S = 40, 0.05  # who tries to lock it holds it for a moment


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
        """A warning that nothing could be locked; else empty."""
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
        If another run holds it, and the message says who; or a file is in its place.
    """
    try:
        make_private(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{error.filename} is a file, where the folder {folder} would be; give another"
        ) from error
    lock = FolderLock(_opened(folder, fcntl.LOCK_EX))
    try:
        yield lock
    finally:
        lock.close()


def check_free(folder: Path) -> None:
    """Check that no other run holds a folder.

    Raises
    ------
    CheckpointError
        If one does.
    """
    if (folder / _LOCK).exists():
        FolderLock(_opened(folder, fcntl.LOCK_SH)).close()


def _opened(folder: Path, how: int) -> tuple[int, ...]:
    """Lock a folder, or share the lock to look whether somebody holds it.

    Who shares it is waited for however long that takes: on a busy machine, such a one may get no core for a while.
    """
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    num_tries = 0
    while num_tries < _TRIES:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            whole = lock_folder(folder, how)
        except BlockingIOError:
            num_tries += not _can_share(file, folder)
            time.sleep(_RETRY_S)
        except OSError as error:
            os.close(file)
            if error.errno in NO_LOCKS:
                return ()
            raise
        else:
            if how == fcntl.LOCK_EX:
                os.ftruncate(file, 0)
                os.pwrite(file, _holder().encode(), 0)
            return (file,) if whole is None else (file, whole)
    said = os.pread(file, 1000, 0).decode(errors="replace").strip()
    os.close(file)
    raise CheckpointError(
        f"another run writes checkpoints to {folder}: {said or 'it does not say who'}; wait until it has ended, stop it, "
        "or give another folder (--checkpoint)"
    )


def _can_share(file: int, folder: Path) -> bool:
    try:
        with locked_folder(folder, fcntl.LOCK_SH):
            return can_share(file)
    except BlockingIOError:
        return False


def _holder() -> str:
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if module is None else f"python -m {module.name}"
    command = " ".join([program, *sys.argv[1:2]])
    return f"process {os.getpid()} on {socket.gethostname()} ({command}), since {datetime.now():%Y-%m-%d %H:%M:%S}\n"
